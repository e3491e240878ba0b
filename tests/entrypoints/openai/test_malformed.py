"""Every malformed body gets a 4xx in OpenAI's shape, and the engine never hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.entrypoints.openai.fakes import MAX_MODEL_LEN, VOCAB_SIZE, FakeClient, make_app
from tests.entrypoints.openai.malformed import GOOD, Malformed, malformed_requests

ALL = list(malformed_requests(VOCAB_SIZE, MAX_MODEL_LEN))


@pytest.fixture(scope="module")
def engine() -> FakeClient:
    return FakeClient()


@pytest.fixture(scope="module")
def http(engine: FakeClient) -> Iterator[TestClient]:
    with TestClient(make_app(engine)) as client:
        yield client


def test_there_are_enough_and_each_has_its_name() -> None:
    assert len(ALL) >= 300
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("path", GOOD)
def test_the_bodies_they_are_made_from_are_good(path: str) -> None:
    with TestClient(make_app(FakeClient())) as client:
        assert client.post(path, json=GOOD[path]).status_code == 200


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_is_refused(http: TestClient, engine: FakeClient, case: Malformed) -> None:
    answer = http.post(case.path, content=case.body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    document = json.loads(answer.text)
    assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
    error = document["error"]
    assert isinstance(error["message"], str) and 5 < len(error["message"]) < 400
    assert isinstance(error["type"], str)
    for field in ("param", "code"):
        assert error[field] is None or isinstance(error[field], str)
    if case.param is not None:
        assert error["param"] == case.param
    assert not engine.requests


@pytest.mark.parametrize("path", GOOD)
def test_values_are_never_echoed(http: TestClient, path: str) -> None:
    secret = "s3cr3t-value"
    for field in ("model", "stream", "temperature", "stop_token_ids", "role", "add_special_tokens", "tools"):
        answer = http.post(path, json={**GOOD[path], field: secret})
        assert secret not in answer.text
    answer = http.post(path, json={**GOOD[path], "messages": [{"role": secret, "content": secret}]})
    assert secret not in answer.text
