"""The messages between the API process and the V1 engine core. Torch-free.

Closed msgspec types, encoded as arrays: fields are append-only and their order is the wire
format (``tests/v1/test_v1_messages.py`` pins it). Only tokens cross, never text: the frontend
tokenizes and detokenizes. A request is named by its *handle*, an integer the client chose.
"""

from __future__ import annotations

import msgspec

from engine.api import SamplingParams
from engine.metrics.stats import EngineStats
from engine.v1.core.request import Finished


class AddRequest(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True):
    """Start generating. Answered by ``StepOutputs`` up to a ``Finished``, or by one ``RequestFailed``."""

    handle: int
    prompt_token_ids: list[int]
    params: SamplingParams


class AbortRequests(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """Stop generating. Each handle still open is answered by a ``Finished``; the others are ignored."""

    handles: list[int]


class GetStats(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """Answered by ``StatsReply`` with the same ``call_id``, between two steps."""

    call_id: int


EngineRequest = AddRequest | AbortRequests | GetStats


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at the position of one new token. May list more alternatives than were asked for."""

    handle: int
    #: The sampled token, then the most likely ones.
    token_ids: list[int]
    logprobs: list[float]
    #: Rank of the sampled token; the alternatives have ranks 1, 2, 3 ...
    rank: int


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """All that one step produced, for all requests: ``token_ids[i]`` is the new token of ``handles[i]``."""

    handles: list[int]
    token_ids: list[int]
    finished: list[Finished] = []
    logprobs: list[TokenLogprobs] = []


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The core did not accept a request; the fields are those of ``RequestError``."""

    handle: int
    message: str
    param: str | None
    code: str | None
    #: Whether the same request may succeed later: ``OverloadedError``.
    overloaded: bool = False


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A snapshot of the core."""

    call_id: int
    stats: EngineStats


EngineOutput = StepOutputs | RequestFailed | StatsReply
