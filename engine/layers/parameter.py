"""Parameters that know how they are loaded.

Owns the ``weight_loader`` convention, so that a loader needs no knowledge of any architecture and a
layer alone decides which part of a checkpoint's tensor it keeps.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from engine.errors import ModelError
from engine.kernels.linear import PackedWeight


class WeightLoader(Protocol):
    """Copies one checkpoint tensor into its place."""

    def __call__(self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        """Stores ``loaded`` in ``param``; ``shard`` names its part of a merged parameter, else ``None``.

        Raises:
            ModelError: the tensor's shape or shard is not one of this parameter.
        """
        ...


def make_parameter(shape: tuple[int, ...], weight_loader: WeightLoader) -> nn.Parameter:
    """An uninitialised parameter of the default dtype and device; its loader must fill all of it."""
    parameter = nn.Parameter(torch.empty(shape), requires_grad=False)
    parameter.weight_loader = weight_loader  # type: ignore[attr-defined]
    return parameter


def copy_weight(target: torch.Tensor, loaded: torch.Tensor) -> None:
    """Copies with a change of dtype and device, but never of shape.

    Raises:
        ModelError: the shapes differ; ``copy_`` alone would broadcast some of them silently.
    """
    if target.shape != loaded.shape:
        raise ModelError(f"A weight has the shape {list(loaded.shape)} where the model needs {list(target.shape)}.")
    target.copy_(loaded)


def replace_weight(module: nn.Module, packed: PackedWeight) -> None:
    """Makes ``packed`` the ``weight`` of a module, in place of its parameter."""
    del module.weight  # a module refuses anything but a parameter under a parameter's name
    module.weight = packed  # type: ignore[assignment]
