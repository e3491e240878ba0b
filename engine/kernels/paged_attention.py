"""Ragged causal attention over the paged KV cache on CPUs.

Owns the call of ``csrc/paged_attention``. Its reference is ``engine/attention/torch_backend.py``.
"""

from __future__ import annotations

import torch

from engine.attention.metadata import AttentionMetadata
from engine.kernels.native import DTYPE_CODES, IsaLevel, best_isa_level, check_status, function
from engine.kv.tensors import LayerKVCache

MAX_HEAD_DIM = 256


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    cache: LayerKVCache,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    level: IsaLevel | None = None,
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
    """Attention of each query token over its sequence's cached keys and values, itself included.

    ``query`` may be a view of a wider tensor: only its last two dimensions must be contiguous.
    The result of a sequence does not depend on the other sequences or on the number of threads.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit; lengths or blocks outside of the batch or cache.
    """
    _check_tensors(query, cache)
    _check_metadata(metadata, query.shape[0])
    num_tokens, num_heads, head_dim = query.shape
    num_blocks, block_size, num_kv_heads, _ = cache.key.shape
    output = query.new_empty(num_tokens, num_heads, head_dim)
    status = function("engine_paged_attention")(
        output.data_ptr(),
        query.data_ptr(),
        cache.key.data_ptr(),
        cache.value.data_ptr(),
        metadata.query_start_loc.data_ptr(),
        metadata.seq_lens.data_ptr(),
        metadata.block_table.data_ptr(),
        num_tokens,
        metadata.num_seqs,
        num_heads,
        num_kv_heads,
        head_dim,
        num_blocks,
        block_size,
        query.stride(0),
        metadata.block_table.stride(0),
        metadata.block_table.shape[1],
        sliding_window or 0,
        scale,
        DTYPE_CODES[query.dtype],
        best_isa_level() if level is None else level,
        torch.get_num_threads(),
    )
    check_status(status, "query_start_loc, seq_lens or block_table")
    return output


def _check_tensors(query: torch.Tensor, cache: LayerKVCache) -> None:
    if query.dim() != 3 or cache.key.dim() != 4 or cache.key.shape != cache.value.shape:
        raise ValueError(
            "query must be [num_tokens, num_heads, head_dim], keys and values [num_blocks, block_size, num_kv_heads, "
            f"head_dim]; got {list(query.shape)}, {list(cache.key.shape)} and {list(cache.value.shape)}."
        )
    _, num_heads, head_dim = query.shape
    num_kv_heads = cache.key.shape[2]
    if head_dim % 8 or not 0 < head_dim <= MAX_HEAD_DIM or cache.key.shape[3] != head_dim:
        raise ValueError(
            f"head_dim must be a multiple of 8 up to {MAX_HEAD_DIM}, the same in query and cache; "
            f"got {head_dim} and {cache.key.shape[3]}."
        )
    if num_heads == 0 or num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}.")
    if query.dtype not in DTYPE_CODES or not query.dtype == cache.key.dtype == cache.value.dtype:
        raise ValueError(
            "query, keys and values must be of one dtype, float32, bfloat16 or float16; "
            f"got {query.dtype}, {cache.key.dtype} and {cache.value.dtype}."
        )
    if query.stride()[1:] != (head_dim, 1) or not (cache.key.is_contiguous() and cache.value.is_contiguous()):
        raise ValueError("query must be contiguous in its last two dimensions, the cache in all of them.")
    if not (query.is_cpu and cache.key.is_cpu and cache.value.is_cpu):
        raise ValueError("query and cache must be on the CPU.")


def _check_metadata(metadata: AttentionMetadata, num_tokens: int) -> None:
    starts, lens, table = metadata.query_start_loc, metadata.seq_lens, metadata.block_table
    num_seqs = lens.shape[0] if lens.dim() == 1 else -1
    if starts.shape != (num_seqs + 1,) or table.dim() != 2 or table.shape[0] != num_seqs:
        raise ValueError(
            "query_start_loc must be [num_seqs + 1], seq_lens [num_seqs], block_table [num_seqs, max_blocks]; "
            f"got {list(starts.shape)}, {list(lens.shape)} and {list(table.shape)}."
        )
    for name, tensor in (("query_start_loc", starts), ("seq_lens", lens), ("block_table", table)):
        if tensor.dtype != torch.int32 or not tensor.is_cpu or tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be int32 with contiguous rows on the CPU, got {tensor.dtype}.")
