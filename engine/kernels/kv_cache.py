"""Writing new keys and values into the paged KV cache.

Owns the choice between ``csrc/kv_cache`` (CPU tensors) and the torch reference (all others). Does
not own the cache's layout (``engine/kv/tensors.py``) or who uses which slot (the engines).
"""

from __future__ import annotations

from struct import Struct

import torch

from engine.kernels.native import check_status, function

#: ``WriteKvArgs`` of csrc/kv_cache/write_kv.cpp.
_ARGS = Struct("PPPPPqqqqq")


def write_kv(
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int64
) -> None:
    """Stores each token's key and value at slot ``block * block_size + offset`` of the caches.

    ``key`` and ``value`` may be views of a wider tensor: only their rows, the last two dimensions,
    must be contiguous.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit, or a slot outside the cache.
    """
    _check(key_cache, value_cache, key, value, slot_mapping)
    if not key_cache.is_cpu:
        write_kv_reference(key_cache, value_cache, key, value, slot_mapping)
        return
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    element = key_cache.element_size()
    status = function("engine_write_kv")(
        _ARGS.pack(
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            slot_mapping.data_ptr(),
            slot_mapping.numel(),
            num_blocks * block_size,
            num_kv_heads * head_dim * element,
            key.stride()[0] * element,
            value.stride()[0] * element,
        )
    )
    check_status(status, "slot_mapping")


def write_kv_reference(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """``write_kv`` in plain torch, on any device."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def _check(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    shape = key_cache.shape
    if len(shape) != 4 or value_cache.shape != shape or not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ValueError(
            "key_cache and value_cache must both be contiguous [num_blocks, block_size, num_kv_heads, head_dim], "
            f"got {list(shape)} and {list(value_cache.shape)}."
        )
    rows = (slot_mapping.numel(), shape[2], shape[3])
    if key.shape != rows or value.shape != rows or slot_mapping.dim() != 1 or slot_mapping.dtype != torch.int64:
        raise ValueError(
            f"for an int64 slot_mapping [num_tokens], key and value must be [num_tokens, {shape[2]}, {shape[3]}], "
            f"got {slot_mapping.dtype} {list(slot_mapping.shape)}, {list(key.shape)} and {list(value.shape)}."
        )
    strides = (shape[3], 1)
    if key.stride()[1:] != strides or value.stride()[1:] != strides or not slot_mapping.is_contiguous():
        raise ValueError("key and value must be contiguous in their last two dimensions, slot_mapping in its only one.")
    if not key_cache.dtype == value_cache.dtype == key.dtype == value.dtype:
        raise ValueError(f"caches, key and value must be of one dtype, got {key_cache.dtype} and {key.dtype}.")
    if not key_cache.device == value_cache.device == key.device == value.device == slot_mapping.device:
        raise ValueError("caches, key, value and slot_mapping must be on one device.")
