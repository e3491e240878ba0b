"""Our dequantisers against those of the gguf package, block for block."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.loader import dequantize as module
from engine.loader.dequantize import dequantize
from engine.loader.gguf_file import SUPPORTED_TYPES, GgufTensor

ROWS, COLUMNS = 37, 1024


def random_blocks(kind: GGMLQuantizationType) -> np.ndarray:  # [ROWS, bytes of COLUMNS values]
    """Every bit random: all codes and all scale patterns occur, infinite and NaN scales too."""
    values, num_bytes = GGML_QUANT_SIZES[kind]
    return np.random.default_rng(int(kind)).integers(0, 256, (ROWS, COLUMNS // values * num_bytes), dtype=np.uint8)


def expected(stored: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(stored.view(np.float32) if kind.name == "F32" else stored, kind)


@pytest.mark.parametrize("name", SUPPORTED_TYPES)
@pytest.mark.parametrize("chunk_values", [1 << 10, 1 << 18])
def test_equals_the_gguf_package_bit_for_bit(name: str, chunk_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_VALUES", chunk_values)
    kind = GGMLQuantizationType[name]
    stored = random_blocks(kind)
    result = dequantize(GgufTensor("t", (ROWS, COLUMNS), kind, stored.reshape(-1)), torch.float32)
    np.testing.assert_array_equal(result.numpy(), expected(stored, kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["F32", "F16", "Q4_1", "Q8_0", "Q6_K"])
def test_rounds_once_to_the_wanted_dtype(name: str, dtype: torch.dtype) -> None:
    kind = GGMLQuantizationType[name]
    stored = random_blocks(kind)
    result = dequantize(GgufTensor("t", (ROWS, COLUMNS), kind, stored.reshape(-1)), dtype)
    reference = torch.from_numpy(expected(stored, kind).astype(np.float32)).to(dtype)
    assert result.dtype == dtype
    torch.testing.assert_close(result, reference, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_recovers_what_was_quantized(name: str) -> None:
    kind = GGMLQuantizationType[name]
    values = np.random.default_rng(1).standard_normal((4, 256), dtype=np.float32)
    stored = gguf.quants.quantize(values, kind)
    result = dequantize(GgufTensor("t", values.shape, kind, stored.reshape(-1).view(np.uint8)), torch.float32)
    assert np.abs(result.numpy() - values).max() < 0.5
