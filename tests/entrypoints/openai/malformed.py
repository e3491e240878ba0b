"""Bodies no server should accept, for any OpenAI-compatible server: at least 300 of them.

Owns the generator. ``test_malformed.py`` sends them to the app on a fake engine; the suites with real
engines send them to a real server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"

_MESSAGES = [{"role": "user", "content": "hi"}]
#: A minimal body of each route, good but for what is changed in it.
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": _MESSAGES, "max_tokens": 1},
    COMPLETION: {"prompt": "hi", "max_tokens": 1},
    TOKENIZE: {"prompt": "hi"},
    DETOKENIZE: {"tokens": [1, 2]},
}


@dataclass(frozen=True)
class Malformed:
    """One request that must be answered with a 4xx in OpenAI's shape."""

    name: str
    path: str
    body: bytes
    #: What ``error.param`` must be; ``None`` says nothing about it.
    param: str | None = None


def malformed_requests(vocab_size: int, max_model_len: int) -> Iterator[Malformed]:
    """All of them. Names are unique; the order is stable."""
    for path in GOOD:
        yield from _not_json(path)
        yield from _not_objects(path)
        yield from _unknown_fields(path)
    for path in (CHAT, COMPLETION):
        yield from _sampling_fields(path)
        yield from _not_supported(path)
        yield from _too_long(path, max_model_len)
    yield from _messages()
    yield from _prompts(vocab_size, max_model_len)
    yield from _token_routes(vocab_size)


def _with(path: str, name: str, param: str | None, **fields: Any) -> Malformed:
    body = {**GOOD[path], **fields}
    return Malformed(f"{path} {name}", path, json.dumps(body).encode(), param)


def _raw(path: str, name: str, body: bytes, param: str | None = None) -> Malformed:
    return Malformed(f"{path} {name}", path, body, param)


def _spliced(path: str, name: str, field: str, value: bytes) -> Malformed:
    """A good body plus a field whose JSON Python would not write."""
    good = json.dumps({k: v for k, v in GOOD[path].items() if k != field}).encode()
    return _raw(path, name, good[:-1] + b',"' + field.encode() + b'":' + value + b"}")


def _not_json(path: str) -> Iterator[Malformed]:
    good = json.dumps(GOOD[path]).encode()
    for name, body in {
        "empty": b"",
        "blank": b" \n\t ",
        "cut": good[:-1],
        "cut in a string": good[:4],
        "trailing comma": good[:-1] + b",}",
        "trailing bytes": good + b"}",
        "two documents": good + good,
        "single quotes": good.replace(b'"', b"'"),
        "form": b"prompt=hi&max_tokens=1",
        "nul bytes": b"\x00" * 64,
        "utf-16": good.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + good,
        "latin-1": good[:-1] + b',"user":"caf\xe9"}',
        "overlong utf-8": good[:-1] + b',"user":"\xc0\xaf"}',
        "raw surrogate": good[:-1] + b',"user":"\xed\xa0\x80"}',
        "control character": good[:-1] + b',"user":"a\x01b"}',
        "comment": good[:-1] + b"/* */}",
        "deep arrays": b"[" * 100_000,
        "deep objects": b'{"a":' * 50_000,
        "deep and closed": b"[" * 50_000 + b"]" * 50_000,
        "binary": bytes(range(256)) * 8,
    }.items():
        yield _raw(path, name, body)
    field = {CHAT: "user", COMPLETION: "user", TOKENIZE: "model", DETOKENIZE: "model"}[path]
    for name, value in {
        "lone high surrogate": rb'"\ud800"',
        "lone low surrogate": rb'"\udc00"',
        "surrogate then letter": rb'"\ud83dx"',
        "half an escape": rb'"\ud8"',
        "bad escape": rb'"\x41"',
        "NaN": b"NaN",
        "deep value": b"[" * 20_000 + b"]" * 20_000,
    }.items():
        yield _spliced(path, name, field, value)


def _not_objects(path: str) -> Iterator[Malformed]:
    for value in (None, True, 7, 1.5, "text", [], [{}]):
        yield _raw(path, f"body {json.dumps(value)}", json.dumps(value).encode())
    yield _raw(path, "body {}", b"{}")


def _unknown_fields(path: str) -> Iterator[Malformed]:
    yield _with(path, "unknown field", "promt", promt="hi")
    yield _with(path, "null unknown field", "no_such_option", no_such_option=None)
    yield _with(path, "unknown field of hostile name", None, **{"x\r\nSet-Cookie: a=b\u0000" * 50: 1})
    yield _with(path, "wrong case", "Model", Model="m")
    yield _with(path, "model of another type", "model", model=7)
    yield _with(path, "no such model", "model", model="no-such-model")
    yield _with(path, "endless model name", "model", model="m" * 10_000)


