"""An ``EngineClient`` without an engine, and what an ``LLM`` needs around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from engine.api import CompletionOutput, GenerateRequest, ModelLimits, RequestOutput
from engine.entrypoints.llm import LLM
from engine.entrypoints.prompts import PromptEncoder
from engine.errors import RequestError
from engine.metrics.stats import EngineStats
from engine.select import decide
from engine.text.chat_encoding import ChatPrompt

LIMITS = ModelLimits(vocab_size=256, max_model_len=64, kv_capacity_tokens=1024)


class FakeClient:
    """Echoes each prompt token as one delta. Requests submitted first end last.

    Args:
        on_token: called with the request before each delta; may raise.
        hang: streams never end.
    """

    def __init__(
        self,
        on_token: Callable[[GenerateRequest], None] = lambda _: None,
        hang: bool = False,
        start_error: Exception | None = None,
    ) -> None:
        self.requests: list[GenerateRequest] = []
        self.left: list[str] = []
        self.most_open = 0
        self.closed = 0
        self.hang = hang
        self._on_token = on_token
        self._start_error = start_error
        self._open = 0

    async def start(self) -> ModelLimits:
        if self._start_error is not None:
            raise self._start_error
        return LIMITS

    async def generate(self, request: GenerateRequest) -> AsyncIterator[RequestOutput]:
        self.requests.append(request)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        finished = False
        try:
            await asyncio.sleep(max(0.0, 0.02 - 0.002 * len(self.requests)))
            ids = request.prompt_token_ids
            for count, token_id in enumerate(ids, start=1):
                self._on_token(request)
                last = count == len(ids) and not self.hang
                output = CompletionOutput(0, chr(token_id), [token_id], None, "stop" if last else None)
                yield RequestOutput(request.request_id, ids, [output], last)
            while self.hang:
                await asyncio.sleep(3600)
            finished = True
        finally:
            self._open -= 1
            if not finished:
                self.left.append(request.request_id)

    async def abort(self, request_id: str) -> None:
        raise AssertionError("LLM leaves streams; it aborts nothing by name")

    async def stats(self) -> EngineStats:
        return EngineStats(num_running=self._open, requests_finished=len(self.requests) - self._open)

    @property
    def dead(self) -> bool:
        return self.closed > 0

    @property
    def engine_pid(self) -> int | None:
        return None

    async def wait_dead(self) -> str:
        raise AssertionError("not for LLM")

    async def close(self) -> None:
        self.closed += 1


class CharTokenizer:
    """One token a character."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


class BracketChat:
    """``[role:content]`` each; refuses an empty message."""

    def encode(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> ChatPrompt:
        if not all(message["content"] for message in messages):
            raise RequestError("empty message", param="messages")
        text = "".join(f"[{m['role']}:{m['content']}]" for m in messages) + ">" * add_generation_prompt
        return ChatPrompt(text, list(map(ord, text)))


def make_llm(client: FakeClient | None = None, *, tokenizer: bool = True, chat: bool = True, max_open: int = 64) -> LLM:
    tokens: Any = CharTokenizer() if tokenizer else None
    chats: Any = BracketChat() if tokenizer and chat else None
    return LLM._from_client(client or FakeClient(), decide({}), PromptEncoder(tokens, chats), max_open)
