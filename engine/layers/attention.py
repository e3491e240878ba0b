"""Attention layers.

Owns the projections and the call of the attention backend. The caches, the batch and the backend
come from the forward context; no layer remembers anything of a request.
"""

from __future__ import annotations

import torch
from torch import nn

from engine.attention.context import current_context
from engine.config.engine_config import Architecture
from engine.layers.linear import Linear, QKVLinear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryEmbedding


class Attention(nn.Module):
    """Scaled dot product attention of one layer over the paged KV cache."""

    def __init__(self, layer_index: int, head_dim: int, sliding_window: int | None) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.scale = head_dim**-0.5
        self.sliding_window = sliding_window

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores the new keys and values, then attends; all [num_tokens, heads, head_dim]."""
        context = current_context()
        cache, metadata, backend = context.kv_caches[self.layer_index], context.metadata, context.backend
        backend.write_kv(cache, key, value, metadata.slot_mapping)
        return backend.forward(query, cache, metadata, scale=self.scale, sliding_window=self.sliding_window)


class SelfAttention(nn.Module):
    """Grouped-query self-attention with rotary embeddings (Ainslie et al., 2023).

    The families differ in where the biases are and in whether each head's query and key are
    normalised before they are rotated (``qk_norm``).
    """

    def __init__(
        self,
        architecture: Architecture,
        layer_index: int,
        rotary: RotaryEmbedding,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        hidden, head_dim = architecture.hidden_size, architecture.head_dim
        heads, kv_heads = architecture.num_heads, architecture.num_kv_heads
        self.head_dim = head_dim
        self.head_counts = (heads, kv_heads, kv_heads)
        self.qkv_proj = QKVLinear(hidden, heads, kv_heads, head_dim, bias=qkv_bias)
        self.q_norm = RMSNorm(head_dim, architecture.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, architecture.rms_norm_eps) if qk_norm else None
        self.rotary = rotary
        self.attn = Attention(layer_index, head_dim, architecture.sliding_window)
        self.o_proj = Linear(heads * head_dim, hidden, bias=output_bias)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:  # [num_tokens, hidden]
        num_tokens = hidden.shape[0]
        qkv = self.qkv_proj(hidden).view(num_tokens, -1, self.head_dim)  # [num_tokens, heads + 2 kv_heads, head_dim]
        query, key, value = qkv.split_with_sizes(self.head_counts, 1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        self.rotary(positions, query, key)
        output: torch.Tensor = self.o_proj(self.attn(query, key, value).view(num_tokens, -1))
        return output
