"""``ModelInput`` and its builder: a step's tensors, made from zero out of full metadata.

V0's workers remember no request, so each step pays for all tokens it computes and all blocks
its sequences hold. Owns the batch layout: sequences in scheduled order, prefills first, their
query tokens end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.metadata import AttentionMetadata
from engine.v0.core.sequence import SequenceData
from engine.v0.core.sequence_group import SequenceGroupMetadata


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The inputs of one forward pass, on the model's device."""

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    attention: AttentionMetadata


class ModelInputBuilder:
    """Stateless but for the block size and the device."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device

    def build(self, metadata_list: Sequence[SequenceGroupMetadata]) -> ModelInput:
        """The tensors of a batch of at least one group."""
        data: list[SequenceData] = []
        query_lens_list: list[int] = []
        tables: list[list[int]] = []
        for metadata in metadata_list:
            for seq_id, seq_data in metadata.seq_data.items():
                data.append(seq_data)
                query_lens_list.append(metadata.token_chunk_size)
                tables.append(metadata.block_tables[seq_id])

        query_lens = np.array(query_lens_list, dtype=np.int64)  # [num_seqs]
        context_lens = np.array([d.num_computed_tokens for d in data], dtype=np.int64)  # [num_seqs]
        seq_lens = context_lens + query_lens
        query_start_loc = np.zeros(len(data) + 1, dtype=np.int64)
        np.cumsum(query_lens, out=query_start_loc[1:])
        num_tokens = int(query_start_loc[-1])

        row_of_token = np.repeat(np.arange(len(data)), query_lens)  # [num_tokens]
        positions = np.arange(num_tokens) - (query_start_loc[:-1] - context_lens)[row_of_token]  # [num_tokens]
        block_table = _padded(tables)  # [num_seqs, max_blocks]
        blocks = block_table[row_of_token, positions // self._block_size].astype(np.int64)
        slot_mapping = blocks * self._block_size + positions % self._block_size  # [num_tokens]
        return ModelInput(
            input_ids=self._tensor(_query_tokens(data, query_lens_list, num_tokens)),
            positions=self._tensor(positions),
            attention=AttentionMetadata(
                query_start_loc=self._tensor(query_start_loc.astype(np.int32)),
                seq_lens=self._tensor(seq_lens.astype(np.int32)),
                block_table=self._tensor(block_table),
                slot_mapping=self._tensor(slot_mapping),
                max_query_len=int(query_lens.max()),
                max_seq_len=int(seq_lens.max()),
            ),
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _query_tokens(data: list[SequenceData], query_lens: list[int], num_tokens: int) -> npt.NDArray[np.int64]:
    """[num_tokens] the tokens each sequence computes in this step."""
    tokens = chain.from_iterable(
        d.token_ids[d.num_computed_tokens : d.num_computed_tokens + n] for d, n in zip(data, query_lens, strict=True)
    )
    return np.fromiter(tokens, dtype=np.int64, count=num_tokens)


def _padded(tables: list[list[int]]) -> npt.NDArray[np.int32]:
    """[num_seqs, max_blocks]; entries past a sequence's last block are 0 and never followed."""
    lens = np.array([len(table) for table in tables])  # [num_seqs]
    padded = np.zeros((len(tables), lens.max()), dtype=np.int32)
    padded[np.arange(padded.shape[1]) < lens[:, None]] = np.fromiter(
        chain.from_iterable(tables), dtype=np.int32, count=int(lens.sum())
    )
    return padded
