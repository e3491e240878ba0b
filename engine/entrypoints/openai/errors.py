"""How errors look on the wire: OpenAI's JSON shape, whatever went wrong.

Owns the rendering and the HTTP-only error classes. Texts name fields, limits and ways out; they
never contain what the client sent, nor anything about our insides.
"""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from engine.entrypoints.openai.responses import ErrorDetail, ErrorResponse
from engine.errors import EngineDeadError, RequestError

#: Seconds a client should wait before it tries an overloaded server again.
RETRY_AFTER_S = 1

_encode = msgspec.json.Encoder().encode


class HttpError(RequestError):
    """A request that HTTP itself rejects: wrong method, type, size, or key."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.headers = headers or {}


class ClientDisconnected(Exception):
    """The client hung up before its answer was complete; there is nobody left to tell."""


def error_detail(exc: BaseException) -> ErrorDetail:
    """What the client may know about ``exc``; anything not raised on purpose is "internal"."""
    if isinstance(exc, RequestError):
        return ErrorDetail(exc.message, exc.kind, exc.param, exc.code)
    if isinstance(exc, EngineDeadError):
        return ErrorDetail(exc.message, exc.kind)
    return ErrorDetail("The server failed to process this request; its log says why.", "internal_error")


def encode_error(exc: BaseException) -> bytes:
    """The JSON document of ``exc``."""
    return _encode(ErrorResponse(error_detail(exc)))


def error_response(exc: BaseException) -> Response:
    """The HTTP answer for ``exc``, when no part of another answer has been sent."""
    status = exc.status if isinstance(exc, (RequestError, EngineDeadError)) else 500
    headers = dict(exc.headers) if isinstance(exc, HttpError) else {}
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(encode_error(exc), status, headers, "application/json")


async def on_error(request: Request, exc: Exception) -> Response:
    """Starlette's handler for ``RequestError`` and ``EngineDeadError``."""
    return error_response(exc)


async def on_http_exception(request: Request, exc: Exception) -> Response:
    """Starlette's own errors: in this app only an unknown route (404) or a wrong method (405)."""
    assert isinstance(exc, HTTPException)
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        message = f"This route does not take this method; use {allowed}." if allowed else "Wrong method."
        return error_response(HttpError(405, message, code="method_not_allowed", headers={"allow": allowed}))
    return error_response(HttpError(404, "There is no such route; GET /openapi.json lists them.", code="not_found"))
