"""What crosses between the engine and its executor in a step, both ways. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.api.outputs import PositionLogprobs
from engine.v0.core.sequence_group import SequenceGroupMetadata


@dataclass(frozen=True, slots=True)
class ExecuteModelRequest:
    """One step's work, complete: the worker remembers nothing of a request but its random generator."""

    seq_group_metadata_list: list[SequenceGroupMetadata]
    finished_request_ids: list[str]


class SequenceOutput(msgspec.Struct, frozen=True):
    """The token sampled for one sequence; ``None`` if its logits were no numbers to sample from."""

    seq_id: int
    token_id: int | None
    #: The sampled token first; texts are left to the output processor.
    logprobs: PositionLogprobs | None


class SequenceGroupOutput(msgspec.Struct, frozen=True):
    """The samples of one group; empty after a chunk that leaves some of the prompt for later."""

    samples: list[SequenceOutput]


#: One entry a scheduled group, in the order of ``seq_group_metadata_list``.
SamplerOutput = list[SequenceGroupOutput]
