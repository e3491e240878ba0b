"""Attention on CPUs: the C++ kernels of ``csrc/``.

Owns nothing but the fit between ``AttentionBackend`` and the kernel wrappers.
"""

from __future__ import annotations

import torch

from engine.attention.metadata import AttentionMetadata
from engine.kernels.kv_cache import write_kv
from engine.kernels.paged_attention import paged_attention
from engine.kv.tensors import LayerKVCache


class CpuBackend:
    """``AttentionBackend`` on the compiled kernels."""

    def write_kv(self, cache: LayerKVCache, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See ``AttentionBackend.write_kv``."""
        write_kv(cache.key, cache.value, key, value, slot_mapping)

    def forward(
        self,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        cache: LayerKVCache,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
        """See ``AttentionBackend.forward``."""
        return paged_attention(query, cache, metadata, scale=scale, sliding_window=sliding_window)
