"""Rotary position embedding of queries and keys, in place.

Owns the choice between ``csrc/rotary`` (CPU tensors) and the torch reference (all others), and
the layout of the table: ``cos_sin_cache`` is float32 ``[max_position, head_dim]``; row ``p`` holds
the ``head_dim / 2`` cosines of position ``p`` and then its ``head_dim / 2`` sines. Does not own the
frequencies (``engine/layers``), so every kind of rope scaling is just another table.

"Neox style": element ``i`` of the first half of a head turns with element ``i`` of the second half.
Computed in float32 and rounded once. Source: Su et al., "RoFormer", 2021.
"""

from __future__ import annotations

from struct import Struct

import torch

from engine.kernels.native import DTYPE_CODES, IsaLevel, best_isa_level, check_status, function

#: ``RotaryArgs`` of csrc/rotary/rotary.h.
_ARGS = Struct("PPPPqqqqqqqiii")


def rotary_embedding(
    positions: torch.Tensor,  # [num_tokens] int64
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    cos_sin_cache: torch.Tensor,  # [max_position, head_dim] float32
    *,
    level: IsaLevel | None = None,
) -> None:
    """Turns ``query`` and ``key`` by their positions, in place.

    Both may be views of a wider tensor (a fused qkv projection): only their rows, the last two
    dimensions, must be contiguous.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit, or a position outside the table.
    """
    _check(positions, query, key, cos_sin_cache)
    if not query.is_cpu or query.dtype not in DTYPE_CODES:
        rotary_embedding_reference(positions, query, key, cos_sin_cache)
        return
    num_tokens, num_heads, head_dim = query.shape
    status = function("engine_rotary_embedding")(
        _ARGS.pack(
            query.data_ptr(),
            key.data_ptr(),
            positions.data_ptr(),
            cos_sin_cache.data_ptr(),
            num_tokens,
            num_heads,
            key.shape[1],
            head_dim,
            query.stride()[0],
            key.stride()[0],
            cos_sin_cache.shape[0],
            DTYPE_CODES[query.dtype],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status, "a position")


def rotary_embedding_reference(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """``rotary_embedding`` in plain torch, on any device."""
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)  # [num_tokens, 1, head_dim / 2] each
    for heads in (query, key):
        first, second = heads.float().chunk(2, dim=-1)  # [num_tokens, num_heads, head_dim / 2] each
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def _check(positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor) -> None:
    query_shape, key_shape = query.shape, key.shape
    if len(query_shape) != 3 or len(key_shape) != 3 or query_shape[::2] != key_shape[::2] or query_shape[2] % 2:
        raise ValueError(
            "query and key must be [num_tokens, heads, head_dim] with the same num_tokens and the same even head_dim, "
            f"got {list(query_shape)} and {list(key_shape)}."
        )
    num_tokens, _, head_dim = query_shape
    rows = (head_dim, 1)
    if query.stride()[1:] != rows or key.stride()[1:] != rows or query.dtype != key.dtype:
        raise ValueError("query and key must be of one dtype, and contiguous in their last two dimensions.")
    if positions.shape != (num_tokens,) or positions.dtype != torch.int64 or not positions.is_contiguous():
        raise ValueError(f"positions must be a contiguous int64 [{num_tokens}], got {list(positions.shape)}.")
    table = cos_sin_cache
    if table.dim() != 2 or table.shape[1] != head_dim or table.dtype != torch.float32 or not table.is_contiguous():
        raise ValueError(
            f"cos_sin_cache must be a contiguous float32 [max_position, {head_dim}], "
            f"got {table.dtype} {list(table.shape)}."
        )
    if not query.device == key.device == positions.device == table.device:
        raise ValueError("query, key, positions and cos_sin_cache must be on one device.")
