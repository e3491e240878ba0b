"""``Penalties``: repetition, presence and frequency penalties.

Owns which tokens each penalised request has seen, on the device, kept up to date token by token.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.sampling.batch import PenaltyBatch
from engine.v1.core.step import NewRequest
from engine.v1.worker.features.columns import SlotColumn
from engine.v1.worker.layout import BatchLayout


class Penalties:
    """A ``Feature``. Its tables are made when the first penalised request comes."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (num_slots, vocab_size)
        self._device = device
        self._repetition = SlotColumn(num_slots, np.float32, 1.0, device)
        self._presence = SlotColumn(num_slots, np.float32, 0.0, device)
        self._frequency = SlotColumn(num_slots, np.float32, 0.0, device)
        self._prompt_mask: torch.Tensor | None = None  # [num_slots, vocab] bool
        self._output_counts: torch.Tensor | None = None  # [num_slots, vocab] int32
        self._slots: set[int] = set()

    def add(self, request: NewRequest) -> None:
        params, slot = request.params, request.slot
        if not params.needs_penalties:
            return
        self._slots.add(slot)
        self._repetition.set(slot, params.repetition_penalty)
        self._presence.set(slot, params.presence_penalty)
        self._frequency.set(slot, params.frequency_penalty)
        mask, counts = self._tables()
        token_ids = torch.tensor(request.token_ids, device=self._device)
        prompt, output = token_ids[: request.num_prompt_tokens], token_ids[request.num_prompt_tokens :]
        mask[slot] = False
        mask[slot, prompt] = True
        counts[slot] = torch.bincount(output, minlength=self._shape[1])

    def remove(self, slot: int) -> None:
        self._slots.discard(slot)

    def flush(self) -> None:
        for column in (self._repetition, self._presence, self._frequency):
            column.flush()

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        if self._slots:
            _, counts = self._tables()
            slots, rows = self._slots_and_rows(layout)
            counts[slots, token_ids[rows]] += 1

    def batch(self, layout: BatchLayout) -> PenaltyBatch | None:
        """The penalties of the sampled slots; ``None`` if none of them has any."""
        if self._slots.isdisjoint(layout.row_of):
            return None
        mask, counts = self._tables()
        slots, rows = self._slots_and_rows(layout)
        return PenaltyBatch(
            rows=rows,
            repetition=self._repetition.rows(layout)[rows],
            presence=self._presence.rows(layout)[rows],
            frequency=self._frequency.rows(layout)[rows],
            prompt_mask=mask[slots],
            output_counts=counts[slots],
        )

    def _slots_and_rows(self, layout: BatchLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """The penalised among the sampled slots, and their rows; both [m] int64."""
        slots = sorted(self._slots & layout.row_of.keys())
        rows = [layout.row_of[slot] for slot in slots]
        pair = torch.tensor([slots, rows], dtype=torch.int64).to(self._device)
        return pair[0], pair[1]

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._prompt_mask is None or self._output_counts is None:
            self._prompt_mask = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
            self._output_counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        return self._prompt_mask, self._output_counts
