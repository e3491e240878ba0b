"""``BatchLayout``: who computes what in a step. Owns the noun; ``input_batch.py`` makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchLayout:
    """Who computes what. Sequence ``i`` is slot ``slots[i]`` and computes ``counts[i]`` tokens, at least one.

    ``sampled`` are the slots whose computed tokens catch up in this step: row ``j`` of the logits
    belongs to ``sampled[j]``.
    """

    # On the host
    slots: NDArray[np.int64]  # [num_seqs]
    counts: NDArray[np.int32]  # [num_seqs]
    sampled: NDArray[np.int64]  # [num_sampled]
    #: The row of each sampled slot.
    row_of: dict[int, int]
    #: Everybody decodes one token and is sampled: the layout stays valid until a plan changes something.
    steady: bool
    # On the device, int64
    seq_slots: torch.Tensor  # [num_seqs]
    seq_counts: torch.Tensor  # [num_seqs]
    query_start_loc: torch.Tensor  # [num_seqs + 1] int32
    token_seq: torch.Tensor  # [num_tokens] the sequence of each token
    token_slot: torch.Tensor  # [num_tokens] its slot
    token_offset: torch.Tensor  # [num_tokens] its place among the sequence's tokens of this step
    sampled_slots: torch.Tensor  # [num_sampled]
    logits_rows: torch.Tensor  # [num_sampled] each sampled sequence's last token
