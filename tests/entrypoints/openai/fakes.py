"""A scripted ``EngineClient`` and a toy model's facts: the frontend's tests need no engine and no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from engine.api import CompletionOutput, GenerateRequest, Logprob, ModelLimits, RequestOutput
from engine.config import (
    ModelSource,
)
from engine.entrypoints.openai.app import create_app
from engine.entrypoints.openai.context import ServerInfo
from engine.entrypoints.openai.limits import HttpLimits
from engine.metrics.stats import EngineStats
from engine.select import EngineDecision
from engine.text.chat_template import ChatTemplate
from tests.support.configs import tiny_config
from tests.text import toys

VOCAB_SIZE = 300
MAX_MODEL_LEN = 128
MODEL = "toy/model"
LIMITS = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, kv_capacity_tokens=4096)


#: One token a byte, a few merges, and the special tokens of ``toys``.
TOKENIZER = toys.byte_level()
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATE = ChatTemplate(TURNS + "{% if add_generation_prompt %}assistant:{% endif %}", {})


@dataclass
class Script:
    """What the fake engine answers to one request: deltas, then how it ends."""

    texts: list[str] = field(default_factory=lambda: ["Hel", "lo", " there"])
    delay_s: float = 0.0
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    #: Raised before delta number ``fail_at``.
    error: Exception | None = None
    fail_at: int = 0
    #: Ends the stream without a finish reason: a bug in an engine.
    truncated: bool = False


class FakeClient:
    """Answers every request by ``script(request)`` and remembers what was asked and aborted."""

    def __init__(self, script: Callable[[GenerateRequest], Script] | Script | None = None) -> None:
        self._script = script or Script()
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.dead = False
        self.engine_pid = 4711
        self.stats_delay_s = 0.0
        #: Deltas handed out, all requests together.
        self.num_deltas = 0

    async def start(self) -> ModelLimits:
        return LIMITS

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput, None]:
        script = self._script(request) if callable(self._script) else self._script
        self.requests.append(request)
        self.running.add(request.request_id)
        try:
            for i, text in enumerate(script.texts):
                await asyncio.sleep(script.delay_s)
                if script.error is not None and i == script.fail_at:
                    raise script.error
                self.num_deltas += 1
                last = i == len(script.texts) - 1 and not script.truncated
                yield self._delta(request, script, text, last)
            self.running.discard(request.request_id)
        finally:
            if request.request_id in self.running:
                self.running.discard(request.request_id)
                self.aborted.append(request.request_id)

    @staticmethod
    def _delta(request: GenerateRequest, script: Script, text: str, last: bool) -> RequestOutput:
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        logprobs = None
        if request.params.logprobs is not None:
            k = request.params.logprobs
            others = {(i + j) % 200: Logprob(-2.0 - j, j + 1) for i in ids[:1] for j in range(1, k + 1)}
            logprobs = [{i: Logprob(-0.5, 1), **others} for i in ids]
        reason: Any = script.finish_reason if last else None
        output = CompletionOutput(0, text, ids, logprobs, reason, script.stop_reason if last else None)
        return RequestOutput(request.request_id, request.prompt_token_ids, [output], last, num_cached_tokens=2)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def stats(self) -> EngineStats:
        await asyncio.sleep(self.stats_delay_s)
        return EngineStats(num_running=len(self.running), kv_blocks_total=10, kv_blocks_free=5, prompt_tokens=7)

    async def close(self) -> None:
        self.dead = True


def make_info(limits: ModelLimits | None = LIMITS, model_name: str = MODEL) -> ServerInfo:
    config = tiny_config(
        model="/srv/secret/models/toy",
        served_name=model_name,
        source=ModelSource(kind="gguf", path="/srv/secret/models/toy.gguf", files=("/srv/secret/models/toy.gguf",)),
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        skip_tokenizer_init=False,
    )
    return ServerInfo(
        decision=EngineDecision("v1", "v1", "environment", ("ENGINE_V1=1",)),
        config=config,
        version="0.0.test",
        model_name=model_name,
        created=1_700_000_000,
        limits=limits,
        capabilities=({"feature": "chat", "v0": "proven", "v1": "proven"},),
    )


def make_app(client: FakeClient, **overrides: Any) -> Any:
    """The app on a fake engine; ``http`` replaces limits, ``info``, ``tokenizer``, ``api_key`` as named."""
    return create_app(
        client,
        overrides.get("info") or make_info(),
        overrides.get("tokenizer", TOKENIZER),
        overrides.get("template", TEMPLATE),
        overrides.get("http") or HttpLimits(),
        api_key=overrides.get("api_key"),
    )
