"""Random ragged batches for the attention tests, and a dense attention that shares no code with any backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.attention.metadata import AttentionMetadata
from engine.kv.tensors import LayerKVCache


@dataclass(frozen=True)
class RaggedBatch:
    """A batch whose cache is already written; ``keys[i]``/``values[i]`` are sequence i's, unpaged."""

    query: torch.Tensor  # [num_tokens, num_heads, head_dim]
    keys: list[torch.Tensor]  # [seq_len, num_kv_heads, head_dim] each
    values: list[torch.Tensor]
    cache: LayerKVCache
    metadata: AttentionMetadata


def make_batch(
    lens: list[tuple[int, int]],  # (query_len, seq_len) of each sequence
    *,
    heads: tuple[int, int] = (9, 3),
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> RaggedBatch:
    """Pages are shuffled; what belongs to nobody, and table entries past a sequence's end, are poison."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    num_heads, num_kv_heads = heads
    counts = [math.ceil(seq_len / block_size) for _, seq_len in lens]
    num_blocks = sum(counts) + 3
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    cache = LayerKVCache(torch.full(shape, math.nan, dtype=dtype), torch.full(shape, math.nan, dtype=dtype))
    free = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.full((len(lens), max(counts) + 2), 2**31 - 1, dtype=torch.int32)
    keys, values, slots = [], [], []
    for i, (query_len, seq_len) in enumerate(lens):
        blocks = torch.tensor([free.pop() for _ in range(counts[i])])
        table[i, : counts[i]] = blocks
        positions = torch.arange(seq_len)
        slot = blocks[positions // block_size] * block_size + positions % block_size
        keys.append(normal(seq_len, num_kv_heads, head_dim))
        values.append(normal(seq_len, num_kv_heads, head_dim))
        cache.key.flatten(0, 1)[slot] = keys[-1]
        cache.value.flatten(0, 1)[slot] = values[-1]
        slots.append(slot[seq_len - query_len :])
    query_lens = torch.tensor([0] + [q for q, _ in lens])
    metadata = AttentionMetadata(
        query_start_loc=query_lens.cumsum(0).int(),
        seq_lens=torch.tensor([s for _, s in lens], dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.cat(slots),
        max_query_len=max(q for q, _ in lens),
        max_seq_len=max(s for _, s in lens),
    )
    return RaggedBatch(normal(int(query_lens.sum()), num_heads, head_dim), keys, values, cache, metadata)


def dense_attention(batch: RaggedBatch, scale: float, window: int | None) -> torch.Tensor:
    """One query token and head at a time, in float64."""
    output = torch.empty_like(batch.query, dtype=torch.float64)
    starts = batch.metadata.query_start_loc.tolist()
    for i, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
        query_len, seq_len = starts[i + 1] - starts[i], key.shape[0]
        group = batch.query.shape[1] // key.shape[1]
        for q in range(query_len):
            end = seq_len - query_len + q + 1
            begin = 0 if window is None else max(0, end - window)
            for h in range(batch.query.shape[1]):
                k, v = key[begin:end, h // group].double(), value[begin:end, h // group].double()
                weights = torch.softmax(k @ batch.query[starts[i] + q, h].double() * scale, dim=0)
                output[starts[i] + q, h] = weights @ v
    return output
