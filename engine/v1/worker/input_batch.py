"""A step's inputs: its layout, made on the host from counts, and its tensors, gathered on the device.

Owns how both are made. The *layout* (which slot computes how many tokens, who is
sampled) changes only when the batch does; the *inputs* are gathered from ``WorkerSlots`` every
step. While the same requests just decode, the layout of the last step is used again and the host
sends nothing to the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.metadata import AttentionMetadata
from engine.v1.core.step import StepPlan
from engine.v1.worker.layout import BatchLayout
from engine.v1.worker.slots import WorkerSlots


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """What the model reads."""

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    attention: AttentionMetadata


def next_layout(last: BatchLayout | None, plan: StepPlan, slots: WorkerSlots) -> BatchLayout:
    """The layout of ``plan``, already applied to ``slots``: the last one, if nothing has changed since."""
    unchanged = not (plan.released or plan.new or plan.uneven_slots)
    if unchanged and last is not None and last.steady:
        return last
    counts = slots.held.astype(np.int32)  # [num_slots] one token each, unless the plan says otherwise
    counts[plan.uneven_slots] = plan.uneven_tokens
    active = np.flatnonzero(counts)
    return make_layout(active, counts[active], slots)


def make_layout(slots: NDArray[np.int64], counts: NDArray[np.int32], state: WorkerSlots) -> BatchLayout:
    """Lays the tokens of ``slots`` end to end."""
    ends = np.cumsum(counts, dtype=np.int64)  # [num_seqs]
    token_seq = np.repeat(np.arange(len(slots)), counts)  # [num_tokens]
    catches_up = state.computed[slots] + counts == state.lengths[slots]
    sampled = slots[catches_up]

    def on_device(values: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(state.device)

    return BatchLayout(
        slots=slots,
        counts=counts,
        sampled=sampled,
        row_of={slot: row for row, slot in enumerate(sampled.tolist())},
        steady=bool(catches_up.all() and (counts == 1).all()),
        seq_slots=on_device(slots),
        seq_counts=on_device(counts.astype(np.int64)),
        query_start_loc=on_device(np.append(0, ends).astype(np.int32)),
        token_seq=on_device(token_seq),
        token_slot=on_device(slots[token_seq]),
        token_offset=on_device(np.arange(len(token_seq)) - (ends - counts)[token_seq]),
        sampled_slots=on_device(sampled),
        logits_rows=on_device(ends[catches_up] - 1),
    )


def gather_inputs(layout: BatchLayout, slots: WorkerSlots) -> InputBatch:
    """Gathers a step's inputs from the slots' tensors; only ``max_seq_len`` comes from the host."""
    block_size = slots.block_size
    max_seq_len = int((slots.computed[layout.slots] + layout.counts).max())
    num_blocks = -(-max_seq_len // block_size)
    computed = slots.num_computed[layout.seq_slots]  # [num_seqs]
    block_table = slots.block_table[:, :num_blocks].index_select(0, layout.seq_slots)  # [num_seqs, num_blocks]
    positions = computed[layout.token_seq] + layout.token_offset  # [num_tokens]
    blocks = block_table[layout.token_seq, positions // block_size]  # [num_tokens]
    metadata = AttentionMetadata(
        query_start_loc=layout.query_start_loc,
        seq_lens=(computed + layout.seq_counts).to(torch.int32),
        block_table=block_table,
        slot_mapping=blocks.to(torch.int64) * block_size + positions % block_size,
        max_query_len=int(layout.counts.max()),
        max_seq_len=max_seq_len,
    )
    input_ids = slots.token_ids[layout.token_slot, positions].to(torch.int64)
    return InputBatch(input_ids, positions, metadata)
