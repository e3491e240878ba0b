"""Random weights, for measuring and testing without a checkpoint.

Owns the distribution. A parameter's values depend on the seed and its name alone, so both engines,
and every process of one, have the same model in whatever order they fill it.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn

#: Uniform in +-limit; the standard deviation is 0.02, as models are initialised for training.
_LIMIT = 0.02 * 3**0.5


def fill_with_dummy_weights(model: nn.Module, seed: int) -> None:
    """Sets norm weights to one and everything else to small random numbers."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
            continue
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        # Drawn on the CPU: the same numbers on every device.
        values = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
        parameter.copy_(values.uniform_(-_LIMIT, _LIMIT, generator=generator))
