"""One HTTP connection with bounds: uvicorn's httptools protocol has none of its own.

Owns the limits of connections, headers, trailers and of time spent waiting for a client; the
refusals sent before there is a request; and a close that lets a refused client read why.

Bytes are counted twice over. What the parser hands out (request line, header and trailer fields) is
summed, which is exact. What it keeps to itself (half a header, chunk extensions) is bounded by
counting what arrives without any progress.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.entrypoints.openai.errors import RETRY_AFTER_S, HttpError, encode_error
from engine.entrypoints.openai.limits import HttpLimits

#: A refused client may go on sending for this long, unread, before its connection is reset.
LINGER_S = 1.0


class LimitedHttpProtocol(HttpToolsProtocol):
    """Pipelining is declined: what comes before the current answer has ended is dropped, and the
    connection closed after that answer (RFC 9112, 9.3.2 has clients repeat such requests)."""

    def __init__(self, *, limits: HttpLimits, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._limits = limits
        self._refusal: HttpError | None = None
        #: Nothing more is read from this connection.
        self._discarding = False
        self._head_bytes = 0
        self._bytes_without_progress = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(HttpError(503, "The server has too many connections; try again soon.", code="overloaded"))
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = self._linger_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._bytes_without_progress += len(data)
        super().data_received(data)
        if self._discarding or self.transport.is_closing():
            return
        if self._bytes_without_progress > self._limits.max_header_bytes:
            self._refuse(self._headers_too_large())
        elif self._head_timer is None and not self._answering():
            # Bytes between requests stop uvicorn's keep-alive timer; ours takes over.
            self._start_head_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # Parser callbacks; an exception in one makes the parser stop and uvicorn call send_400_response

    def on_message_begin(self) -> None:
        if self._answering():
            raise HttpError(400, "Send one request at a time.")
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + len(": \r\n"))
        if len(self.headers) >= self._limits.max_headers:
            self._fail(HttpError(431, f"The request has more than {self._limits.max_headers} headers."))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and not self._bodiless():
            # httptools drops the body of a request that asks for an upgrade.
            self._fail(HttpError(400, "Send no Upgrade header: this is HTTP/1.1 (Java: Version.HTTP_1_1)."))
        self._stop_head_timer()
        self._bytes_without_progress = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes_without_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_without_progress = 0
        super().on_message_complete()

    # Ends

    def on_response_complete(self) -> None:
        """An answer that came before the end of its request's body ends the connection, gently."""
        if self.transport.is_closing() or not (self._discarding or self.cycle.more_body):
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._close_gently()

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: on a limit of ours, or on bytes that are not HTTP."""
        if not self._answering():
            self._refuse(self._refusal or HttpError(400, "This is not a valid HTTP request.", code="invalid_http"))
        elif self.cycle.more_body:
            # The body is broken, so its request cannot be answered: the app sees a disconnect.
            self.transport.abort()
        else:
            self._discarding = True

    def _unsupported_upgrade_warning(self) -> None:
        """The wish is ignored (RFC 9110, 7.8 allows it), but the parser cannot go on behind it."""
        self._discarding = True

    def _bodiless(self) -> bool:
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._fail(self._headers_too_large())

    def _fail(self, refusal: HttpError) -> None:
        self._refusal = refusal
        raise refusal

    def _headers_too_large(self) -> HttpError:
        limit = self._limits.max_header_bytes
        return HttpError(431, f"The request's headers are larger than {limit} bytes.", code="headers_too_large")

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._bytes_without_progress == 0:
            self.transport.close()
        else:
            self._refuse(HttpError(408, "The request's headers did not arrive in time.", code="timeout"))

    def _refuse(self, error: HttpError) -> None:
        """Answers a connection that has no request yet, and ends it."""
        if self.transport.is_closing() or self._discarding:
            return
        if self._answering():
            self.transport.abort()
            return
        body = encode_error(error)
        head = [
            STATUS_LINE[error.status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n" % len(body),
        ]
        if error.status == 503:
            head.append(b"retry-after: %d\r\n" % RETRY_AFTER_S)
        self.transport.write(b"".join([*head, b"\r\n", body]))
        self._close_gently()

    def _close_gently(self) -> None:
        """Half-closes and drops what still comes: closing with unread bytes would reset the
        connection, and the client would lose the answer (RFC 9112, 9.6)."""
        self._discarding = True
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)
