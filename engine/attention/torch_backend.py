"""Attention in plain torch: the reference on any device.

Owns the meaning of ``AttentionMetadata``: every other backend is tested against this one. One
sequence at a time, scores in float32; clear before fast.
"""

from __future__ import annotations

import torch

from engine.attention.metadata import AttentionMetadata
from engine.kernels.kv_cache import write_kv_reference
from engine.kv.tensors import LayerKVCache


class TorchBackend:
    """``AttentionBackend`` in plain torch."""

    def write_kv(self, cache: LayerKVCache, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See ``AttentionBackend.write_kv``."""
        write_kv_reference(cache.key, cache.value, key, value, slot_mapping)

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
        output = torch.zeros_like(query)
        starts = metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(metadata.seq_lens.tolist()):
            num_blocks = -(-seq_len // cache.block_size)
            blocks = metadata.block_table[i, :num_blocks].long()
            key = cache.key[blocks].flatten(0, 1)[:seq_len]  # [seq_len, num_kv_heads, head_dim]
            value = cache.value[blocks].flatten(0, 1)[:seq_len]
            rows = slice(starts[i], starts[i + 1])
            output[rows] = _attend(query[rows], key, value, scale, sliding_window)
        return output


def _attend(
    query: torch.Tensor,  # [query_len, num_heads, head_dim], the newest tokens of the sequence
    key: torch.Tensor,  # [seq_len, num_kv_heads, head_dim]
    value: torch.Tensor,  # [seq_len, num_kv_heads, head_dim]
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:  # [query_len, num_heads, head_dim]
    """Causal attention of one sequence."""
    query_len, num_heads, head_dim = query.shape
    seq_len, num_kv_heads, _ = key.shape
    group = num_heads // num_kv_heads
    grouped = query.float().view(query_len, num_kv_heads, group, head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, key.float()) * scale
    query_positions = torch.arange(seq_len - query_len, seq_len, device=query.device)
    distance = query_positions[:, None] - torch.arange(seq_len, device=query.device)  # [query_len, seq_len]
    visible = distance >= 0
    if sliding_window is not None:
        visible &= distance < sliding_window
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    output = torch.einsum("hgqk,khd->qhgd", weights, value.float())
    return output.reshape(query_len, num_heads, head_dim).to(query.dtype)
