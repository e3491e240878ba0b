"""engine/layers/rotary.py: the table of cosines and sines."""

import dataclasses

import pytest
import torch

from engine.config.engine_config import RopeScaling
from engine.layers.rotary import RotaryEmbedding, cos_sin_table, rotary_frequencies
from tests.support.configs import tiny_config

ARCHITECTURE = tiny_config(served_name="rotary").model.architecture
HALF = ARCHITECTURE.head_dim // 2


def test_the_table_is_as_long_as_the_context_in_use_and_float32() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        table = RotaryEmbedding(ARCHITECTURE, max_model_len=57).cos_sin_cache
    finally:
        torch.set_default_dtype(torch.float32)
    assert table.shape == (57, ARCHITECTURE.head_dim)
    assert table.dtype == torch.float32
    torch.testing.assert_close(table[:, :HALF] ** 2 + table[:, HALF:] ** 2, torch.ones(57, HALF))
    assert torch.equal(table[0], torch.tensor([1.0] * HALF + [0.0] * HALF))


def test_explicit_factors_divide_the_frequencies() -> None:
    """What GGUF files of Llama 3 carry equals the formula the factors were made with."""
    llama3 = RopeScaling(kind="llama3", factor=8.0, original_max_position=64)
    scaled = dataclasses.replace(ARCHITECTURE, rope_scaling=llama3)
    plain_frequencies, _ = rotary_frequencies(ARCHITECTURE, 256)
    expected, _ = rotary_frequencies(scaled, 256)
    divisors = tuple((plain_frequencies / expected).tolist())
    explicit = RopeScaling(kind="factors", factor=1.0, original_max_position=64, factors=divisors)
    with_factors = dataclasses.replace(ARCHITECTURE, rope_scaling=explicit)
    torch.testing.assert_close(cos_sin_table(with_factors, 256), cos_sin_table(scaled, 256), rtol=1e-4, atol=1e-4)
    assert max(divisors) == pytest.approx(8.0)
    assert min(divisors) == pytest.approx(1.0)
