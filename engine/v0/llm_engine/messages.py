"""The messages between the API process and V0's engine process. Torch-free.

Closed msgspec types, encoded as arrays: fields are append-only and their order is the wire
format (``tests/v0/test_v0_messages.py`` pins it). Requests arrive tokenized, outputs leave as text.
"""

from __future__ import annotations

import msgspec

from engine.api import GenerateRequest, RequestOutput
from engine.metrics.stats import EngineStats


class AddRequest(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True):
    """Start generating. Answered by outputs up to a finished one, or by one ``RequestFailed``."""

    request: GenerateRequest


class AbortRequest(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """Stop generating. Answered by a finished output, or by nothing if the id is not known (any more)."""

    request_id: str


class GetStats(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """Answered by ``StatsReply`` with the same ``call_id``, between two steps."""

    call_id: int


EngineRequest = AddRequest | AbortRequest | GetStats


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True):
    """What one step produced. ``prompt`` and ``prompt_token_ids`` stay empty: the client has them."""

    outputs: list[RequestOutput]


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """The engine did not accept a request; the fields are those of ``RequestError``."""

    request_id: str
    message: str
    param: str | None
    code: str | None


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """A snapshot of the engine."""

    call_id: int
    stats: EngineStats


EngineOutput = StepOutputs | RequestFailed | StatsReply
