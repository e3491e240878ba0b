"""``AttentionMetadata``: the one ragged description of a batch that every backend reads.

Owns the shapes. A batch is a run of sequences; each brings some query tokens (all of a
prompt, a chunk of it, or one decode token) laid end to end. V0's ``[prefill | decode]``
batch is the same thing, sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's batch. All tensors live on the model's device.

    Sequence ``i`` owns query tokens ``query_start_loc[i]:query_start_loc[i + 1]``, the newest of
    its ``seq_lens[i]`` tokens; position ``p`` of it is stored in block ``block_table[i, p //
    block_size]`` at offset ``p % block_size``. Block table entries past the sequence's last block
    are arbitrary and must not be followed.
    """

    query_start_loc: torch.Tensor  # [num_seqs + 1] int32
    seq_lens: torch.Tensor  # [num_seqs] int32, tokens after this step, its query tokens included
    block_table: torch.Tensor  # [num_seqs, max_blocks] int32
    slot_mapping: torch.Tensor  # [num_tokens] int64, block * block_size + offset of each query token
    max_query_len: int
    max_seq_len: int
