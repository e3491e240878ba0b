"""From the bytes of a body to a checked Struct, with one OpenAI-shaped 400 for everything wrong.

Owns reading the body within its limits, decoding, and the words of the refusals. The texts are
ours: of what the client sent only the *name* of an unknown field comes back, cut and quoted.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from engine.entrypoints.openai.errors import ClientDisconnected, HttpError
from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    TokenizeRequest,
)
from engine.errors import RequestError

Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)

MAX_NAME_CHARS = 64
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")


async def read_body(scope: Scope, receive: Receive, limits: HttpLimits) -> bytes:
    """Reads a JSON body.

    Raises:
        HttpError: 415 for another media type, 413 over ``max_body_bytes``, 408 over ``body_timeout_s``.
        ClientDisconnected: the client left before the end of the body.
    """
    headers = Headers(scope=scope)
    _check_media_type(headers)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.max_body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _receive_all(receive, limits)
    except TimeoutError:
        raise HttpError(
            408, f"The body did not arrive within {limits.body_timeout_s:g} seconds.", code="timeout"
        ) from None


async def _receive_all(receive: Receive, limits: HttpLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limits.max_body_bytes:
            raise _too_large(limits)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_media_type(headers: Headers) -> None:
    """Insisting on JSON also keeps other sites' web pages out: a browser asks first (CORS preflight)."""
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise HttpError(415, "Send the header Content-Type: application/json.", code="unsupported_media_type")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "Send the body without Content-Encoding.", code="unsupported_media_type")


def _too_large(limits: HttpLimits) -> HttpError:
    return HttpError(413, f"The body is larger than {limits.max_body_bytes} bytes.", code="body_too_large")


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Decodes and checks everything that needs no model.

    Raises:
        RequestError: the body is not JSON, or a field has a wrong type, a value out of bounds, an
            unknown name, or a value that asks for something not supported yet; ``param`` names it.
    """
    try:
        request = msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise RequestError("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError as exc:
        raise _explain(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError(
            "The body is not valid JSON in UTF-8. (NaN, Infinity and lone surrogates are not JSON.)",
            code="invalid_json",
        ) from None
    refuse_not_yet(request, request.NEUTRAL)
    if isinstance(request, GenerationFields):
        _check_stream_options(request)
    if isinstance(request, (ChatCompletionRequest, TokenizeRequest)):
        for i, message in enumerate(request.messages or ()):
            refuse_not_yet(message, message.NEUTRAL, f"messages[{i}].")
    return request


def refuse_not_yet(struct: msgspec.Struct, neutral: dict[str, tuple[object, ...]], prefix: str = "") -> None:
    """Refuses by name every ``NotYet`` field whose value asks for something.

    Types count: ``true`` is not ``1``, though Python calls them equal.
    """
    for name, values in neutral.items():
        value: Any = getattr(struct, name)
        if value is None or any(type(value) is type(ok) and value == ok for ok in values):
            continue
        offers = " or ".join(json.dumps(ok) for ok in values)
        instead = f"leave it out or send {offers}" if offers else "leave it out"
        raise RequestError(
            f"{prefix}{name} is not supported yet; {instead}.", param=prefix + name, code="unsupported_parameter"
        )


def _check_stream_options(request: GenerationFields) -> None:
    if request.stream_options is None:
        return
    refuse_not_yet(request.stream_options, request.stream_options.NEUTRAL, "stream_options.")
    if not request.stream:
        raise RequestError("stream_options is only valid with stream: true.", param="stream_options")


def _explain(text: str) -> RequestError:
    """Turns msgspec's message into ours; what follows a pattern not known here may hold values, and is dropped."""
    found = _PATH.search(text)
    path = found["path"] if found else ""
    what = text[: found.start()] if found else text
    prefix = f"{path}." if path else ""
    for start, verb, code in (
        ("Object contains unknown field ", "is not a field of this request", "unknown_parameter"),
        ("Object missing required field ", "is required", "missing_required_parameter"),
    ):
        if what.startswith(start):
            name = prefix + safe_name(what.removeprefix(start).strip("`"))
            return RequestError(f"{name} {verb}.", param=name, code=code)
    subject = path or "The body"
    if what.startswith("Expected "):
        problem = f"has the wrong type or size: e{what[1:]}"
    elif "out of range" in what:
        problem = "is a number too large to handle"
    else:
        problem = "has a value that is not allowed"
    return RequestError(f"{subject} {problem}.", param=path or None, code="invalid_value")


def safe_name(name: str) -> str:
    """A client's field name, fit for a message: short, and of harmless characters only."""
    return _NOT_A_NAME.sub("?", name[:MAX_NAME_CHARS])
