"""``serve``: sockets, signals and the end of the server.

Owns binding, uvicorn's set-up and the drain:
  first SIGTERM or SIGINT   /health/ready says 503, new requests get 503, open ones go on
  ... all ended, or the deadline: what is left gets a terminal error; then the server ends
  second signal             the deadline is now
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator

import uvicorn
from starlette.applications import Starlette

from engine.entrypoints.openai.http_protocol import LimitedHttpProtocol
from engine.entrypoints.openai.lifecycle import Lifecycle
from engine.entrypoints.openai.limits import HttpLimits
from engine.errors import StartupError

logger = logging.getLogger("engine.http")

BACKLOG = 2048
#: Sockets to the engine, files, listeners.
OTHER_FILES = 256
#: After the drain: the time terminal errors have to leave.
LAST_WORDS_S = 2


async def serve(app: Starlette, host: str, port: int, limits: HttpLimits, on_ready: Callable[[int], None]) -> None:
    """Serves ``app`` (made by ``create_app``) until a signal has ended it; returns when all is closed.

    Cancelling it is the same as two signals.

    Args:
        port: 0 takes a free one.
        on_ready: gets the real port once connections are accepted.

    Raises:
        StartupError: the address cannot be bound.
    """
    lifecycle: Lifecycle = app.state.context.lifecycle
    _allow_files(limits.max_connections + OTHER_FILES)
    with contextlib.closing(bind(host, port)) as listener:
        config = uvicorn.Config(
            app,
            http=functools.partial(LimitedHttpProtocol, limits=limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.keep_alive_s,
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
        real_port: int = listener.getsockname()[1]
        server = _Server(config, lambda: on_ready(real_port))
        drain = _Drain(server, lifecycle, limits.drain_timeout_s)
        with _signals(drain.on_signal):
            try:
                await server.serve(sockets=[listener])
            except asyncio.CancelledError:
                lifecycle.expire()
                if server.started:
                    await server.shutdown(sockets=[listener])
                raise
            finally:
                drain.cancel()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        StartupError: names the address and what to do.
    """
    where = f"{host}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (socket.gaierror, OverflowError, UnicodeError):
        raise StartupError(f"{where} is not an address to listen on; use --host 127.0.0.1 --port 8000.") from None
    except OSError as exc:
        reasons = {
            errno.EADDRINUSE: f"Port {port} is in use; stop its owner or choose another with --port (0: any free one).",
            errno.EACCES: f"Port {port} needs privileges; choose one above 1023 with --port.",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine; use --host 127.0.0.1 or 0.0.0.0.",
        }
        raise StartupError(reasons.get(exc.errno or 0, f"Cannot listen on {where}; try another --port.")) from None


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers and with word of its start."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn would stop listening at once and raise the signal again when done."""
        yield


class _Drain:
    """What signals do to a server."""

    def __init__(self, server: uvicorn.Server, lifecycle: Lifecycle, timeout_s: float) -> None:
        self._server = server
        self._lifecycle = lifecycle
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        if self._task is None:
            logger.info("draining: %d requests, at most %g s", self._lifecycle.in_flight, self._timeout_s)
            self._lifecycle.drain()
            self._task = asyncio.create_task(self._wait_and_stop())
        else:
            self._lifecycle.expire()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait_and_stop(self) -> None:
        """A second signal expires the lifecycle, which empties it, which ends the wait."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._lifecycle.wait_idle()
        except TimeoutError:
            logger.warning("drain deadline: ending %d requests", self._lifecycle.in_flight)
            self._lifecycle.expire()
        self._server.should_exit = True


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Handlers on the running loop; a loop outside the main thread cannot have any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _allow_files(wanted: int) -> None:
    """Raises the soft limit of open files as far as the hard limit lets it, as servers do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning("at most %d files can be open, fewer than max_connections needs (%d)", allowed, wanted)
