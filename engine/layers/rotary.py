"""Rotary position embeddings (Su et al., 2021) and the ways to stretch them over longer contexts.

Owns the table of cosines and sines. The rotation is ``engine/kernels/rotary.py``: halves of a head
are paired (the "neox" order of Hugging Face checkpoints), not neighbours.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from engine.config.engine_config import Architecture, RopeScaling
from engine.kernels.rotary import rotary_embedding


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by their positions; one instance serves all layers of a model."""

    cos_sin_cache: torch.Tensor  # [max_model_len, head_dim] float32, cosines then sines

    def __init__(self, architecture: Architecture, max_model_len: int) -> None:
        super().__init__()
        self.register_buffer("cos_sin_cache", cos_sin_table(architecture, max_model_len), persistent=False)

    def forward(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
        """Rotates [num_tokens, heads, head_dim] tensors in place; ``positions`` is [num_tokens] int64."""
        rotary_embedding(positions, query, key, self.cos_sin_cache)


def cos_sin_table(architecture: Architecture, max_model_len: int) -> torch.Tensor:
    """[max_model_len, head_dim] float32: cosines, then sines, of every position's angles.

    Always float32, whatever the model's dtype: an angle of some thousand radians has no
    correct digit left in bfloat16.
    """
    frequencies, magnitude = rotary_frequencies(architecture, max_model_len)
    positions = torch.arange(max_model_len, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)  # [max_model_len, head_dim / 2]
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * magnitude


def rotary_frequencies(architecture: Architecture, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Radians per position of each pair, [head_dim / 2] float32, and the factor on cosines and sines."""
    dim, theta, scaling = architecture.head_dim, architecture.rope_theta, architecture.rope_scaling
    if scaling is None:
        return _frequencies(dim, theta), 1.0
    if scaling.kind == "linear":
        return _frequencies(dim, theta) / scaling.factor, 1.0
    if scaling.kind == "dynamic":
        return _frequencies(dim, _dynamic_theta(dim, theta, scaling, max_model_len)), 1.0
    if scaling.kind == "factors":
        return _frequencies(dim, theta) / torch.tensor(scaling.factors, dtype=torch.float32), 1.0
    if scaling.kind == "llama3":
        return _llama3(_frequencies(dim, theta), scaling), 1.0
    return _yarn(_frequencies(dim, theta), theta, scaling)


def _frequencies(dim: int, theta: float) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    result: torch.Tensor = 1.0 / theta**exponents
    return result


def _dynamic_theta(dim: int, theta: float, scaling: RopeScaling, max_model_len: int) -> float:
    """The base of "NTK-aware" scaling for the longest sequence this model may hold.

    Defined on the length of each sequence, it would change with every token, while cached keys are
    already rotated. So all sequences use the base of ``max_model_len``, which is exact for the
    longest ones, and plain rotary embeddings when the original context is not exceeded.
    """
    length = max(max_model_len, scaling.original_max_position)
    stretch = scaling.factor * length / scaling.original_max_position - (scaling.factor - 1)
    return float(theta * stretch ** (dim / (dim - 2)))


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: slow pairs are divided by the factor, fast ones kept, those between interpolated."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)  # full turns within the original context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, keep.clamp(0, 1))


def _yarn(frequencies: torch.Tensor, theta: float, scaling: RopeScaling) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al., 2023): a linear ramp over pair indices, and sharper attention."""
    dim = 2 * len(frequencies)

    def pair_index(turns: float) -> float:
        """The (fractional) pair that makes this many turns within the original context."""
        return dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_index(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_index(scaling.beta_slow)), dim - 1)
    interpolate = (torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return torch.lerp(frequencies, frequencies / scaling.factor, interpolate.clamp(0, 1)), magnitude
