"""Text completions, tokenize and detokenize on a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.api import GenerateRequest, SamplingParams
from engine.entrypoints.openai.generation import prepare
from engine.errors import EngineDeadError
from tests.entrypoints.openai.fakes import LIMITS, MAX_MODEL_LEN, TOKENIZER, FakeClient, Script, make_app
from tests.entrypoints.openai.test_frontend_chat import sse
from tests.text import toys

URL = "/v1/completions"


def post(client: FakeClient, body: dict[str, Any], url: str = URL, **overrides: Any) -> Any:
    with TestClient(make_app(client, **overrides)) as http:
        return http.post(url, json=body)


def by_prompt(request: GenerateRequest) -> Script:
    """Answers a prompt by its own text."""
    return Script(texts=list(TOKENIZER.decode(request.prompt_token_ids)), delay_s=0.001)


def test_one_prompt() -> None:
    document = post(FakeClient(), {"prompt": "hello"}).json()
    assert document["object"] == "text_completion" and document["id"].startswith("cmpl-")
    assert document["choices"] == [
        {"text": "Hello there", "index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert document["usage"]["completion_tokens"] == 10


def test_the_default_of_max_tokens_is_openais() -> None:
    client = FakeClient()
    post(client, {"prompt": "a"})
    post(client, {"prompt": "a", "max_tokens": None})
    assert [request.params.max_tokens for request in client.requests] == [16, 16]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", "b"], [TOKENIZER.encode("a"), TOKENIZER.encode("b")]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, expected: list[list[int]]) -> None:
    client = FakeClient()
    assert post(client, {"prompt": prompt}).status_code == 200
    assert sorted(r.prompt_token_ids for r in client.requests) == sorted(expected)
    assert len({r.request_id for r in client.requests}) == len(expected)


def test_several_prompts_keep_their_index() -> None:
    prompts = ["abc", "defgh", "i"]
    document = post(FakeClient(by_prompt), {"prompt": prompts}).json()
    assert [choice["text"] for choice in document["choices"]] == prompts
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert document["usage"]["completion_tokens"] == 9


def test_several_prompts_in_one_stream() -> None:
    prompts = ["abc", "defgh", "i"]
    body = {"prompt": prompts, "stream": True, "stream_options": {"include_usage": True}}
    events = sse(post(FakeClient(by_prompt), body).text)
    texts = ["", "", ""]
    ends = [0, 0, 0]
    for event in events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] == "stop"
    assert texts == prompts and ends == [1, 1, 1]
    assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
    assert events[-1]["usage"]["completion_tokens"] == 9 and events[-1]["choices"] == []


def test_one_bad_prompt_of_several_submits_none() -> None:
    client = FakeClient()
    assert post(client, {"prompt": [[1], [1] * (MAX_MODEL_LEN + 1)]}).status_code == 400
    assert not client.requests


@pytest.mark.parametrize("stream", [False, True])
def test_one_failing_prompt_ends_and_aborts_the_others(stream: bool) -> None:
    def script(request: GenerateRequest) -> Script:
        if request.prompt_token_ids == [2]:
            return Script(error=EngineDeadError(), fail_at=1, delay_s=0.01)
        return Script(texts=["x"] * 1000, delay_s=0.01)

    client = FakeClient(script)
    answer = post(client, {"prompt": [[1], [2], [3]], "stream": stream})
    if stream:
        assert sse(answer.text)[-1]["error"]["type"] == "engine_dead_error"
    else:
        assert answer.status_code == 500
    assert not client.running and len(client.aborted) == 3


def test_logprobs_in_parallel_lists() -> None:
    logprobs = post(FakeClient(Script(texts=["Hi", "!"])), {"prompt": "a", "logprobs": 1}).json()["choices"][0][
        "logprobs"
    ]
    assert logprobs["tokens"] == ["H", "i", "!"]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["text_offset"] == [0, 1, 2]
    assert all("".join(tops) and len(tops) == 2 for tops in logprobs["top_logprobs"])


def test_text_offset_counts_on_through_a_stream() -> None:
    events = sse(post(FakeClient(Script(texts=["Hi", "!"])), {"prompt": "a", "logprobs": 0, "stream": True}).text)
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in events] == [[0, 1], [2]]


def test_token_ids_when_asked() -> None:
    body = {"prompt": [5, 6], "return_token_ids": True}
    choice = post(FakeClient(Script(texts=["Hi"])), body).json()["choices"][0]
    assert choice["prompt_token_ids"] == [5, 6] and choice["token_ids"] == TOKENIZER.encode("Hi")
    events = sse(post(FakeClient(Script(texts=["H", "i"])), {**body, "stream": True}).text)
    assert events[0]["choices"][0]["prompt_token_ids"] == [5, 6]
    assert "prompt_token_ids" not in events[1]["choices"][0]


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    client = FakeClient(Script(texts=[""]))
    assert post(client, {"prompt": [1]}, tokenizer=None).status_code == 200
    assert client.requests[0].params.detokenize is False
    for body in ({"prompt": "a"}, {"prompt": [1], "stop": "x"}, {"prompt": [1], "detokenize": True}):
        assert post(client, body, tokenizer=None).status_code == 400


def test_tokenize_and_back() -> None:
    tokens = post(FakeClient(), {"prompt": "hello", "return_token_strs": True}, "/tokenize").json()
    assert tokens["tokens"] == TOKENIZER.encode("hello") and tokens["count"] == 2
    assert tokens["token_strs"] == ["hell", "o"] and tokens["max_model_len"] == MAX_MODEL_LEN
    assert post(FakeClient(), {"tokens": tokens["tokens"]}, "/detokenize").json() == {"prompt": "hello"}


def test_tokenize_a_chat_gives_what_the_model_would_get() -> None:
    client = FakeClient()
    messages = [{"role": "user", "content": "hi"}]
    tokens = post(client, {"messages": messages}, "/tokenize").json()["tokens"]
    post(client, {"messages": messages}, "/v1/chat/completions")
    assert client.requests[0].prompt_token_ids == tokens
    assert toys.EOT not in TOKENIZER.decode(tokens)


def test_leaving_a_stream_early_aborts_it_there_and_then() -> None:
    client = FakeClient()
    context = make_app(client).state.context

    async def leave_early() -> None:
        (generation,) = prepare(context, LIMITS, "r1", [[1]], SamplingParams())
        outputs = generation.outputs()
        await anext(outputs)
        await outputs.aclose()
        assert client.aborted == ["r1"]

    asyncio.run(leave_early())
    assert context.metrics.requests_finished == {"abort": 1}
