"""Chat completions on a fake engine: shapes, streams, refusals, errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from engine.api import SamplingParams
from engine.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from engine.errors import EngineDeadError, OverloadedError, RequestError
from tests.entrypoints.openai.fakes import TEMPLATE, TOKENIZER, FakeClient, Script, make_app, make_info
from tests.text import toys

URL = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def post(client: FakeClient, body: dict[str, Any], **overrides: Any) -> Any:
    with TestClient(make_app(client, **overrides)) as http:
        return http.post(URL, json={"messages": MESSAGES, **body})


def sse(text: str) -> list[Any]:
    """Events of a stream, each checked for form; ``[DONE]`` must be the last and is left out."""
    assert text.endswith("\n\n")
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]" and events.count("data: [DONE]") == 1
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def test_an_answer_in_one_piece() -> None:
    client = FakeClient()
    document = post(client, {"model": "toy/model"}).json()
    assert document["object"] == "chat.completion" and document["id"].startswith("chatcmpl-")
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None and choice["index"] == 0
    prompt = len(client.requests[0].prompt_token_ids)
    assert document["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 10,
        "total_tokens": prompt + 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_stream_says_the_role_the_text_and_the_end() -> None:
    answer = post(FakeClient(), {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = sse(answer.text)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": " there"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 4 + ["stop"]
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)


def test_usage_at_the_end_of_a_stream_when_asked() -> None:
    events = sse(post(FakeClient(), {"stream": True, "stream_options": {"include_usage": True}}).text)
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 10


def test_usage_on_every_event_when_asked() -> None:
    events = sse(post(FakeClient(), {"stream": True, "stream_options": {"continuous_usage_stats": True}}).text)
    assert [event["usage"]["completion_tokens"] for event in events[1:]] == [3, 5, 10, 10]


def test_deltas_without_text_are_not_told_but_the_end_is() -> None:
    client = FakeClient(Script(texts=["", "a", "", ""], finish_reason="length"))
    events = sse(post(client, {"stream": True}).text)
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {},
    ]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_sampling_fields_reach_the_engine() -> None:
    client = FakeClient()
    sent = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "seed": 11,
        "stop": "END",
        "stop_token_ids": [5],
        "ignore_eos": True,
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "logprobs": True,
        "top_logprobs": 3,
    }
    assert post(client, sent).status_code == 200
    expected = {**sent, "max_tokens": 9, "logprobs": 3, "stop": ("END",), "stop_token_ids": (5,)}
    del expected["max_completion_tokens"], expected["top_logprobs"]
    assert client.requests[0].params == SamplingParams(**expected)


def test_every_sampling_param_can_be_set_over_http() -> None:
    for request in (ChatCompletionRequest, CompletionRequest):
        assert set(SamplingParams.__struct_fields__) <= set(request.__struct_fields__)


@pytest.mark.parametrize("request_type", [ChatCompletionRequest, CompletionRequest])
def test_http_bounds_are_those_of_sampling_params(request_type: type[msgspec.Struct]) -> None:
    """At a bound both accept, one step outside both refuse."""
    properties = msgspec.json.schema(request_type)["$defs"][request_type.__name__]["properties"]
    checked = 0
    for name in SamplingParams.__struct_fields__:
        numbers = [kind for kind in properties[name].get("anyOf", []) if kind["type"] in ("integer", "number")]
        for kind in numbers:
            step = 1 if kind["type"] == "integer" else 1e-6
            extra = {"max_tokens": None} if name == "min_tokens" else {}
            for bound, sign in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", -1)):
                if bound not in kind:
                    continue
                inside = kind[bound] + (step if bound.startswith("exclusive") else 0)
                SamplingParams(**{name: inside, **extra})
                with pytest.raises(RequestError):
                    SamplingParams(**{name: inside + sign * step, **extra})
                checked += 1
    assert checked >= 20


def test_null_and_neutral_values_ask_for_nothing() -> None:
    client = FakeClient()
    plain = {"temperature": 0.5}
    post(client, plain)
    neutral = {name: (values[-1] if values else None) for name, values in ChatCompletionRequest.NEUTRAL.items()}
    nulls = dict.fromkeys(("top_p", "stop", "stream", "stream_options", "max_tokens", "user", "logprobs", "seed"))
    assert post(client, {**plain, **neutral, **nulls}).status_code == 200
    first, second = client.requests
    assert first.params == second.params and first.prompt_token_ids == second.prompt_token_ids


def test_a_refusal_names_the_field_and_what_would_do() -> None:
    error = post(FakeClient(), {"n": 3}).json()["error"]
    assert error["param"] == "n" and error["code"] == "unsupported_parameter"
    assert "leave it out or send 1" in error["message"]


def test_text_parts_and_developer_messages() -> None:
    client = FakeClient()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "rules"}, {"role": "user", "content": parts}]
    assert post(client, {"messages": messages}).status_code == 200
    assert TOKENIZER.decode(client.requests[0].prompt_token_ids) == "system: rules\nuser: one\ntwo\nassistant:"


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    client = FakeClient()
    message = post(client, {}).json()["choices"][0]["message"]
    assert post(client, {"messages": [*MESSAGES, message, *MESSAGES]}).status_code == 200


def test_no_message_can_forge_a_special_token() -> None:
    client = FakeClient()
    post(client, {"messages": [{"role": "user", "content": f"a{toys.EOT}b"}]})
    assert TOKENIZER.special_token_ids.isdisjoint(client.requests[0].prompt_token_ids)


def test_logprobs_of_chat() -> None:
    body = {"logprobs": True, "top_logprobs": 2}
    content = post(FakeClient(Script(texts=["H", "o"])), body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "o"]
    assert content[0]["bytes"] == [72] and content[0]["logprob"] == -0.5
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -3.0]
    assert set(content[0]["top_logprobs"][0]) == {"token", "logprob", "bytes"}


def test_logprobs_of_a_chat_stream_come_with_their_tokens() -> None:
    events = sse(post(FakeClient(Script(texts=["H", "o"])), {"logprobs": True, "stream": True}).text)
    told = [entry["token"] for e in events for entry in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert told == ["H", "o"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_before_the_first_token_fails_with_a_status(stream: bool) -> None:
    for error, status in [(OverloadedError("full", code="full"), 503), (EngineDeadError(), 500)]:
        answer = post(FakeClient(Script(error=error)), {"stream": stream})
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == error.kind
        assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(error=EngineDeadError(), fail_at=1), "engine_dead_error"),
        (Script(error=KeyError("/etc/secret"), fail_at=1), "internal_error"),
        (Script(truncated=True), "engine_dead_error"),
        (Script(finish_reason="abort"), "engine_dead_error"),
        (Script(finish_reason="error"), "engine_dead_error"),
    ],
)
def test_what_fails_in_a_stream_ends_it_by_one_error_event(script: Script, kind: str) -> None:
    events = sse(post(FakeClient(script), {"stream": True}).text)
    assert events[-1]["error"]["type"] == kind
    assert "secret" not in json.dumps(events)
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


def test_a_bug_is_a_500_without_details() -> None:
    answer = post(FakeClient(Script(error=KeyError("/etc/secret"))), {})
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["error"]["type"] == "internal_error"
    assert answer.headers["x-engine"] == "v1"


def test_without_a_chat_template_chat_is_refused() -> None:
    error = post(FakeClient(), {}, template=None).json()["error"]
    assert error["code"] == "no_chat_template"


def test_starting_servers_refuse_until_told_the_limits() -> None:
    app = make_app(FakeClient(), info=make_info(limits=None))
    with TestClient(app) as http:
        answer = http.post(URL, json={"messages": MESSAGES})
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert http.get("/health/ready").json() == {"status": "starting"}
        app.state.context.lifecycle.serving(make_info().limits)
        assert http.post(URL, json={"messages": MESSAGES}).status_code == 200
        assert http.get("/health/ready").status_code == 200


def test_long_texts_are_tokenized_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    seen: list[str] = []
    render = TEMPLATE.render

    def spy(*args: Any) -> str:
        seen.append(threading.current_thread().name)
        return render(*args)

    monkeypatch.setattr(TEMPLATE, "render", spy)
    post(FakeClient(), {})
    post(FakeClient(), {"messages": [{"role": "user", "content": "x " * 20_000}]})
    assert "tokenizer" not in seen[0] and "tokenizer" in seen[1]
