"""The attention backend contract.

Owns the protocol. Implementations: ``torch_backend`` (plain torch, the reference on any
device) and ``cpu_backend`` (the C++ kernel of ``csrc/``). ``make_backend`` picks by name.
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.attention.metadata import AttentionMetadata
from engine.config.engine_config import AttentionBackendName
from engine.kv.tensors import LayerKVCache


class AttentionBackend(Protocol):
    """Stateless: a backend computes on its arguments and remembers nothing."""

    def write_kv(
        self,
        cache: LayerKVCache,
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        slot_mapping: torch.Tensor,  # [num_tokens] int64
    ) -> None:
        """Stores each token's key and value at its slot."""
        ...

    def forward(
        self,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        cache: LayerKVCache,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
        """Causal attention of each query token over its sequence's cached keys and values."""
        ...


def make_backend(name: AttentionBackendName) -> AttentionBackend:
    """Makes the backend of that name; imports only what it needs."""
    if name == "cpu":
        from engine.attention.cpu_backend import CpuBackend

        return CpuBackend()
    from engine.attention.torch_backend import TorchBackend

    return TorchBackend()
