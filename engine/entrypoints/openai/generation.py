"""One prompt on its way through the engine: submit, watch, measure.

Owns the frontend's view of a running request (token counts, times, how it ended) and merging the
streams of several prompts. What the tokens look like on the wire belongs to ``chat.py`` and
``completion.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.api import CompletionOutput, GenerateRequest, ModelLimits, RequestOutput, SamplingParams
from engine.api.request import check_request
from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.responses import PromptTokensDetails, Usage
from engine.errors import EngineDeadError


class Generation:
    """A checked prompt, and what has come back for it so far."""

    def __init__(self, ctx: ServerContext, request: GenerateRequest, index: int) -> None:
        self.request = request
        self.index = index
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self._client = ctx.client
        self._metrics = ctx.metrics
        self._started = time.perf_counter()
        self._first_token_at = 0.0
        self._last_token_at = 0.0

    async def outputs(self) -> AsyncGenerator[CompletionOutput, None]:
        """Yields what is new since the previous item; the last has ``finish_reason`` set.

        Raises:
            RequestError: the engine refused the request.
            EngineDeadError: the engine ended, or gave up on this request.
        """
        outcome = "error"
        # Closing the stream is what aborts the request.
        stream = self._client.generate(self.request)
        try:
            async with aclosing(stream):
                async for item in stream:
                    output = item.outputs[0]
                    if output.finish_reason in ("abort", "error"):
                        raise EngineDeadError("The engine gave up on this request.")
                    self._record(item, output)
                    if output.finish_reason is not None:
                        outcome = output.finish_reason
                    yield output
                    if output.finish_reason is not None:
                        return
            raise EngineDeadError
        except (GeneratorExit, asyncio.CancelledError):
            outcome = "abort" if outcome == "error" else outcome
            raise
        finally:
            self._finished(outcome)

    def _record(self, item: RequestOutput, output: CompletionOutput) -> None:
        new_tokens = len(output.token_ids)
        if new_tokens == 0:
            return
        now = time.perf_counter()
        if self.num_tokens == 0:
            self._first_token_at = now
            self.num_cached_tokens = item.num_cached_tokens
            self._metrics.time_to_first_token.observe(now - self._started)
        else:
            # Merged deltas: the gap belongs to all the tokens that came in it.
            self._metrics.inter_token_latency.observe((now - self._last_token_at) / new_tokens, new_tokens)
        self.num_tokens += new_tokens
        self._last_token_at = now

    def _finished(self, outcome: str) -> None:
        metrics = self._metrics
        metrics.requests_finished[outcome] += 1
        metrics.prompt_tokens += len(self.request.prompt_token_ids)
        metrics.generation_tokens += self.num_tokens
        metrics.e2e_latency.observe(time.perf_counter() - self._started)
        if self.num_tokens > 1:
            span = self._last_token_at - self._first_token_at
            metrics.time_per_output_token.observe(span / (self.num_tokens - 1))


def prepare(
    ctx: ServerContext, limits: ModelLimits, request_id: str, prompts: list[list[int]], params: SamplingParams
) -> list[Generation]:
    """Checks all prompts before any is submitted.

    Raises:
        RequestError: a prompt or the params do not fit the model.
    """
    now = time.time()
    generations = []
    for index, token_ids in enumerate(prompts):
        checked = check_request(token_ids, params, limits)
        engine_id = request_id if len(prompts) == 1 else f"{request_id}-{index}"
        generations.append(Generation(ctx, GenerateRequest(engine_id, token_ids, checked, now), index))
    return generations


def usage_of(generations: list[Generation]) -> Usage:
    """Tokens so far, all prompts together."""
    prompt = sum(len(g.request.prompt_token_ids) for g in generations)
    completion = sum(g.num_tokens for g in generations)
    cached = sum(g.num_cached_tokens for g in generations)
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))


async def interleave(
    generations: list[Generation],
) -> AsyncGenerator[tuple[Generation, CompletionOutput], None]:
    """The outputs of all generations as they come; the first error ends all of them.

    The queue holds one item a generation, so a slow reader makes the engine's client merge deltas.
    """
    if len(generations) == 1:
        async with aclosing(generations[0].outputs()) as outputs:
            async for output in outputs:
                yield generations[0], output
        return
    queue: asyncio.Queue[tuple[Generation, CompletionOutput | Exception]] = asyncio.Queue(len(generations))
    tasks = [asyncio.create_task(_feed(generation, queue)) for generation in generations]
    running = len(tasks)
    try:
        while running:
            generation, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= item.finish_reason is not None
            yield generation, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(generation: Generation, queue: asyncio.Queue[tuple[Generation, CompletionOutput | Exception]]) -> None:
    try:
        async with aclosing(generation.outputs()) as outputs:
            async for output in outputs:
                await queue.put((generation, output))
    except Exception as exc:
        await queue.put((generation, exc))


class Collected:
    """The deltas of one generation, added up for an answer in one piece."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason = ""
        self.stop_reason: int | str | None = None

    def add(self, output: CompletionOutput) -> None:
        self._texts.append(output.text)
        self.token_ids.extend(output.token_ids)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason

    @property
    def text(self) -> str:
        return "".join(self._texts)
