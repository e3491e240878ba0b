"""Server-sent events: the answer of a streaming request.

Owns the wire rules. Every stream that has begun ends by exactly one of
  - an event with ``finish_reason`` (one a choice), then ``[DONE]``;
  - an ``error`` event, then ``[DONE]``.
If that cannot be sent the connection is cut inside its chunked body, which no client takes for an end.

The status line waits for the first event, so what fails before it fails with a status of its own.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.types import Receive, Scope, Send

from engine.entrypoints.openai.errors import encode_error
from engine.entrypoints.openai.lifecycle import Lifecycle
from engine.errors import EngineDeadError, OverloadedError, RequestError

logger = logging.getLogger("engine.http")

DONE = b"data: [DONE]\n\n"
#: A client that does not read cannot hold up the end of a drain for longer.
LAST_WORDS_S = 1.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies (nginx) must pass events on one by one.
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


def sse_event(message: msgspec.Struct) -> bytes:
    """One event. JSON has no raw newlines, so one ``data`` line always suffices."""
    return b"data: %b\n\n" % _encode(message)


class EventStream:
    """An ASGI answer: sends blocks of events as they come.

    ``blocks`` yields bytes of one or more whole events, up to the last ``finish_reason`` (and
    usage); this class adds ``[DONE]`` or the error. It is closed in any case, which aborts what it runs.
    """

    def __init__(self, blocks: AsyncGenerator[bytes, None], lifecycle: Lifecycle) -> None:
        self._blocks = blocks
        self._lifecycle = lifecycle
        self._started = False
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._lifecycle.run(receive, self._pump(send))

    async def _pump(self, send: Send) -> None:
        """``send`` waits while the client does not read, and then nothing is taken from the engine."""
        try:
            async with aclosing(self._blocks):
                async for block in self._blocks:
                    if not self._started:
                        await self._start(send)
                    await send({"type": "http.response.body", "body": block, "more_body": True})
            self._complete = True
            await send({"type": "http.response.body", "body": DONE})
        except asyncio.CancelledError:
            if not (self._started and self._lifecycle.expired):
                raise
            await self._end_by_drain(send)
        except Exception as exc:
            if not self._started:
                raise
            if not isinstance(exc, (RequestError, EngineDeadError)):
                logger.exception("a stream failed")
            await self._end(send, exc)

    async def _start(self, send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def _end_by_drain(self, send: Send) -> None:
        async with asyncio.timeout(LAST_WORDS_S):
            if self._complete:
                await send({"type": "http.response.body", "body": DONE})
            else:
                error = OverloadedError("The server shut down before this request finished.", code="draining")
                await self._end(send, error)

    async def _end(self, send: Send, error: BaseException) -> None:
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % encode_error(error) + DONE})
