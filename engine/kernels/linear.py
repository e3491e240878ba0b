"""Linear layers, with a weight layout of our own where that is faster.

Owns ``PackedWeight`` and when to use it. At small batches a linear layer costs what it costs to
read its weight once, so the packed weight replaces the plain one: there is only one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import torch
from torch.nn import functional

from engine.kernels.native import IsaLevel, best_isa_level, check_status, function

#: ``LinearArgs`` of csrc/linear/linear.h.
_ARGS = Struct("PPPPqqqqii")
_PANEL = 16  # features of a panel
_DEPTH = 32  # in_features are padded with zeros to a multiple of this


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A bfloat16 weight ``[out_features, in_features]`` in the order in which the CPU kernel reads it.

    ``data[n // 16, k // 2, n % 16, k % 2]`` is ``weight[n, k]``; features past the last are zero.
    """

    data: torch.Tensor  # [ceil(out_features / 16), ceil(in_features / 32) * 16, 16, 2] bfloat16
    out_features: int
    in_features: int

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """The rows ``weight[index]`` [n, in_features] of an index [n]: the lookup of a tied embedding."""
        panels = self.data[index // 16, :, index % 16]  # [n, in_features / 2 (padded), 2]
        return panels.flatten(1)[:, : self.in_features]


def pack_linear_weight(weight: torch.Tensor) -> torch.Tensor | PackedWeight:
    """The form of ``weight`` [out_features, in_features] that ``linear`` is fastest with.

    Packed for bfloat16 on a CPU (then drop the plain weight), ``weight`` itself for all others.
    """
    if not weight.is_cpu or weight.dtype != torch.bfloat16:
        return weight
    out_features, in_features = weight.shape
    padding = (0, -in_features % _DEPTH, 0, -out_features % _PANEL)
    padded = functional.pad(weight.detach(), padding).contiguous()
    pairs = padded.view(torch.int32).view(-1, _PANEL, padded.shape[1] // 2)  # [panels, 16, in_features / 2 (padded)]
    data = pairs.transpose(1, 2).contiguous().view(torch.bfloat16).view(*pairs.transpose(1, 2).shape, 2)
    return PackedWeight(data, out_features, in_features)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    level: IsaLevel | None = None,
) -> torch.Tensor:  # [num_tokens, out_features]
    """``x @ weight.T + bias`` for ``x`` [num_tokens, in_features], ``bias`` [out_features].

    Raises:
        ValueError: ``x`` or ``bias`` does not fit a packed weight.
    """
    if isinstance(weight, torch.Tensor):
        return functional.linear(x, weight, bias)
    _check(x, weight, bias)
    num_tokens, out_features = x.shape[0], weight.out_features
    output = x.new_empty(num_tokens, out_features)
    status = function("engine_linear")(
        _ARGS.pack(
            output.data_ptr(),
            x.data_ptr(),
            weight.data.data_ptr(),
            bias.data_ptr() if bias is not None else 0,
            num_tokens,
            out_features,
            weight.in_features,
            x.stride()[0],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status)
    return output


def _check(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> None:
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.dtype != torch.bfloat16 or not x.is_cpu:
        raise ValueError(
            f"x must be bfloat16 [num_tokens, {weight.in_features}] on the CPU, "
            f"got {x.dtype} {list(x.shape)} on {x.device}."
        )
    if x.stride()[1] != 1:
        raise ValueError(f"the rows of x must be contiguous, got strides {x.stride()}.")
    if bias is not None and (
        bias.shape != (weight.out_features,) or bias.dtype != x.dtype or not (bias.is_contiguous() and bias.is_cpu)
    ):
        raise ValueError(f"bias must be bfloat16 [{weight.out_features}], got {bias.dtype} {list(bias.shape)}.")
