"""The gated feed-forward block of the Llama line."""

from __future__ import annotations

import torch
from torch import nn

from engine.config.engine_config import Architecture
from engine.kernels.activation import silu_and_mul
from engine.layers.linear import Linear, MergedLinear


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))`` (SwiGLU: Shazeer, 2020)."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, inner, bias = architecture.hidden_size, architecture.intermediate_size, architecture.mlp_bias
        self.gate_up_proj = MergedLinear(hidden, {"gate": inner, "up": inner}, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # [num_tokens, hidden]
        output: torch.Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(hidden)))
        return output
