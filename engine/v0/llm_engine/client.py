"""``V0Client``: V0 as the HTTP server and ``LLM`` see it. Torch-free.

Owns the open streams of this process. Texts and ends come ready-made from the engine process;
only the prompt, which never crosses back, is added here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator

import msgspec

from engine.api import GenerateRequest, ModelLimits, RequestOutput
from engine.api.mailbox import Mailbox
from engine.api.request import check_request
from engine.config import EngineConfig
from engine.errors import EngineDeadError, OverloadedError, RequestError
from engine.ipc.link import EngineLink
from engine.metrics.stats import EngineStats
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

ENGINE_MODULE = "engine.v0.llm_engine.engine_process"


class V0Client:
    """Implements ``EngineClient`` (``engine/client.py``) over one engine process."""

    def __init__(self, config: EngineConfig) -> None:
        self._link: EngineLink[EngineRequest, EngineOutput] = EngineLink(
            ENGINE_MODULE, config, EngineRequest, EngineOutput
        )
        self._max_open = config.scheduler.max_num_seqs + config.scheduler.max_num_waiting
        self._limits: ModelLimits | None = None
        self._receiver: asyncio.Task[None] | None = None
        #: Requests that the engine process still works on.
        self._streams: dict[str, Mailbox] = {}
        self._stats_calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._call_ids = itertools.count()

    @property
    def dead(self) -> bool:
        return self._link.dead

    @property
    def engine_pid(self) -> int | None:
        return self._link.pid

    async def start(self) -> ModelLimits:
        ready = await self._link.start(self._on_death)
        self._limits = ready.limits
        self._receiver = asyncio.create_task(self._receive(), name="v0-outputs")
        return ready.limits

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        add = self._checked(request)
        mailbox = self._streams[request.request_id] = Mailbox()
        try:
            await self._link.send(add)
            finished = False
            while not finished:
                output = await mailbox.get()
                finished = output.finished
                output.prompt_token_ids = request.prompt_token_ids
                output.prompt = request.prompt
                yield output
        finally:
            # Still listed means that the engine has not ended it: the reader left.
            if self._streams.pop(request.request_id, None) is not None:
                with contextlib.suppress(EngineDeadError):
                    await self._link.send(AbortRequest(request.request_id))

    async def abort(self, request_id: str) -> None:
        if request_id in self._streams:
            with contextlib.suppress(EngineDeadError):
                await self._link.send(AbortRequest(request_id))

    async def stats(self) -> EngineStats:
        call_id = next(self._call_ids)
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

    def _checked(self, request: GenerateRequest) -> AddRequest:
        """The message that starts ``request``, if it can be served; nothing is remembered yet."""
        if self._limits is None:
            raise EngineDeadError("The engine has not been started.")
        if request.request_id in self._streams:
            raise RequestError(f"The request id {request.request_id!r} is in use; give each request its own.")
        params = check_request(request.prompt_token_ids, request.params, self._limits)
        if len(self._streams) >= self._max_open:
            raise OverloadedError(f"{len(self._streams)} requests are open, which is the limit; try again later.")
        return AddRequest(msgspec.structs.replace(request, params=params, prompt=None))

    # -- answers ------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Takes in messages until the client closes; one that cannot be handled ends the engine."""
        try:
            while True:
                self._handle(await self._link.receive())
        except Exception:
            log.exception("A message of the engine process could not be handled; the process is ended.")
            await self._link.close()
            self._fail_all("The engine failed before this request finished.")

    def _handle(self, message: EngineOutput) -> None:
        """Hands a message to whom it is for. Answers to streams that were left find nobody."""
        match message:
            case StepOutputs(outputs=outputs):
                for output in outputs:
                    self._deliver(output)
            case RequestFailed(request_id=request_id, message=text, param=param, code=code):
                mailbox = self._streams.pop(request_id, None)
                if mailbox is not None:
                    mailbox.fail(RequestError(text, param=param, code=code))
            case StatsReply(call_id=call_id, stats=stats):
                reply = self._stats_calls.get(call_id)
                if reply is not None and not reply.done():
                    reply.set_result(stats)

    def _deliver(self, output: RequestOutput) -> None:
        mailbox = self._streams.get(output.request_id)
        if mailbox is None:
            return
        if output.finished:
            del self._streams[output.request_id]
        mailbox.put(output)

    def _on_death(self, how: str) -> None:
        log.error("The engine process ended: %s.", how)
        self._fail_all("The engine process ended before this request finished.")

    def _fail_all(self, message: str) -> None:
        """Every open stream and call ends here, once, each with an exception of its own."""
        streams, self._streams = self._streams, {}
        for mailbox in streams.values():
            mailbox.fail(EngineDeadError(message))
        for reply in self._stats_calls.values():
            if not reply.done():
                reply.set_exception(EngineDeadError(message))
