"""From request fields to ``SamplingParams``: names are the same, ``None`` means the default."""

from __future__ import annotations

from typing import Any

from engine.api import SamplingParams
from engine.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, GenerationFields
from engine.errors import RequestError

#: Taken over as they are when not null.
SAME_NAME = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def completion_params(request: CompletionRequest, *, has_tokenizer: bool) -> SamplingParams:
    """OpenAI's default of ``max_tokens`` for completions is 16, as is that of ``SamplingParams``."""
    fields = _fields(request, has_tokenizer)
    return SamplingParams(**fields, logprobs=request.logprobs)


def chat_params(request: ChatCompletionRequest, *, has_tokenizer: bool) -> SamplingParams:
    """A chat answer may take all the room there is, unless ``max_(completion_)tokens`` says less.

    Raises:
        RequestError: fields contradict each other.
    """
    fields = _fields(request, has_tokenizer)
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) == 2:
        raise RequestError(
            "max_tokens and max_completion_tokens are two names of one limit; send one of them.",
            param="max_completion_tokens",
        )
    fields["max_tokens"] = limits.pop() if limits else None
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    return SamplingParams(**fields, logprobs=(request.top_logprobs or 0) if request.logprobs else None)


def _fields(request: GenerationFields, has_tokenizer: bool) -> dict[str, Any]:
    fields = {name: value for name in SAME_NAME if (value := getattr(request, name)) is not None}
    if request.stop is not None:
        fields["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        fields["stop_token_ids"] = tuple(request.stop_token_ids)
    if not has_tokenizer:
        if request.detokenize:
            raise RequestError("This server runs without a tokenizer; detokenize must be false.", param="detokenize")
        fields["detokenize"] = False
    return fields
