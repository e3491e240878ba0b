"""The contract of a sampling feature."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.v1.core.step import NewRequest
from engine.v1.worker.layout import BatchLayout


class Feature(Protocol):
    """Told of every request; keeps state only for those that use it.

    A request that comes back after a preemption is added like a new one, with the tokens it has
    generated so far behind its prompt: a feature starts from where they leave it.
    """

    def add(self, request: NewRequest) -> None:
        """``request`` now owns its slot."""
        ...

    def remove(self, slot: int) -> None:
        """The slot's request has left."""
        ...

    def flush(self) -> None:
        """Sends what ``add`` staged to the device; called once before a batch, if anything was added."""
        ...

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """``token_ids`` [num_sampled], on the device, now follow the tokens of ``layout.sampled``."""
        ...
