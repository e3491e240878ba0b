"""The gated activation between a transformer's up and down projections.

Owns the choice between ``csrc/activation`` (CPU tensors) and the torch reference (all others).
Source: Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from __future__ import annotations

from struct import Struct

import torch
from torch.nn.functional import silu

from engine.kernels.native import DTYPE_CODES, IsaLevel, best_isa_level, check_status, function

#: ``SiluAndMulArgs`` of csrc/activation/activation.h.
_ARGS = Struct("PPqqiii")


def silu_and_mul(x: torch.Tensor, *, level: IsaLevel | None = None) -> torch.Tensor:
    """``silu(gate) * up`` where ``x`` [num_tokens, 2 * d] is ``gate`` beside ``up``; returns [num_tokens, d].

    Raises:
        ValueError: ``x`` is not a contiguous matrix with an even number of columns.
    """
    if x.dim() != 2 or not x.is_contiguous() or x.shape[1] % 2:
        raise ValueError(
            f"x must be a contiguous [num_tokens, 2 * d] tensor, got {list(x.shape)}, strides {x.stride()}."
        )
    if not x.is_cpu or x.dtype not in DTYPE_CODES:
        return silu_and_mul_reference(x)
    num_tokens, width = x.shape
    output = x.new_empty(num_tokens, width // 2)
    status = function("engine_silu_and_mul")(
        _ARGS.pack(
            output.data_ptr(),
            x.data_ptr(),
            num_tokens,
            width // 2,
            DTYPE_CODES[x.dtype],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status)
    return output


def silu_and_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """``silu_and_mul`` in plain torch, on any device."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up
