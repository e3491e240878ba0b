"""``SchedulingBudget``: what one step may still take.

Owns the two sums. Counting is by request id, so that the parts of the scheduler may each
account for a group without asking whether another part already did.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulingBudget:
    """Tokens and sequences of one step. Adding one request twice counts once."""

    token_budget: int
    max_num_seqs: int
    _with_tokens: set[str] = field(default_factory=set)
    _with_seqs: set[str] = field(default_factory=set)
    num_batched_tokens: int = 0
    num_curr_seqs: int = 0

    @property
    def remaining_tokens(self) -> int:
        return self.token_budget - self.num_batched_tokens

    def can_schedule(self, *, num_new_tokens: int, num_new_seqs: int) -> bool:
        """Whether that much more fits; ``num_new_tokens`` must be positive."""
        return num_new_tokens <= self.remaining_tokens and self.num_curr_seqs + num_new_seqs <= self.max_num_seqs

    def add_tokens(self, request_id: str, num_tokens: int) -> None:
        if request_id not in self._with_tokens:
            self._with_tokens.add(request_id)
            self.num_batched_tokens += num_tokens

    def add_seqs(self, request_id: str, num_seqs: int) -> None:
        if request_id not in self._with_seqs:
            self._with_seqs.add(request_id)
            self.num_curr_seqs += num_seqs
