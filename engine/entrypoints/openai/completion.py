"""``POST /v1/completions``: one or several prompts in one call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import CompletionOutput, ModelLimits
from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.generation import Collected, Generation, interleave, prepare, usage_of
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.logprobs import LogprobFormatter
from engine.entrypoints.openai.parsing import parse_body, read_body
from engine.entrypoints.openai.protocol import MAX_PROMPTS, CompletionRequest, StreamOptions
from engine.entrypoints.openai.responses import Completion, CompletionChoice, CompletionLogprobs
from engine.entrypoints.openai.sampling import completion_params
from engine.entrypoints.openai.streaming import EventStream, sse_event
from engine.errors import RequestError


async def create_completion(request: Request, ctx: ServerContext, limits: ModelLimits) -> ASGIApp:
    """Continues each prompt; choice ``index`` belongs to prompt ``index``."""
    body = parse_body(await read_body(request.scope, request.receive, ctx.http), CompletionRequest)
    request.state.user = body.user
    ctx.check_model(body.model)
    params = completion_params(body, has_tokenizer=ctx.tokenizer is not None)
    add_special_tokens = body.add_special_tokens is not False
    prompts = []
    for prompt in split_prompts(body.prompt):
        if isinstance(prompt, str):
            prompts.append(await ctx.encode(prompt, "prompt", add_special_tokens=add_special_tokens))
        else:
            prompts.append(prompt)
    request_id = request.state.request_id
    answer = _Answer(ctx, body, request_id, prepare(ctx, limits, request_id, prompts, params))
    if body.stream:
        return EventStream(answer.events(body.stream_options or StreamOptions()), ctx.lifecycle)
    return json_response(await ctx.lifecycle.run(request.receive, answer.complete()))


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of one call: a text or a list of ids is one, a list of either is several.

    Raises:
        RequestError: a mixture, or too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(kinds) > 1:
        raise RequestError("prompt mixes texts and token ids; send one kind.", param="prompt")
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompt)} prompts; at most {MAX_PROMPTS} fit in one call.", param="prompt")
    return [item for item in prompt if not isinstance(item, int)]


class _Answer:
    """One call's completions on their way out."""

    def __init__(
        self, ctx: ServerContext, body: CompletionRequest, request_id: str, generations: list[Generation]
    ) -> None:
        self._generations = generations
        self._token_ids = bool(body.return_token_ids)
        self._logprobs = [
            None if body.logprobs is None else LogprobFormatter(ctx.tokenizer, body.logprobs) for _ in generations
        ]
        self._completion = Completion(
            id=f"cmpl-{request_id}",
            created=int(generations[0].request.arrival_time),
            model=ctx.info.model_name,
            choices=[],
            system_fingerprint=ctx.fingerprint,
        )

    async def complete(self) -> Completion:
        """Waits for all prompts and answers in one piece."""
        totals = [Collected() for _ in self._generations]
        logprobs = [None if formatter is None else CompletionLogprobs([], [], [], []) for formatter in self._logprobs]
        async with aclosing(interleave(self._generations)) as outputs:
            async for generation, output in outputs:
                totals[generation.index].add(output)
                formatter, collected = self._logprobs[generation.index], logprobs[generation.index]
                if formatter is not None and collected is not None:
                    _extend(collected, formatter.completion(output.logprobs))
        for generation, total in zip(self._generations, totals, strict=True):
            choice = CompletionChoice(total.text, generation.index, logprobs[generation.index])
            choice.finish_reason, choice.stop_reason = total.finish_reason, total.stop_reason
            if self._token_ids:
                choice.token_ids = total.token_ids
                choice.prompt_token_ids = generation.request.prompt_token_ids
            self._completion.choices.append(choice)
        self._completion.usage = usage_of(self._generations)
        return self._completion

    async def events(self, options: StreamOptions) -> AsyncGenerator[bytes, None]:
        """Blocks of events: each has text or the finish reason of one choice; usage last, if asked for."""
        chunk = self._completion
        if options.include_usage:
            chunk.usage = None
        first_of = set(range(len(self._generations))) if self._token_ids else set()
        async with aclosing(interleave(self._generations)) as outputs:
            async for generation, output in outputs:
                if not self._worth_telling(output):
                    continue
                choice = self._choice(generation, output)
                if generation.index in first_of:
                    first_of.discard(generation.index)
                    choice.prompt_token_ids = generation.request.prompt_token_ids
                chunk.choices = [choice]
                if options.continuous_usage_stats:
                    chunk.usage = usage_of(self._generations)
                yield sse_event(chunk)
        if options.include_usage:
            chunk.choices = []
            chunk.usage = usage_of(self._generations)
            yield sse_event(chunk)

    def _worth_telling(self, output: CompletionOutput) -> bool:
        """Tokens without text (half a character, say) are told only if ids or log probabilities are."""
        if output.text or output.finish_reason is not None:
            return True
        return bool(output.token_ids) and (self._token_ids or self._logprobs[0] is not None)

    def _choice(self, generation: Generation, output: CompletionOutput) -> CompletionChoice:
        choice = CompletionChoice(output.text, generation.index, None, output.finish_reason)
        if output.finish_reason is not None:
            choice.stop_reason = output.stop_reason
        formatter = self._logprobs[generation.index]
        if formatter is not None:
            choice.logprobs = formatter.completion(output.logprobs)
        if self._token_ids:
            choice.token_ids = output.token_ids
        return choice


def _extend(total: CompletionLogprobs, new: CompletionLogprobs) -> None:
    total.tokens += new.tokens
    total.token_logprobs += new.token_logprobs
    total.top_logprobs += new.top_logprobs
    total.text_offset += new.text_offset
