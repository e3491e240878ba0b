"""engine/select.py: one decision, made once, never guessed."""

import pytest

from engine.errors import ConfigError
from engine.select import create_client, decide
from tests.support.configs import tiny_config


@pytest.mark.parametrize(
    ("environ", "requested", "chosen", "source"),
    [
        ({"ENGINE_V1": "1"}, "v1", "v1", "environment"),
        ({"ENGINE_V1": "0"}, "v0", "v0", "environment"),
        ({}, None, "v0", "default"),
    ],
)
def test_the_decision_says_what_why_and_whence(environ, requested, chosen, source) -> None:
    decision = decide(environ)
    assert (decision.requested, decision.chosen, decision.source) == (requested, chosen, source)
    assert "ENGINE_V1" in decision.reasons[0]


@pytest.mark.parametrize("value", ["", "true", "v1", "2", " 1", "01"])
def test_any_other_value_is_an_error_that_names_it(value: str) -> None:
    with pytest.raises(ConfigError, match="ENGINE_V1 is " + repr(value)):
        decide({"ENGINE_V1": value})


@pytest.mark.parametrize(("value", "name"), [("0", "V0Client"), ("1", "V1Client")])
def test_the_chosen_client_is_the_one_made(value: str, name: str) -> None:
    client = create_client(decide({"ENGINE_V1": value}), tiny_config(served_name="x"), None)
    assert type(client).__name__ == name
