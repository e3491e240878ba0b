"""Ragged causal attention over the paged KV cache on CPUs.

Owns the call of ``csrc/paged_attention``. Its reference is ``engine/attention/torch_backend.py``.
"""

from __future__ import annotations

from struct import Struct

import torch

from engine.attention.metadata import AttentionMetadata
from engine.kernels.native import DTYPE_CODES, IsaLevel, best_isa_level, check_status, function
from engine.kv.tensors import LayerKVCache

MAX_HEAD_DIM = 256

#: ``PagedAttentionArgs`` of csrc/paged_attention/paged_attention.h.
_ARGS = Struct("PPPPPPPqqqqqqqqqqqfiii")
_NO_WINDOW = 2**31 - 1


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
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1 or None, got {sliding_window}.")
    _check_tensors(query, cache)
    _check_metadata(metadata)
    num_tokens, num_heads, head_dim = query.shape
    num_blocks, block_size, num_kv_heads, _ = cache.key.shape
    table = metadata.block_table
    output = query.new_empty(num_tokens, num_heads, head_dim)
    status = function("engine_paged_attention")(
        _ARGS.pack(
            output.data_ptr(),
            query.data_ptr(),
            cache.key.data_ptr(),
            cache.value.data_ptr(),
            metadata.query_start_loc.data_ptr(),
            metadata.seq_lens.data_ptr(),
            table.data_ptr(),
            num_tokens,
            table.shape[0],
            num_heads,
            num_kv_heads,
            head_dim,
            num_blocks,
            block_size,
            query.stride()[0],
            table.stride()[0],
            table.shape[1],
            _NO_WINDOW if sliding_window is None else min(sliding_window, _NO_WINDOW),
            scale,
            DTYPE_CODES[query.dtype],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status, "query_start_loc, seq_lens or block_table")
    return output


def _check_tensors(query: torch.Tensor, cache: LayerKVCache) -> None:
    key, value = cache.key, cache.value
    query_shape, key_shape = query.shape, key.shape
    if len(query_shape) != 3 or len(key_shape) != 4 or value.shape != key_shape:
        raise ValueError(
            "query must be [num_tokens, num_heads, head_dim], keys and values [num_blocks, block_size, num_kv_heads, "
            f"head_dim]; got {list(query_shape)}, {list(key_shape)} and {list(value.shape)}."
        )
    _, num_heads, head_dim = query_shape
    _, _, num_kv_heads, cache_head_dim = key_shape
    if head_dim % 8 or not 0 < head_dim <= MAX_HEAD_DIM or cache_head_dim != head_dim:
        raise ValueError(
            f"head_dim must be a multiple of 8 up to {MAX_HEAD_DIM}, the same in query and cache; "
            f"got {head_dim} and {cache_head_dim}."
        )
    if num_heads == 0 or num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}.")
    if query.dtype not in DTYPE_CODES or not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            "query, keys and values must be of one dtype, float32, bfloat16 or float16; "
            f"got {query.dtype}, {key.dtype} and {value.dtype}."
        )
    if query.stride()[1:] != (head_dim, 1) or not (key.is_contiguous() and value.is_contiguous()):
        raise ValueError("query must be contiguous in its last two dimensions, the cache in all of them.")
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        raise ValueError("query and cache must be on the CPU.")


def _check_metadata(metadata: AttentionMetadata) -> None:
    starts, lens, table = metadata.query_start_loc, metadata.seq_lens, metadata.block_table
    num_seqs = lens.numel()
    if lens.dim() != 1 or starts.shape != (num_seqs + 1,) or table.dim() != 2 or table.shape[0] != num_seqs:
        raise ValueError(
            "query_start_loc must be [num_seqs + 1], seq_lens [num_seqs], block_table [num_seqs, max_blocks]; "
            f"got {list(starts.shape)}, {list(lens.shape)} and {list(table.shape)}."
        )
    if not (
        starts.dtype == lens.dtype == table.dtype == torch.int32 and starts.is_cpu and lens.is_cpu and table.is_cpu
    ):
        raise ValueError(
            "query_start_loc, seq_lens and block_table must be int32 on the CPU; "
            f"got {starts.dtype}, {lens.dtype} and {table.dtype}."
        )
    if not (starts.is_contiguous() and lens.is_contiguous()) or table.stride()[1] != 1:
        raise ValueError("query_start_loc, seq_lens and the rows of block_table must be contiguous.")
