"""``SequenceGroup``: a request as V0 schedules it, and its description for the worker.

Owns the grouping. A group is admitted, preempted and finished as a whole; today each has
one sequence, since a request asks for one completion.
"""

from __future__ import annotations

import msgspec

from engine.api import SamplingParams
from engine.v0.core.sequence import Sequence, SequenceData, SequenceStage, SequenceStatus


class SequenceGroup:
    """The sequences generated from one prompt, with the options they share."""

    __slots__ = ("arrival_time", "params", "request_id", "seqs")

    def __init__(self, request_id: str, seqs: list[Sequence], params: SamplingParams, arrival_time: float) -> None:
        self.request_id = request_id
        self.seqs = seqs
        self.params = params
        self.arrival_time = arrival_time

    @property
    def unfinished_seqs(self) -> list[Sequence]:
        return [seq for seq in self.seqs if not seq.is_finished]

    @property
    def is_finished(self) -> bool:
        return all(seq.is_finished for seq in self.seqs)

    @property
    def is_prefill(self) -> bool:
        """Whether KV is missing. All sequences of a group share the prompt, hence the stage."""
        return self.seqs[0].data.stage is SequenceStage.PREFILL

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the next step could compute, over all unfinished sequences."""
        return sum(seq.data.num_uncomputed_tokens for seq in self.unfinished_seqs)

    def set_status(self, status: SequenceStatus) -> None:
        """Moves every unfinished sequence to ``status``; finished ones keep their end."""
        for seq in self.unfinished_seqs:
            seq.status = status


class SequenceGroupMetadata(msgspec.Struct, frozen=True):
    """All that the worker needs to know about one scheduled group, sent in full at every step."""

    request_id: str
    is_prompt: bool
    seq_data: dict[int, SequenceData]
    block_tables: dict[int, list[int]]
    params: SamplingParams
    #: Query tokens of this step: 1 in decode, the prompt or a chunk of it in prefill.
    token_chunk_size: int
    #: False for a chunk that leaves some of the prompt for later: nothing is sampled.
    do_sample: bool
