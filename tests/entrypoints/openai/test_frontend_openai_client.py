"""The official ``openai`` client against a fake engine on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.entrypoints.openai.fakes import MODEL, FakeClient, Script
from tests.entrypoints.openai.running import RunningServer

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        RunningServer(FakeClient(), api_key="key") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"
    again = client.chat.completions.create(model=MODEL, messages=[*MESSAGES, answer.choices[0].message, *MESSAGES])
    assert again.choices[0].finish_reason == "stop"


def test_chat_stream(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options=options)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 10


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=2)
    assert [choice.text for choice in answer.choices] == ["Hello there"] * 2
    assert answer.choices[0].logprobs is not None
    parts = [c.choices[0].text for c in client.completions.create(model=MODEL, prompt="a", stream=True)]
    assert "".join(parts) == "Hello there"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert caught.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert client.models.list().data[0].id == MODEL


def test_an_error_within_a_stream_is_raised() -> None:
    with RunningServer(FakeClient(Script(truncated=True))) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="engine process ended"):
            list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
