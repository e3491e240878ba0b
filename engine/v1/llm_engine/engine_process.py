"""The V1 core's process: ``EngineCore`` between two sockets. Run with ``python -m``.

Three threads. The input thread receives and decodes, the output thread encodes and sends, and the
main thread does nothing but step: no socket is touched between two steps. It sleeps only when
there is nothing to compute.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from engine.errors import OverloadedError, RequestError
from engine.ipc.child import Boot, Ready, run_child
from engine.ipc.link import EngineSockets
from engine.v1.core.request import FinishCause, Finished
from engine.v1.executor.uniproc import UniprocExecutor
from engine.v1.llm_engine.engine_core import EngineCore
from engine.v1.llm_engine.messages import (
    AbortRequests,
    AddRequest,
    EngineOutput,
    EngineRequest,
    GetStats,
    RequestFailed,
    StatsReply,
    StepOutputs,
)

log = logging.getLogger(__name__)

Sockets = EngineSockets[EngineRequest, EngineOutput]


class EngineProcess:
    """Serves one ``EngineCore`` until the process is killed or something fatal happens."""

    def __init__(self, core: EngineCore, sockets: Sockets) -> None:
        self._core = core
        self._sockets = sockets
        #: Requests, or the error that ended one of the two socket threads.
        self._inbox: SimpleQueue[EngineRequest | Exception] = SimpleQueue()
        self._outbox: SimpleQueue[EngineOutput] = SimpleQueue()

    def run(self) -> None:
        """Never returns. An exception of ``step`` ends the process: no request can be trusted after it."""
        for name, work in (("input", self._receive), ("output", self._send)):
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()
        while True:
            self._take_requests()
            if self._core.has_work:
                self._outbox.put(self._core.step())

    def _take_requests(self) -> None:
        """Handles all that has arrived; with nothing to compute, sleeps until something does."""
        try:
            self._handle(self._inbox.get(block=not self._core.has_work))
            while True:
                self._handle(self._inbox.get_nowait())
        except Empty:
            return

    def _handle(self, request: EngineRequest | Exception) -> None:
        match request:
            case AddRequest():
                self._add(request)
            case AbortRequests(handles=handles):
                ended = self._core.abort(handles)
                if ended is not None:
                    self._outbox.put(ended)
            case GetStats(call_id=call_id):
                self._outbox.put(StatsReply(call_id, self._core.stats()))
            case Exception():
                raise request

    def _add(self, add: AddRequest) -> None:
        """Whatever goes wrong here is this request's error and nobody else's."""
        try:
            self._core.add(add)
        except RequestError as error:
            overloaded = isinstance(error, OverloadedError)
            self._outbox.put(RequestFailed(add.handle, error.message, error.param, error.code, overloaded))
        except Exception:
            log.exception("A request could not be added.")
            self._core.abort([add.handle])
            self._outbox.put(StepOutputs([], [], [Finished(add.handle, FinishCause.ERROR)]))

    def _receive(self) -> None:
        while True:
            request = self._sockets.receive(timeout_ms=None)
            if request is not None:
                self._inbox.put(request)

    def _send(self) -> None:
        while True:
            self._sockets.send(self._outbox.get())

    def _guarded(self, work: Callable[[], None]) -> None:
        """A socket thread must not end in silence: its error becomes the main thread's."""
        try:
            work()
        except Exception as error:
            self._inbox.put(error)


def main(boot: Boot, ready: Callable[[Ready], None]) -> None:
    """Builds the core, says so, and serves."""
    started = time.perf_counter()
    core = EngineCore(boot.config, UniprocExecutor(boot.config))
    built = time.perf_counter()
    sockets: Sockets = EngineSockets(boot, EngineRequest, EngineOutput)
    # What start-up made lives for ever; the collector need not look at it between steps.
    gc.collect()
    gc.freeze()
    ready(Ready(core.limits, {"model": built - started}))
    EngineProcess(core, sockets).run()


if __name__ == "__main__":
    run_child(main)
