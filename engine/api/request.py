"""``GenerateRequest``: a validated, tokenized request, as both engines accept it.

Owns the noun and the checks that need the model's facts (``check_request``). Everything
here is torch-free: the API process builds these, an engine process checks them again.
"""

from __future__ import annotations

import msgspec

from engine.api.sampling_params import SamplingParams
from engine.errors import RequestError


class GenerateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt to continue. ``request_id`` is ours and unique; clients only see it as a label."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    #: Seconds since the epoch, taken when the server accepted the request.
    arrival_time: float
    #: The text the ids came from, when there was one.
    prompt: str | None = None


class ModelLimits(msgspec.Struct, frozen=True):
    """The model and cache facts that bound a request; known once an engine is ready."""

    vocab_size: int
    #: Prompt and output together, in tokens.
    max_model_len: int
    #: Tokens the whole KV cache can hold for one request.
    kv_capacity_tokens: int


def check_request(prompt_token_ids: list[int], params: SamplingParams, limits: ModelLimits) -> SamplingParams:
    """Checks ids and lengths against the model; the API process and both engines call this.

    Returns:
        The params with ``max_tokens`` resolved to what the context has room for.

    Raises:
        RequestError: an id is outside the vocabulary, or prompt and output do not fit.
    """
    if not prompt_token_ids:
        raise RequestError("The prompt is empty; send at least one token.", param="prompt")
    _check_ids(prompt_token_ids, limits.vocab_size, "prompt")
    _check_ids(params.stop_token_ids, limits.vocab_size, "stop_token_ids")
    context = min(limits.max_model_len, limits.kv_capacity_tokens)
    which = "context length" if limits.max_model_len <= limits.kv_capacity_tokens else "KV cache"
    room = context - len(prompt_token_ids)
    if room < 1:
        raise RequestError(
            f"The prompt has {len(prompt_token_ids)} tokens; the {which} holds {context}, "
            "output included. Shorten the prompt.",
            param="prompt",
            code="context_length_exceeded",
        )
    if params.max_tokens is not None and params.max_tokens > room:
        raise RequestError(
            f"The prompt has {len(prompt_token_ids)} tokens and max_tokens is {params.max_tokens}; together they "
            f"exceed the {which} of {context} tokens. Shorten the prompt or lower max_tokens to {room}.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if params.max_tokens is None:
        if params.min_tokens > room:
            raise RequestError(
                f"min_tokens is {params.min_tokens}, but the {which} has room for {room} more tokens.",
                param="min_tokens",
                code="context_length_exceeded",
            )
        return msgspec.structs.replace(params, max_tokens=room)
    return params


def _check_ids(token_ids: list[int] | tuple[int, ...], vocab_size: int, param: str) -> None:
    """``min``/``max`` stop at C speed, which matters for prompts of a hundred thousand ids."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise RequestError(
            f"{param} has a token id outside the vocabulary; ids run from 0 to {vocab_size - 1}.", param=param
        )
