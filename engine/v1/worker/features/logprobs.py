"""``Logprobs``: who wants log probabilities, and of how many alternatives."""

from __future__ import annotations

import torch

from engine.v1.core.step import NewRequest
from engine.v1.worker.layout import BatchLayout


class Logprobs:
    """A ``Feature``. The batch computes the largest number asked for; the frontend shows each its own."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, request: NewRequest) -> None:
        if request.params.logprobs is not None:
            self._counts[request.slot] = request.params.logprobs

    def remove(self, slot: int) -> None:
        self._counts.pop(slot, None)

    def flush(self) -> None:
        """Nothing to do: the device needs one number a batch."""

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """Nothing to do: the wish does not depend on tokens."""

    def count(self, layout: BatchLayout) -> int | None:
        """The most alternatives any sampled slot wants; ``None`` if none wants log probabilities."""
        return max((count for slot, count in self._counts.items() if slot in layout.row_of), default=None)

    def rows(self, layout: BatchLayout) -> list[int]:
        """The rows that want them, ascending."""
        return sorted(layout.row_of[slot] for slot in self._counts if slot in layout.row_of)
