"""``SamplingParams``: how one request wants its tokens chosen, and when to stop.

Owns the names (as vLLM's users know them), the defaults and the bound of every field.
Checks everything that can be checked without a model; what depends on the vocabulary or
the context length is checked by ``engine/api/request.py``.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from engine.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_TOKENS_LIMIT = 1 << 24
MAX_SEED = (1 << 63) - 1

#: Below this temperature sampling is greedy: dividing logits by less only loses precision.
GREEDY_EPSILON = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling options of one request; immutable, and valid once constructed.

    Raises:
        RequestError: a field is out of its bounds; ``param`` names it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    #: 0 (or -1) keeps the whole vocabulary.
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_STOP_STRINGS)] = ()
    stop_token_ids: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    ignore_eos: bool = False
    #: ``None``: as many as the context has room for.
    max_tokens: int | None = 16
    min_tokens: int = 0
    #: Number of most likely alternatives to report beside the sampled token.
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        else:
            msgspec.structs.force_setattr(self, "stop", tuple(self.stop))
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))
        _check_numbers(self)
        _check_stops(self)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_EPSILON

    @property
    def needs_penalties(self) -> bool:
        """Whether the tokens seen so far change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


def _check_numbers(p: SamplingParams) -> None:
    _check_float(p.temperature, "temperature", 0.0, 100.0)
    _check_float(p.top_p, "top_p", 0.0, 1.0, low_open=True)
    _check_int(p.top_k, "top_k", -1, MAX_TOKENS_LIMIT)
    _check_float(p.min_p, "min_p", 0.0, 1.0)
    _check_float(p.presence_penalty, "presence_penalty", -2.0, 2.0)
    _check_float(p.frequency_penalty, "frequency_penalty", -2.0, 2.0)
    _check_float(p.repetition_penalty, "repetition_penalty", 0.0, 100.0, low_open=True)
    if p.seed is not None:
        _check_int(p.seed, "seed", -MAX_SEED, MAX_SEED)
    if p.max_tokens is not None:
        _check_int(p.max_tokens, "max_tokens", 1, MAX_TOKENS_LIMIT)
    _check_int(p.min_tokens, "min_tokens", 0, MAX_TOKENS_LIMIT)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise RequestError(
            f"min_tokens ({p.min_tokens}) is larger than max_tokens ({p.max_tokens}); lower one or raise the other.",
            param="min_tokens",
        )
    if p.logprobs is not None:
        _check_int(p.logprobs, "logprobs", 0, MAX_LOGPROBS)


def _check_stops(p: SamplingParams) -> None:
    if len(p.stop) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(p.stop)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    for text in p.stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_STRING_CHARS:
            raise RequestError(f"each stop must be a string of 1 to {MAX_STOP_STRING_CHARS} characters.", param="stop")
    if p.stop and not p.detokenize:
        raise RequestError("stop strings need detokenize=True; use stop_token_ids instead.", param="stop")
    if len(p.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(
            f"stop_token_ids has {len(p.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed.",
            param="stop_token_ids",
        )
    for token_id in p.stop_token_ids:
        _check_int(token_id, "stop_token_ids", 0, MAX_TOKENS_LIMIT)


def _check_float(value: float, name: str, low: float, high: float, *, low_open: bool = False) -> None:
    """NaN and infinities pass plain comparisons in the wrong direction, hence ``isfinite`` first."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value > high or value < low or (low_open and value == low):
        bounds = f"{'greater than' if low_open else 'at least'} {low:g} and at most {high:g}"
        raise RequestError(f"{name} must be a finite number, {bounds}.", param=name)


def _check_int(value: int, name: str, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} must be an integer from {low} to {high}.", param=name)
