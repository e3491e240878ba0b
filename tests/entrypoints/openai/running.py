"""The app behind real sockets, in a thread: for limits, timeouts and hang-ups."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import uvloop

from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.server import serve
from tests.entrypoints.openai.fakes import FakeClient, make_app


class RunningServer:
    """Use as a context manager. ``raw`` speaks bytes."""

    def __init__(self, client: FakeClient, http: HttpLimits | None = None, **overrides: Any) -> None:
        self.client = client
        self.http = http or HttpLimits()
        self.app = make_app(client, http=self.http, **overrides)
        self.port = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lifecycle(self) -> Any:
        return self.app.state.context.lifecycle

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loop is not None and self._task is not None
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def call(self, function: Any) -> None:
        """Runs ``function`` on the server's loop."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(function)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def raw(self, data: bytes) -> bytes:
        """Sends bytes, and reads until the server closes."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            return read_all(connection)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            uvloop.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

        def on_ready(port: int) -> None:
            self.port = port
            self._ready.set()

        await serve(self.app, "127.0.0.1", 0, self.http, on_ready)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def request_bytes(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """A request that asks the server to close afterwards."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: test",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
