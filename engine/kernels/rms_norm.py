"""Root-mean-square layer norm, alone and fused with the residual add before it.

Owns the choice between ``csrc/rms_norm`` (CPU tensors) and the torch reference (all others).
Rounds where Hugging Face's Llama does: the normalised value is rounded to the model's dtype
before it is multiplied by the weight, so that both agree bit for bit but for summation order.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

from struct import Struct

import torch

from engine.kernels.native import DTYPE_CODES, IsaLevel, best_isa_level, check_status, function

#: ``RmsNormArgs`` of csrc/rms_norm/rms_norm.h.
_ARGS = Struct("PPPPPqqfiii")


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, level: IsaLevel | None = None
) -> torch.Tensor:  # [..., hidden]
    """Normalises each row of ``x`` [..., hidden] and scales it by ``weight`` [hidden].

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    size = _row_size(x, weight)
    if not x.is_cpu or x.dtype not in DTYPE_CODES:
        return rms_norm_reference(x, weight, eps)
    x = x.contiguous()
    output = torch.empty_like(x)
    status = function("engine_rms_norm")(
        _ARGS.pack(
            output.data_ptr(),
            0,
            x.data_ptr(),
            0,
            weight.data_ptr(),
            x.numel() // size,
            size,
            eps,
            DTYPE_CODES[x.dtype],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, level: IsaLevel | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds ``residual`` to ``x`` and normalises the sum: ``(rms_norm(x + residual), x + residual)``.

    ``x`` and ``residual`` are [..., hidden] of one dtype; neither is written.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    size = _row_size(x, weight)
    if residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        raise ValueError(f"residual is {_describe(residual)} and must be like x, {_describe(x)}.")
    if not x.is_cpu or x.dtype not in DTYPE_CODES:
        return add_rms_norm_reference(x, residual, weight, eps)
    x, residual = x.contiguous(), residual.contiguous()
    output, total = torch.empty_like(x), torch.empty_like(x)
    status = function("engine_rms_norm")(
        _ARGS.pack(
            output.data_ptr(),
            total.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.numel() // size,
            size,
            eps,
            DTYPE_CODES[x.dtype],
            best_isa_level() if level is None else level,
            torch.get_num_threads(),
        )
    )
    check_status(status)
    return output, total


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm`` in plain torch, on any device."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``add_rms_norm`` in plain torch, on any device."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def _row_size(x: torch.Tensor, weight: torch.Tensor) -> int:
    """The size of the last dimension of ``x``, once ``weight`` fits it."""
    size = weight.numel()
    if size == 0 or weight.dim() != 1 or x.dim() == 0 or x.shape[-1] != size or not weight.is_contiguous():
        raise ValueError(f"weight is {_describe(weight)} and does not fit the last dimension of x, {_describe(x)}.")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise ValueError(f"weight is {_describe(weight)} and must be of the dtype and device of x, {_describe(x)}.")
    return size


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