_NUMBERS: dict[str, list[Any]] = {
    "temperature": [-0.1, 100.1, "1", True, [], {}],
    "top_p": [0, -1, 1.01, "0.5", False, [0.5]],
    "min_p": [-0.01, 1.01, "0"],
    "presence_penalty": [-2.01, 2.01, "1"],
    "frequency_penalty": [-2.01, 2.01, {}],
    "repetition_penalty": [0, -1, 101],
    "top_k": [-2, 1.5, "5", 2**31, 2**63, True],
    "max_tokens": [0, -1, 1.5, "16", True, 2**31, 2**64, [1]],
    "min_tokens": [-1, 1.5, "1", 2**40],
    "seed": [1.5, "7", 2**63, -(2**63), 10**30, []],
    "stop": ["", [""], 7, [7], ["a"] * 17, ["x" * 1025], {}, [None], [["a"]]],
    "stop_token_ids": [7, ["7"], [-1], [1.5], [1] * 129, [2**31], [10**30], [True], {}],
    "ignore_eos": [1, "true", []],
    "skip_special_tokens": [0, "no"],
    "include_stop_str_in_output": [1, "yes"],
    "stream": [1, "true", [], {}],
    "return_token_ids": [1, "x"],
    "user": [7, [], "u" * 10_000],
}


def _sampling_fields(path: str) -> Iterator[Malformed]:
    for field, values in _NUMBERS.items():
        for value in values:
            text = json.dumps(value)
            body = _with(path, f"{field} = {text[:40]} ({len(text)})", None, **{field: value})
            yield body
    for field in ("temperature", "top_p", "max_tokens", "seed"):
        for value in (b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"9" * 5000, b"1e", b"0x10", b"01"):
            yield _spliced(path, f"{field} = {value[:12].decode()}", field, value)
    yield _with(path, "min_tokens over max_tokens", "min_tokens", min_tokens=5, max_tokens=2)
    yield _with(path, "stream_options without stream", "stream_options", stream_options={"include_usage": True})
    yield _with(path, "stream_options is a list", None, stream=True, stream_options=[])
    yield _with(path, "unknown stream option", "stream_options.x", stream=True, stream_options={"x": 1})
    yield _with(
        path,
        "obfuscation",
        "stream_options.include_obfuscation",
        stream=True,
        stream_options={"include_obfuscation": True},
    )
    yield _with(path, "stop id outside the vocabulary", "stop_token_ids", stop_token_ids=[1 << 24])


def _not_supported(path: str) -> Iterator[Malformed]:
    both: dict[str, list[Any]] = {"n": [0, 2, 10**9, 1.0, True, "1"], "logit_bias": [{"1": 5}, [], 7]}
    chat: dict[str, list[Any]] = {
        "tools": [[{"type": "function", "function": {"name": "f"}}], {}, "auto"],
        "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
        "functions": [[{"name": "f"}]],
        "function_call": [{"name": "f"}],
        "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, "text"],
        "modalities": [["text", "audio"], ["audio"]],
        "audio": [{"voice": "alloy", "format": "wav"}],
        "prediction": [{"type": "content", "content": "x"}],
        "reasoning_effort": ["high"],
        "service_tier": ["priority"],
        "store": [True],
        "metadata": [{"a": "b"}],
        "web_search_options": [{}],
        "safety_identifier": ["x"],
        "prompt_cache_key": ["x"],
        "verbosity": ["low"],
        "top_logprobs": [-1, 21, 1.5, 3],
        "logprobs": [1, "true"],
        "max_completion_tokens": [0, -1, 1.5, "9", 2**40, 7],
        "add_generation_prompt": [1],
    }
    completion: dict[str, list[Any]] = {
        "best_of": [0, 2, True],
        "echo": [True, 1],
        "suffix": ["x"],
        "logprobs": [-1, 21, True, 1.5],
        "add_special_tokens": [1],
    }
    for field, values in {**both, **(chat if path == CHAT else completion)}.items():
        for value in values:
            yield _with(path, f"{field} = {json.dumps(value)}", field, **{field: value})
    for field in ("n", "logit_bias"):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            deep = opening * 50_000 + b"1" + closing * 50_000
            yield _spliced(path, f"{field} = deep {opening.decode()}", field, deep)


def _too_long(path: str, max_model_len: int) -> Iterator[Malformed]:
    text = "word " * (max_model_len * 4)
    field, value = ("messages", [{"role": "user", "content": text}]) if path == CHAT else ("prompt", text)
    yield _with(path, "prompt over the context", field, **{field: value})
    yield _with(path, "max_tokens over the context", "max_tokens", max_tokens=max_model_len + 1)
    if path == CHAT:
        name = "max_completion_tokens"
        yield _with(path, f"{name} over the context", name, max_tokens=None, **{name: max_model_len + 1})
    yield _with(path, "min_tokens over the context", "min_tokens", max_tokens=None, min_tokens=max_model_len)


