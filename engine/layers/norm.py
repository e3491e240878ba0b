"""Root mean square layer normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import nn

from engine.kernels.rms_norm import add_rms_norm, rms_norm
from engine.layers.parameter import copy_weight, make_parameter


class RMSNorm(nn.Module):
    """Scales the last dimension to unit root mean square, then by ``weight``."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = make_parameter((size,), self.load_weight)

    def load_weight(self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        """The ``weight_loader`` of ``weight``."""
        copy_weight(param, loaded)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., size]
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(normalised sum, sum)`` of two [num_tokens, size] tensors, in one pass over them."""
        return add_rms_norm(x, residual, self.weight, self.eps)
