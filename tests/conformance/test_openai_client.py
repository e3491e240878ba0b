"""The official ``openai`` client against real servers of both engines, default model."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.server import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module", params=["v0", "v1"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as it:
        yield it


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 30 and answer.usage.completion_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streaming_says_the_same(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_and_its_stream(client: openai.OpenAI, model: str) -> None:
    ask = {"model": model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**ask)
    parts = [c.choices[0].text for c in client.completions.create(**ask, stream=True) if c.choices]
    assert "Paris" in whole.choices[0].text
    assert "".join(parts) == whole.choices[0].text


def test_completion_of_token_ids_and_of_several_prompts(client: openai.OpenAI, server: Server, model: str) -> None:
    status, tokens = server.post("/tokenize", {"model": model, "prompt": "The capital of France is"})
    assert status == 200
    ids = tokens["tokens"]
    answer = client.completions.create(model=model, prompt=[ids, ids], temperature=0, max_tokens=8)
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.choices[0].text == answer.choices[1].text and "Paris" in answer.choices[0].text


def test_logprobs_in_both_shapes(client: openai.OpenAI, model: str) -> None:
    chat = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs.content
    assert len(content) == 4 and all(len(entry.top_logprobs) == 2 for entry in content)
    assert "".join(entry.token for entry in content) == chat.choices[0].message.content
    text = client.completions.create(model=model, prompt="One two three", temperature=0, max_tokens=4, logprobs=2)
    logprobs = text.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 4


def test_an_unsupported_field_is_refused_by_name(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=QUESTION, n=2)
    assert caught.value.body["param"] == "n"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-nothing", messages=QUESTION)


def test_everybody_is_told_which_engine_answers(server: Server, client: openai.OpenAI, model: str) -> None:
    raw = client.with_raw_response.models.list()
    assert raw.headers["x-engine"] == server.engine
    info = server.get("/v1/engine")
    assert info["decision"]["chosen"] == server.engine and info["decision"]["source"] == "environment"
    assert server.get("/version")["engine"] == server.engine
    samples = [line for line in server.get("/metrics").splitlines() if line.startswith("engine_")]
    assert samples and all(f'engine="{server.engine}"' in line for line in samples)
