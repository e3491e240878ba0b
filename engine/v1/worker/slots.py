"""``WorkerSlots``: what a worker remembers of every request, on the device, in fixed slots.

Owns token ids, progress and block tables, and applies the parts of a ``StepPlan`` that change
them. Sampled tokens are written here by the device and are the next step's input, without a
detour over the host. The counts are kept on the host too: they follow from the plans alone.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.config import EngineConfig
from engine.v1.core.step import NewRequest, StepPlan
from engine.v1.worker.layout import BatchLayout


class WorkerSlots:
    """Tensors over slots; rows of free slots hold garbage nobody reads."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        num_slots, max_model_len = config.scheduler.max_num_seqs, config.model.max_model_len
        self.num_slots = num_slots
        self.block_size = config.cache.block_size
        max_blocks = -(-max_model_len // self.block_size)
        self.device = device
        self.token_ids = torch.zeros(num_slots, max_model_len, dtype=torch.int32, device=device)
        self.block_table = torch.zeros(num_slots, max_blocks, dtype=torch.int32, device=device)
        self.num_computed = torch.zeros(num_slots, dtype=torch.int64, device=device)  # [num_slots]

        self.held = np.zeros(num_slots, np.bool_)  # [num_slots] whether a request is there
        self.lengths = np.zeros(num_slots, np.int32)  # [num_slots] tokens known, the newest sampled one included
        self.computed = np.zeros(num_slots, np.int32)  # [num_slots] host copy of num_computed
        self._num_blocks = np.zeros(num_slots, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Releases, fills and grows slots; free of cost when the plan does none of it."""
        self.held[plan.released] = False
        for new in plan.new:
            self._add(new)
        if plan.grown_slots:
            self._grow(plan.grown_slots, plan.grown_blocks)

    def advance(self, layout: BatchLayout) -> None:
        """The tokens of a step are computed."""
        self.num_computed[layout.seq_slots] += layout.seq_counts
        self.computed[layout.slots] += layout.counts

    def append(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """The sampled ``token_ids`` [num_sampled] follow the tokens of their slots. Called after ``advance``."""
        sampled = layout.sampled_slots
        self.token_ids[sampled, self.num_computed[sampled]] = token_ids.to(torch.int32)
        self.lengths[layout.sampled] += 1

    def _add(self, new: NewRequest) -> None:
        slot, length, num_blocks = new.slot, len(new.token_ids), len(new.block_ids)
        self.token_ids[slot, :length] = self._tensor(new.token_ids)
        self.block_table[slot, :num_blocks] = self._tensor(new.block_ids)
        self.num_computed[slot] = 0
        self.held[slot] = True
        self.lengths[slot], self.computed[slot], self._num_blocks[slot] = length, 0, num_blocks

    def _grow(self, slots: list[int], blocks: list[int]) -> None:
        """Appends each block to its slot's table, all in one write; a slot may occur more than once."""
        columns = []
        for slot in slots:
            columns.append(int(self._num_blocks[slot]))
            self._num_blocks[slot] += 1
        self.block_table[self._tensor(slots), self._tensor(columns)] = self._tensor(blocks)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.int32)).to(self.device)