def _messages() -> Iterator[Malformed]:
    user = {"role": "user", "content": "hi"}
    for name, value, param in [
        ("no messages", None, "messages"),
        ("empty list", [], "messages"),
        ("an object", {}, "messages"),
        ("a string", "hi", "messages"),
        ("a list of strings", ["hi"], "messages[0]"),
        ("too many", [user] * 4097, "messages"),
        ("no role", [{"content": "hi"}], "messages[0].role"),
        ("no content", [{"role": "user"}], "messages[0].content"),
        ("null content", [user, {"role": "assistant", "content": None}], "messages[1].content"),
        ("content is a number", [{"role": "user", "content": 7}], "messages[0].content"),
        ("content is an object", [{"role": "user", "content": {}}], "messages[0].content"),
        ("no parts", [{"role": "user", "content": []}], "messages[0].content"),
        ("part without type", [{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ("part without text", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("part of unknown type", [{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type"),
        ("part is a string", [{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        (
            "image",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}],
            "messages[0].content[0].type",
        ),
        (
            "audio",
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}],
            "messages[0].content[0].type",
        ),
        ("unknown role", [{"role": "wizard", "content": "hi"}], "messages[0].role"),
        ("tool role", [{"role": "tool", "content": "hi"}], "messages[0].role"),
        ("function role", [{"role": "function", "content": "hi"}], "messages[0].role"),
        ("role is a number", [{"role": 1, "content": "hi"}], "messages[0].role"),
        ("name", [{**user, "name": "bob"}], "messages[0].name"),
        ("tool calls", [{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ("tool call id", [{**user, "tool_call_id": "x"}], "messages[0].tool_call_id"),
        ("unknown field", [{**user, "colour": "red"}], "messages[0].colour"),
    ]:
        yield _with(CHAT, f"messages: {name}", param, messages=value)
    yield _spliced(CHAT, "messages: surrogate", "messages", rb'[{"role":"user","content":"\ud800"}]')
    yield _with(TOKENIZE, "prompt and messages", None, messages=[user])
    yield _with(TOKENIZE, "tool message", "messages[0].role", prompt=None, messages=[{"role": "tool", "content": "x"}])


def _prompts(vocab_size: int, max_model_len: int) -> Iterator[Malformed]:
    for name, value in [
        ("null", None),
        ("empty list", []),
        ("empty id list", [[]]),
        ("a number", 7),
        ("an object", {}),
        ("true", True),
        ("floats", [1.5]),
        ("nulls", [None]),
        ("booleans", [True, False]),
        ("mixed", ["a", 1]),
        ("mixed lists", ["a", [1]]),
        ("ids and lists", [1, [1]]),
        ("nested too deep", [[[1]]]),
        ("lists of text", [["a"]]),
        ("negative id", [-1]),
        ("id at the vocabulary's end", [vocab_size]),
        ("id far outside", [2**24]),
        ("id of 32 bits", [2**31]),
        ("id of 64 bits", [2**64]),
        ("id of 100 digits", [10**100]),
        ("bad id in a list of lists", [[1], [vocab_size]]),
        ("bad id late", [*[1] * (max_model_len // 2), vocab_size + 5]),
        ("too many prompts", ["a"] * 129),
        ("too many id lists", [[1]] * 129),
        ("ids over the context", [1] * (max_model_len + 1)),
        ("one of two over the context", [[1], [1] * max_model_len]),
    ]:
        yield _with(COMPLETION, f"prompt: {name}", None, prompt=value)
    yield _spliced(COMPLETION, "prompt: surrogate", "prompt", rb'["ok", "\udfff"]')
    yield _spliced(COMPLETION, "prompt: 5000-digit id", "prompt", b"[" + b"9" * 5000 + b"]")


def _token_routes(vocab_size: int) -> Iterator[Malformed]:
    for value in (None, 7, "1", [1.5], ["1"], [-1], [vocab_size], [2**31], [2**64], [[1]], [True]):
        yield _with(DETOKENIZE, f"tokens = {json.dumps(value)}", None, tokens=value)
    for value in (7, ["a"], {}, True):
        yield _with(TOKENIZE, f"prompt = {json.dumps(value)}", "prompt", prompt=value)
    for field in ("add_special_tokens", "return_token_strs", "add_generation_prompt"):
        yield _with(TOKENIZE, f"{field} = 1", field, **{field: 1})
