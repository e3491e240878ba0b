"""Where the server is between its start and its end, and which requests are being answered.

Owns the phase, admission (limits of concurrency, refusals while starting or draining), and the
cut-off of what is left when a drain runs out of time. It knows nothing of sockets or signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from starlette.types import Receive

from engine.api import ModelLimits
from engine.entrypoints.openai.errors import ClientDisconnected
from engine.errors import OverloadedError

T = TypeVar("T")


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """Phase: starting -> serving -> draining. Use it from one event loop."""

    def __init__(self, max_concurrent: int) -> None:
        self.phase = Phase.STARTING
        #: Set when the drain's deadline has passed: what is still running is being cut off.
        self.expired = False
        self.in_flight = 0
        self._max_concurrent = max_concurrent
        self._limits: ModelLimits | None = None
        self._work: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def model_limits(self) -> ModelLimits | None:
        """Known once the engine is ready."""
        return self._limits

    def serving(self, limits: ModelLimits) -> None:
        """The engine is ready; requests are admitted from now on."""
        self._limits = limits
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    def drain(self) -> None:
        """Admits nothing more; what is running goes on."""
        self.phase = Phase.DRAINING

    async def wait_idle(self) -> None:
        """Returns when no request is being answered."""
        await self._idle.wait()

    def expire(self) -> None:
        """Ends what is still running; each request gets a terminal error."""
        self.phase = Phase.DRAINING
        self.expired = True
        for task in self._work:
            task.cancel()

    @contextmanager
    def admit(self) -> Iterator[ModelLimits]:
        """Counts one request from here to the end of its answer.

        Raises:
            OverloadedError: starting, draining, or too many requests are being answered.
        """
        if self._limits is None:
            raise OverloadedError("The engine is starting; try again soon.", code="starting")
        if self.phase is Phase.DRAINING:
            raise OverloadedError("The server is shutting down; use another one.", code="draining")
        if self.in_flight >= self._max_concurrent:
            raise OverloadedError(
                f"The server is answering {self._max_concurrent} requests, its limit; try again soon.",
                code="too_many_requests",
            )
        self.in_flight += 1
        self._idle.clear()
        try:
            yield self._limits
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def run(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` until it ends, its client hangs up, or the drain's deadline passes.

        ``work`` is cancelled in the latter two cases, and has ended when this returns. The body must
        have been read: the next message of ``receive`` is the client's hanging up.

        Raises:
            ClientDisconnected: the client left first.
            OverloadedError: the deadline came first, and ``work`` did not handle its cancellation.
        """
        task = asyncio.create_task(work)
        watcher = asyncio.create_task(_wait_for_disconnect(receive))
        self._work.add(task)
        if self.expired:
            task.cancel()
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnected
            if task.cancelled():
                raise OverloadedError("The server shut down before this request finished.", code="draining")
            return task.result()
        finally:
            self._work.discard(task)
            task.cancel()
            watcher.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
