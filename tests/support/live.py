"""A live engine for tests: the real client and process, driven from synchronous test code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.api import GenerateRequest, ModelLimits, RequestOutput, SamplingParams
from engine.api.outputs import merge
from engine.api.request import check_request
from engine.config import EngineArgs
from engine.config.resolve import resolve
from engine.metrics.stats import EngineStats
from engine.select import create_client, decide
from engine.text.tokenizer import load_tokenizer

T = TypeVar("T")


class LiveEngine:
    """One engine ("v0" or "v1") with its client on an event loop of its own."""

    def __init__(self, engine: str, **args: Any) -> None:
        self.decision = decide({"ENGINE_V1": "1" if engine == "v1" else "0"})
        self.config = resolve(EngineArgs(**args), self.decision.chosen)
        self.tokenizer = load_tokenizer(self.config.model.source)
        self.client = create_client(self.decision, self.config, self.tokenizer)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._count = 0
        self.limits: ModelLimits = self.run(self.client.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def request(self, prompt: str | list[int], **params: Any) -> GenerateRequest:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        checked = check_request(ids, SamplingParams(**params), self.limits)
        self._count += 1
        return GenerateRequest(f"test-{self._count}", ids, checked, time.time())

    async def collect(self, request: GenerateRequest) -> RequestOutput:
        """The whole output of one request, its deltas added up."""
        total = RequestOutput(request.request_id, request.prompt_token_ids, [], False)
        async for delta in self.client.generate(request):
            assert not total.finished, "an item came after the terminal one"
            merge(total, delta)
        assert total.finished
        return total

    def generate(self, *requests: GenerateRequest) -> list[RequestOutput]:
        """Runs requests together, as one batch."""

        async def together() -> list[RequestOutput]:
            return list(await asyncio.gather(*(self.collect(r) for r in requests)))

        return self.run(together())

    def tokens(self, *requests: GenerateRequest) -> list[list[int]]:
        return [output.outputs[0].token_ids for output in self.generate(*requests)]

    def stats(self) -> EngineStats:
        return self.run(self.client.stats())

    def wait_idle(self, deadline_s: float = 2.0) -> EngineStats:
        """Waits until nothing runs, then checks that an idle engine holds nothing."""
        end = time.monotonic() + deadline_s
        while (stats := self.stats()).num_running or stats.num_waiting:
            assert time.monotonic() < end, f"still busy: {stats}"
            time.sleep(0.01)
        assert stats.slots_used == 0, stats
        assert stats.kv_blocks_free == stats.kv_blocks_total, stats
        return stats

    def close(self) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
