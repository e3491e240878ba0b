"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET
from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import CompletionOutput, ModelLimits, SamplingParams
from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.generation import Collected, Generation, prepare, usage_of
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.logprobs import LogprobFormatter
from engine.entrypoints.openai.parsing import parse_body, read_body
from engine.entrypoints.openai.protocol import ChatCompletionRequest, StreamOptions
from engine.entrypoints.openai.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    Delta,
    TokenLogprob,
)
from engine.entrypoints.openai.sampling import chat_params
from engine.entrypoints.openai.streaming import EventStream, sse_event
from engine.errors import RequestError


async def create_chat_completion(request: Request, ctx: ServerContext, limits: ModelLimits) -> ASGIApp:
    """Answers one chat, in one piece or as a stream of events."""
    body = parse_body(await read_body(request.scope, request.receive, ctx.http), ChatCompletionRequest)
    request.state.user = body.user
    ctx.check_model(body.model)
    params = chat_params(body, has_tokenizer=ctx.tokenizer is not None)
    chat = _Chat(ctx, body, await _prepare(ctx, limits, request.state.request_id, body, params))
    if body.stream:
        return EventStream(chat.events(body.stream_options or StreamOptions()), ctx.lifecycle)
    return json_response(await ctx.lifecycle.run(request.receive, chat.complete()))


async def _prepare(
    ctx: ServerContext, limits: ModelLimits, request_id: str, body: ChatCompletionRequest, params: SamplingParams
) -> Generation:
    """Template, tokenize, check; errors name the field as this route calls it."""
    token_ids = await ctx.encode_chat(body.messages, add_generation_prompt=body.add_generation_prompt is not False)
    try:
        return prepare(ctx, limits, request_id, [token_ids], params)[0]
    except RequestError as exc:
        if exc.param == "prompt":
            exc.param = "messages"
        elif exc.param == "max_tokens" and body.max_completion_tokens is not None:
            exc.param = "max_completion_tokens"
        raise


class _Chat:
    """One chat completion on its way out."""

    def __init__(self, ctx: ServerContext, body: ChatCompletionRequest, generation: Generation) -> None:
        self._ctx = ctx
        self._id = f"chatcmpl-{generation.request.request_id}"
        self._generation = generation
        self._token_ids = bool(body.return_token_ids)
        self._logprobs = LogprobFormatter(ctx.tokenizer, body.top_logprobs or 0) if body.logprobs else None

    async def complete(self) -> ChatCompletion:
        """Waits for the end and answers in one piece."""
        total = Collected()
        positions: list[TokenLogprob] = []
        async with aclosing(self._generation.outputs()) as outputs:
            async for output in outputs:
                total.add(output)
                if self._logprobs is not None:
                    positions.extend(self._logprobs.chat(output.logprobs).content)
        choice = ChatChoice(
            index=0,
            message=AssistantMessage("assistant", total.text),
            logprobs=None if self._logprobs is None else ChatLogprobs(positions),
            finish_reason=total.finish_reason,
            stop_reason=total.stop_reason,
            token_ids=total.token_ids if self._token_ids else UNSET,
        )
        return ChatCompletion(
            id=self._id,
            created=int(self._generation.request.arrival_time),
            model=self._ctx.info.model_name,
            choices=[choice],
            usage=usage_of([self._generation]),
            system_fingerprint=self._ctx.fingerprint,
            prompt_token_ids=self._generation.request.prompt_token_ids if self._token_ids else UNSET,
        )

    async def events(self, options: StreamOptions) -> AsyncGenerator[bytes, None]:
        """Blocks of events: the role, the text as it comes, the finish reason, the usage if asked for.

        One chunk object is filled again and again: this is the server's hottest loop.
        """
        generation = self._generation
        chunk = self._first_chunk(options)
        block = sse_event(chunk)
        chunk.prompt_token_ids = UNSET
        async with aclosing(generation.outputs()) as outputs:
            async for output in outputs:
                if options.continuous_usage_stats:
                    chunk.usage = usage_of([generation])
                if output.text or (self._has_more(output)):
                    chunk.choices[0] = self._choice(output)
                    block += sse_event(chunk)
                if output.finish_reason is not None:
                    last = ChatChunkChoice(0, Delta(), None, output.finish_reason, output.stop_reason)
                    chunk.choices[0] = last
                    block += sse_event(chunk)
                    if options.include_usage:
                        chunk.choices = []
                        chunk.usage = usage_of([generation])
                        block += sse_event(chunk)
                if block:
                    yield block
                    block = b""

    def _first_chunk(self, options: StreamOptions) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=int(self._generation.request.arrival_time),
            model=self._ctx.info.model_name,
            choices=[ChatChunkChoice(0, Delta("assistant", ""))],
            system_fingerprint=self._ctx.fingerprint,
            usage=None if options.include_usage else UNSET,
            prompt_token_ids=self._generation.request.prompt_token_ids if self._token_ids else UNSET,
        )

    def _has_more(self, output: CompletionOutput) -> bool:
        """Whether tokens without text (half a character, say) must be told all the same."""
        return bool(output.token_ids) and (self._token_ids or self._logprobs is not None)

    def _choice(self, output: CompletionOutput) -> ChatChunkChoice:
        choice = ChatChunkChoice(0, Delta(content=output.text))
        if self._logprobs is not None:
            choice.logprobs = self._logprobs.chat(output.logprobs)
        if self._token_ids:
            choice.token_ids = output.token_ids
        return choice
