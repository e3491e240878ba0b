"""Linear layers: one matrix, or several that read the same input merged into one.

Owns how their weights are loaded and packed. The product itself is ``engine/kernels/linear.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from engine.errors import ModelError
from engine.kernels.linear import PackedWeight, linear, pack_linear_weight
from engine.layers.parameter import copy_weight, make_parameter, replace_weight


class Linear(nn.Module):
    """``x @ weight.T + bias``."""

    weight: nn.Parameter | PackedWeight  # [out_features, in_features]

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = make_parameter((out_features, in_features), self.load_shard)
        self.bias = make_parameter((out_features,), self.load_shard) if bias else None

    def load_shard(self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        """The ``weight_loader`` of ``weight`` and ``bias``; a plain layer has no shards."""
        copy_weight(param, loaded)

    def pack(self) -> None:
        """Replaces the loaded weight by the form that its kernel is fastest with, and frees the plain one."""
        assert isinstance(self.weight, nn.Parameter), "a weight is packed once"
        packed = pack_linear_weight(self.weight)
        if isinstance(packed, PackedWeight):
            replace_weight(self, packed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, in] -> [num_tokens, out]
        return linear(x, self.weight, self.bias)


class MergedLinear(Linear):
    """Projections of the same input as one product; ``shards`` gives each one's name and output size."""

    def __init__(self, in_features: int, shards: Mapping[str, int], *, bias: bool = False) -> None:
        super().__init__(in_features, sum(shards.values()), bias=bias)
        self.shard_rows: dict[str, slice] = {}
        start = 0
        for name, size in shards.items():
            self.shard_rows[name] = slice(start, start + size)
            start += size

    def load_shard(self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        if shard not in self.shard_rows:
            raise ModelError(
                f"A merged weight is loaded in the parts {', '.join(self.shard_rows)}, not {shard or 'whole'}."
            )
        copy_weight(param[self.shard_rows[shard]], loaded)


class QKVLinear(MergedLinear):
    """Query, key and value projections; the output holds all query heads, then keys, then values."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool) -> None:
        shards = {"q": num_heads * head_dim, "k": num_kv_heads * head_dim, "v": num_kv_heads * head_dim}
        super().__init__(hidden_size, shards, bias=bias)
