"""The command line: flags are the fields of EngineArgs; nothing is accepted and ignored."""

from __future__ import annotations

import argparse
from dataclasses import fields

import pytest

from engine import capabilities, cli, startup
from engine.config import EngineArgs, arguments
from engine.errors import ConfigError, StartupError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    arguments.add_engine_arguments(made)
    return made


def test_no_flags_are_the_defaults() -> None:
    assert arguments.engine_args(parser().parse_args([])) == EngineArgs()


def test_every_field_has_a_flag_that_sets_it() -> None:
    values = {str: "x", int: "3", bool: None}
    for item in fields(EngineArgs):
        kind = arguments._plain_type(type(item.default) if item.default is not None else int)
        if item.name == "enable_chunked_prefill":
            kind = bool
        if item.name == "served_model_name":
            kind = str
        value = item.metadata["choices"][-1] if item.metadata["choices"] else values[kind]
        flag = "--" + item.name.replace("_", "-")
        parsed = arguments.engine_args(parser().parse_args([flag] if value is None else [flag, value]))
        assert getattr(parsed, item.name) != item.default, item.name


def test_a_bool_can_be_asked_not_to_be() -> None:
    parsed = arguments.engine_args(parser().parse_args(["--no-enable-chunked-prefill"]))
    assert parsed.enable_chunked_prefill is False


@pytest.mark.parametrize(
    "row",
    [f for f in capabilities.FEATURES if f.flag and not (f.works_on("v0") or f.works_on("v1"))],
    ids=lambda f: f.name,
)
def test_the_flag_of_an_absent_feature_is_known_and_refused(row: capabilities.Feature) -> None:
    assert row.flag is not None
    for words in ([row.flag], [row.flag, "2"]):
        asked = parser().parse_args(words).absent_features
        assert asked == [row.name]
        with pytest.raises(ConfigError, match=row.flag):
            capabilities.refuse_unsupported("v1", asked)


def test_unknown_flags_and_choices_end_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--nonsense"], ["--dtype", "float64"], ["--max-num-seqs", "many"]):
        with pytest.raises(SystemExit) as caught:
            parser().parse_args(words)
        assert caught.value.code == 2


def test_a_failed_start_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise StartupError("No such thing.")

    assert startup.guarded(fail) == 2
    assert capsys.readouterr().err == "engine: error: No such thing.\n"


def test_the_capability_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capabilities"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(capabilities.FEATURES) + 2


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ENGINE_VI", "1")
    startup.set_up_logging()
    assert "ENGINE_VI" in caplog.text


def test_a_bad_log_level_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_LOG_LEVEL", "LOUD")
    with pytest.raises(ConfigError, match="LOUD"):
        startup.set_up_logging()
