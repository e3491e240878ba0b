"""The KV cache's tensors. Owns their layout and allocation, not who uses which block."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from engine.kv.spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class LayerKVCache:
    """Keys and values of one layer."""

    key: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    value: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]

    @property
    def block_size(self) -> int:
        return self.key.shape[1]


def allocate_kv_caches(spec: KVCacheSpec, num_blocks: int, device: torch.device) -> list[LayerKVCache]:
    """Allocates zeroed caches, one a layer.

    On a CPU the pages come from an anonymous map, so a block costs memory only once it is
    written: a server that holds few tokens stays small whatever the cache could hold.
    """
    shape = (spec.num_layers, 2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
    dtype = getattr(torch, spec.dtype)
    if device.type == "cpu":
        pages = mmap.mmap(-1, spec.block_bytes * num_blocks)
        storage = torch.frombuffer(pages, dtype=dtype).view(shape)
    else:
        storage = torch.zeros(shape, dtype=dtype, device=device)
    return [LayerKVCache(layer[0], layer[1]) for layer in storage]
