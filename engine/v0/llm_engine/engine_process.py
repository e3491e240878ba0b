"""V0's engine process: ``LLMEngine`` between two sockets. Run with ``python -m``.

One thread does everything in turn: take in requests, step, send outputs. That is V0's design;
requests that arrive during a step wait for its end. The driver worker lives in this process.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

from engine.api import CompletionOutput, GenerateRequest, RequestOutput
from engine.errors import RequestError
from engine.ipc.child import Boot, Ready, run_child
from engine.ipc.link import EngineSockets
from engine.text.tokenizer import load_tokenizer
from engine.v0.executor.uniproc import UniprocExecutor
from engine.v0.llm_engine.llm_engine import LLMEngine
from engine.v0.llm_engine.messages import (
    AbortRequest,
    AddRequest,
    EngineOutput,
    EngineRequest,
    GetStats,
    RequestFailed,
    StatsReply,
    StepOutputs,
)

log = logging.getLogger(__name__)


class EngineProcess:
    """Serves one ``LLMEngine`` until the process is killed or a step fails."""

    def __init__(self, engine: LLMEngine, sockets: EngineSockets[EngineRequest, EngineOutput]) -> None:
        self._engine = engine
        self._sockets = sockets

    def run(self) -> None:
        """Never returns. An exception of ``step`` ends the process: no request can be trusted after it."""
        while True:
            self._take_requests()
            if self._engine.has_work:
                outputs = self._engine.step()
                if outputs:
                    self._sockets.send(StepOutputs(outputs))

    def _take_requests(self) -> None:
        """Handles all that has arrived; with nothing to compute, sleeps until something does."""
        request = self._sockets.receive(timeout_ms=0 if self._engine.has_work else None)
        while request is not None:
            self._handle(request)
            request = self._sockets.receive(timeout_ms=0)

    def _handle(self, request: EngineRequest) -> None:
        match request:
            case AddRequest(request=add):
                self._add(add)
            case AbortRequest(request_id=request_id):
                output = self._engine.abort_request(request_id)
                if output is not None:
                    self._sockets.send(StepOutputs([output]))
            case GetStats(call_id=call_id):
                self._sockets.send(StatsReply(call_id, self._engine.stats()))

    def _add(self, request: GenerateRequest) -> None:
        """Whatever goes wrong here is this request's error and nobody else's."""
        try:
            self._engine.add_request(request)
        except RequestError as error:
            self._sockets.send(RequestFailed(request.request_id, error.message, error.param, error.code))
        except Exception:
            log.exception("Request %s could not be added.", request.request_id)
            failed = CompletionOutput(0, "", [], finish_reason="error")
            self._sockets.send(StepOutputs([RequestOutput(request.request_id, [], [failed], finished=True)]))


def main(boot: Boot, ready: Callable[[Ready], None]) -> None:
    """Builds the engine, says so, and serves."""
    config = boot.config
    started = time.perf_counter()
    tokenizer = None if config.model.skip_tokenizer_init else load_tokenizer(config.model.source)
    tokenizer_loaded = time.perf_counter()
    executor = UniprocExecutor(config)
    engine = LLMEngine(config, executor, tokenizer)
    model_loaded = time.perf_counter()
    sockets: EngineSockets[EngineRequest, EngineOutput] = EngineSockets(boot, EngineRequest, EngineOutput)
    # What start-up made lives for ever; the collector need not look at it between steps.
    gc.collect()
    gc.freeze()
    ready(Ready(engine.limits, {"tokenizer": tokenizer_loaded - started, "model": model_loaded - tokenizer_loaded}))
    EngineProcess(engine, sockets).run()


if __name__ == "__main__":
    run_child(main)
