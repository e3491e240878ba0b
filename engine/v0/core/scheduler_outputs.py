"""What the scheduler decided: the partial results of its parts, and the decision of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.v0.core.sequence_group import SequenceGroup


class ScheduledSequenceGroup(msgspec.Struct, frozen=True):
    """A group taking part in a step, with the number of tokens it brings."""

    group: SequenceGroup
    token_chunk_size: int


@dataclass(frozen=True, slots=True)
class SchedulerRunningOutputs:
    """What became of the running queue."""

    decodes: list[ScheduledSequenceGroup] = field(default_factory=list)
    #: Chunks of prompts admitted in an earlier step.
    prefills: list[ScheduledSequenceGroup] = field(default_factory=list)
    preempted: list[SequenceGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedulerPrefillOutputs:
    """What was taken from the waiting queue."""

    prefills: list[ScheduledSequenceGroup] = field(default_factory=list)
    #: Groups that no amount of waiting would make fit; they end with an error.
    ignored: list[SequenceGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedulerOutputs:
    """One step's batch: ``num_prefill_groups`` prefills, then decodes."""

    scheduled_seq_groups: list[ScheduledSequenceGroup]
    num_prefill_groups: int
    num_batched_tokens: int
    num_preempted: int
    ignored_seq_groups: list[SequenceGroup]
    #: Requests that ended since the last step; the worker drops what it holds for them.
    finished_request_ids: list[str]
