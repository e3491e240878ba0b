"""``V1Client``: V1 as the HTTP server and ``LLM`` see it. Torch-free.

Owns the engine process and the names of requests in it (handles). What their tokens mean as text
is ``output_processor.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator

import msgspec

from engine.api import GenerateRequest, ModelLimits, RequestOutput
from engine.api.request import check_request
from engine.config import EngineConfig
from engine.errors import EngineDeadError, OverloadedError, RequestError
from engine.ipc.link import EngineLink
from engine.metrics.stats import EngineStats
from engine.text.tokenizer import Tokenizer, load_tokenizer
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
from engine.v1.llm_engine.output_processor import OutputProcessor

log = logging.getLogger(__name__)

ENGINE_MODULE = "engine.v1.llm_engine.engine_process"


class V1Client:
    """Implements ``EngineClient`` (``engine/client.py``) over one engine process.

    ``tokenizer`` saves loading it again where the caller has it already.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None = None) -> None:
        if tokenizer is None and not config.model.skip_tokenizer_init:
            tokenizer = load_tokenizer(config.model.source)
        self._has_tokenizer = tokenizer is not None
        self._link: EngineLink[EngineRequest, EngineOutput] = EngineLink(
            ENGINE_MODULE, config, EngineRequest, EngineOutput
        )
        self._processor = OutputProcessor(tokenizer)
        self._limits: ModelLimits | None = None
        self._receiver: asyncio.Task[None] | None = None
        #: Handles of requests being read, by the id their caller knows them by.
        self._handles: dict[str, int] = {}
        self._stats_calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._numbers = itertools.count()

    @property
    def dead(self) -> bool:
        return self._link.dead

    @property
    def engine_pid(self) -> int | None:
        return self._link.pid

    async def start(self) -> ModelLimits:
        ready = await self._link.start(self._on_death)
        self._limits = ready.limits
        self._receiver = asyncio.create_task(self._receive(), name="v1-outputs")
        return ready.limits

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        request = self._checked(request)
        handle = next(self._numbers)
        mailbox = self._processor.open(handle, request)
        self._handles[request.request_id] = handle
        try:
            await self._link.send(AddRequest(handle, request.prompt_token_ids, request.params))
            finished = False
            while not finished:
                output = await mailbox.get()
                finished = output.finished
                yield output
        finally:
            del self._handles[request.request_id]
            # Still open means that the engine has not ended it: the reader left.
            if self._processor.close(handle):
                await self._abort([handle])

    async def abort(self, request_id: str) -> None:
        handle = self._handles.get(request_id)
        if handle is not None:
            await self._abort([handle])

    async def stats(self) -> EngineStats:
        call_id = next(self._numbers)
        reply: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats_calls[call_id] = reply
        try:
            await self._link.send(GetStats(call_id))
            return await reply
        finally:
            del self._stats_calls[call_id]

    async def wait_dead(self) -> str:
        return await self._link.wait_dead()

    async def close(self) -> None:
        if self._receiver is not None:
            self._receiver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._receiver
        await self._link.close()
        self._fail_all("The engine was closed before this request finished.")

    # -- requests -----------------------------------------------------------------------------------

    def _checked(self, request: GenerateRequest) -> GenerateRequest:
        """The request as it can be served; nothing is remembered yet."""
        if self._limits is None:
            raise EngineDeadError("The engine has not been started.")
        if request.request_id in self._handles:
            raise RequestError(f"The request id {request.request_id!r} is in use; give each request its own.")
        if request.params.stop and not self._has_tokenizer:
            raise RequestError("stop strings need a tokenizer; use stop_token_ids instead.", param="stop")
        params = check_request(request.prompt_token_ids, request.params, self._limits)
        return msgspec.structs.replace(request, params=params)

    async def _abort(self, handles: list[int]) -> None:
        with contextlib.suppress(EngineDeadError):
            await self._link.send(AbortRequests(handles))

    # -- answers ------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Takes in messages until the client closes; one that cannot be handled ends the engine."""
        try:
            while True:
                await self._handle(await self._link.receive())
        except Exception:
            log.exception("A message of the engine process could not be handled; the process is ended.")
            await self._link.close()
            self._fail_all("The engine failed before this request finished.")

    async def _handle(self, message: EngineOutput) -> None:
        match message:
            case StepOutputs():
                to_abort = self._processor.process(message)
                if to_abort:
                    await self._abort(to_abort)
            case RequestFailed(handle=handle, message=text, param=param, code=code, overloaded=overloaded):
                error = OverloadedError if overloaded else RequestError
                self._processor.fail(handle, error(text, param=param, code=code))
            case StatsReply(call_id=call_id, stats=stats):
                reply = self._stats_calls.get(call_id)
                if reply is not None and not reply.done():
                    reply.set_result(stats)

    def _on_death(self, how: str) -> None:
        log.error("The engine process ended: %s.", how)
        self._fail_all("The engine process ended before this request finished.")

    def _fail_all(self, message: str) -> None:
        """Every open stream and call ends here, once."""
        self._processor.fail_all(message)
        for reply in self._stats_calls.values():
            if not reply.done():
                reply.set_exception(EngineDeadError(message))
