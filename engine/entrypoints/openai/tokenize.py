"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.api import ModelLimits
from engine.entrypoints.openai.context import ServerContext
from engine.entrypoints.openai.json_response import json_response
from engine.entrypoints.openai.parsing import parse_body, read_body
from engine.entrypoints.openai.protocol import DetokenizeRequest, TokenizeRequest
from engine.entrypoints.openai.responses import DetokenizeResponse, TokenizeResponse
from engine.errors import RequestError


async def tokenize(request: Request, ctx: ServerContext, limits: ModelLimits) -> Response:
    """Token ids of a text, or of a chat as the model would get it."""
    body = parse_body(await read_body(request.scope, request.receive, ctx.http), TokenizeRequest)
    ctx.check_model(body.model)
    tokens = await _tokens(body, ctx)
    tokenizer = ctx.need_tokenizer("prompt")
    strings = [tokenizer.token_text(token_id) for token_id in tokens] if body.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), limits.max_model_len, tokens, strings))


async def _tokens(body: TokenizeRequest, ctx: ServerContext) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Send exactly one of prompt and messages.", param="prompt")
    if body.prompt is not None:
        if body.add_generation_prompt is not None:
            raise RequestError("add_generation_prompt needs messages.", param="add_generation_prompt")
        return await ctx.encode(body.prompt, "prompt", add_special_tokens=body.add_special_tokens is not False)
    if body.add_special_tokens:
        raise RequestError("The chat template brings the special tokens of messages.", param="add_special_tokens")
    return await ctx.encode_chat(body.messages or [], add_generation_prompt=body.add_generation_prompt is not False)


async def detokenize(request: Request, ctx: ServerContext, limits: ModelLimits) -> Response:
    """The text of token ids, special tokens included."""
    body = parse_body(await read_body(request.scope, request.receive, ctx.http), DetokenizeRequest)
    ctx.check_model(body.model)
    if body.tokens and max(body.tokens) >= limits.vocab_size:
        raise RequestError(
            f"tokens has a token id outside the vocabulary; ids run from 0 to {limits.vocab_size - 1}.",
            param="tokens",
        )
    return json_response(DetokenizeResponse(await ctx.decode(body.tokens)))
