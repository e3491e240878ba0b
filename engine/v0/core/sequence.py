"""``Sequence``: one growing row of tokens, and where it stands.

Owns the token ids, how many of them the KV cache holds, the status, and the output text that
grows beside them. Does not know about blocks (``block_manager.py``), queues (``scheduler.py``)
or why a sequence should stop (``llm_engine/stop_checker.py``).
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable

from engine.api.outputs import FinishReason
from engine.text.output_text import OutputText


class SequenceStatus(enum.IntEnum):
    """Where a sequence is in its life; it ends in exactly one of the ``FINISHED`` states, which come last."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()


_FINISH_REASONS: dict[SequenceStatus, FinishReason] = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_ERROR: "error",
}


class SequenceStage(enum.Enum):
    """What the next step computes for a sequence."""

    #: Tokens whose KV is missing: the prompt, or everything after a preemption.
    PREFILL = enum.auto()
    #: The newest token only.
    DECODE = enum.auto()


class SequenceData:
    """The part of a sequence that the worker reads: token ids and progress.

    ``num_computed_tokens`` of the tokens are in the KV cache. Prompt and output tokens lie in one
    array, so a recomputation after a preemption reads them as one long prompt.
    """

    __slots__ = ("num_computed_tokens", "num_prompt_tokens", "stage", "token_ids")

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        self.token_ids = array("q", prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.stage = SequenceStage.PREFILL

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def prompt_token_ids(self) -> array[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> array[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def append_token(self, token_id: int) -> None:
        """Adds a sampled token; its KV is computed by the next step."""
        self.token_ids.append(token_id)

    def update_num_computed_tokens(self, num_new: int) -> None:
        """Records that a step has written the KV of the next ``num_new`` tokens."""
        self.num_computed_tokens += num_new
        assert self.num_computed_tokens <= len(self.token_ids), "more tokens computed than there are"
        if self.num_computed_tokens == len(self.token_ids):
            self.stage = SequenceStage.DECODE

    def reset_for_recompute(self) -> None:
        """Forgets the KV, keeps every token: the next prefill covers prompt and output."""
        self.num_computed_tokens = 0
        self.stage = SequenceStage.PREFILL


class Sequence:
    """One sequence of a group. The engine process is its only owner."""

    __slots__ = ("data", "output_text", "seq_id", "status", "stop_reason")

    def __init__(self, seq_id: int, prompt_token_ids: Iterable[int], output_text: OutputText) -> None:
        self.seq_id = seq_id
        self.data = SequenceData(prompt_token_ids)
        self.output_text = output_text
        self.status = SequenceStatus.WAITING
        #: The stop string or stop token id that ended it.
        self.stop_reason: int | str | None = None

    @property
    def is_finished(self) -> bool:
        return self.status >= SequenceStatus.FINISHED_STOPPED

    @property
    def finish_reason(self) -> FinishReason | None:
        """``None`` while the sequence is unfinished."""
        return _FINISH_REASONS.get(self.status)
