"""The outermost ASGI layer: every request passes here once on its way in and once on its way out.

Owns the API key, the request id, the headers every answer carries, the request counter, the log
line, and the last word on errors nobody expected. Paths not on the open list need the key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.errors import ClientDisconnected, HttpError, error_response

logger = logging.getLogger("engine.http")

#: nginx's status for "the client hung up"; it is counted, never sent.
STATUS_DISCONNECTED = 499
_LABEL = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class ServerLayer:
    """Wraps the app. ``open_paths`` need no key."""

    def __init__(self, app: ASGIApp, *, ctx: ServerContext, api_key: str | None, open_paths: frozenset[str]) -> None:
        self._app = app
        self._ctx = ctx
        self._key_hash = None if api_key is None else _hash(api_key.encode())
        self._open_paths = open_paths
        self._engine = ctx.info.decision.chosen.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = uuid.uuid4().hex
        label = _label(headers)
        scope.setdefault("state", {}).update(request_id=request_id, user=None)
        extra = [(b"x-engine", self._engine), (b"x-request-id", (label or request_id).encode())]
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            await self._handle(scope, headers, receive, send_with_headers)
        except ClientDisconnected:
            status = STATUS_DISCONNECTED
        except Exception as exc:
            if not isinstance(exc, HttpError):
                logger.exception("request %s failed", request_id)
            if status:
                raise
            await error_response(exc)(scope, receive, send_with_headers)
        finally:
            self._count(scope, status, started, label)

    async def _handle(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Denies by default: a path is open because it is on the list, not because a rule missed it."""
        if self._key_hash is not None and scope["path"] not in self._open_paths:
            sent = headers.getlist("authorization")
            scheme, _, key = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
            matches = hmac.compare_digest(_hash(key.strip().encode("latin-1")), self._key_hash)
            if scheme.lower() != "bearer" or not matches:
                raise HttpError(
                    401,
                    "This server needs its API key: send the header Authorization: Bearer <key>.",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
        await self._app(scope, receive, send)

    def _count(self, scope: Scope, status: int, started: float, label: str | None) -> None:
        """Work and failures are logged; what probes and pages read all the time is not."""
        milliseconds = (time.perf_counter() - started) * 1e3
        method, route = scope["method"], scope.get("route_path", "none")
        self._ctx.metrics.http_requests[route, method, status] += 1
        level = logging.DEBUG if method in ("GET", "HEAD") and status < 400 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        request_id, user = scope["state"]["request_id"], scope["state"]["user"]
        names = "" if label is None else f" label={label}"
        names += "" if user is None else f" user={user[:64]!r}"
        logger.log(level, "%s %s %d %.0f ms id=%s%s", method, route, status, milliseconds, request_id, names)


def _hash(key: bytes) -> bytes:
    """Equal lengths for ``compare_digest``, and no key in memory dumps of this object."""
    return hashlib.sha256(key).digest()


def _label(headers: Headers) -> str | None:
    """The client's own id of its request, if it is short and harmless; ours is used everywhere else."""
    value = headers.get("x-request-id", "")
    return value if _LABEL.fullmatch(value) else None
