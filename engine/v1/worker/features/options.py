"""``Options``: temperature, top-k, top-p and min-p, which every request has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.v1.core.step import NewRequest
from engine.v1.worker.features.columns import SlotColumn
from engine.v1.worker.layout import BatchLayout


@dataclass(frozen=True, slots=True, eq=False)
class OptionRows:
    """Fields of a ``SamplingBatch``."""

    temperature: torch.Tensor
    all_greedy: bool
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None


class Options:
    """A ``Feature``. Its rows depend on the layout only, so a steady batch gathers them once."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._temperature = SlotColumn(num_slots, np.float32, 0.0, device)
        self._top_k = SlotColumn(num_slots, np.int64, 0, device)
        self._top_p = SlotColumn(num_slots, np.float32, 1.0, device)
        self._min_p = SlotColumn(num_slots, np.float32, 0.0, device)
        self._greedy = np.ones(num_slots, np.bool_)  # [num_slots]
        self._layout: BatchLayout | None = None

    def add(self, request: NewRequest) -> None:
        slot, params = request.slot, request.params
        self._greedy[slot] = params.greedy
        self._temperature.set(slot, params.temperature)
        self._top_k.set(slot, max(params.top_k, 0))
        self._top_p.set(slot, params.top_p)
        self._min_p.set(slot, params.min_p)

    def remove(self, slot: int) -> None:
        """Nothing to do: the next request overwrites every column."""

    def flush(self) -> None:
        for column in (self._temperature, self._top_k, self._top_p, self._min_p):
            column.flush()

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """Nothing to do: options do not depend on tokens."""

    def rows(self, layout: BatchLayout) -> OptionRows:
        if layout is not self._layout:
            self._layout, self._rows = layout, self._gather(layout)
        return self._rows

    def _gather(self, layout: BatchLayout) -> OptionRows:
        """Filters shape the draw only; a batch in which all are greedy makes none."""
        temperature = self._temperature.rows(layout)
        if bool(self._greedy[layout.sampled].all()):
            return OptionRows(temperature, True, None, None, None)
        filters = (column.rows_if_used(layout) for column in (self._top_k, self._top_p, self._min_p))
        return OptionRows(temperature, False, *filters)
