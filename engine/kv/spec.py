"""``KVCacheSpec``: the size of a KV cache, from an architecture. Torch-free.

Owns the arithmetic: bytes of a block, blocks in a budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.engine_config import Architecture, Dtype

DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """One layer holds keys and values as ``[num_blocks, block_size, num_kv_heads, head_dim]`` each."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: Dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        per_token = 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]
        return per_token * self.block_size


def spec_of(architecture: Architecture, block_size: int, dtype: Dtype) -> KVCacheSpec:
    """The cache that a model of this architecture needs."""
    return KVCacheSpec(
        num_layers=architecture.num_layers,
        num_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        block_size=block_size,
        dtype=dtype,
    )
