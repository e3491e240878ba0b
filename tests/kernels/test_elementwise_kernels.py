"""rms_norm, rotary_embedding, silu_and_mul and write_kv against their torch references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.activation import silu_and_mul, silu_and_mul_reference
from engine.kernels.kv_cache import write_kv, write_kv_reference
from engine.kernels.native import IsaLevel
from engine.kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from engine.kernels.rotary import rotary_embedding, rotary_embedding_reference
from tests.kernels.levels import DTYPES, LEVELS

SIZES = pytest.mark.parametrize("size", [1, 8, 64, 77, 576])


def normal(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to the last bit: the order of a sum may differ, nothing else."""
    relative = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=relative, atol=relative / 10)


@LEVELS
@DTYPES
@SIZES
def test_rms_norm(size: int, dtype: str, level: IsaLevel) -> None:
    x, weight = normal(2, 3, size, dtype=dtype) * 3, normal(size, dtype=dtype, seed=1)
    close(rms_norm(x, weight, 1e-5, level=level), rms_norm_reference(x, weight, 1e-5))


@LEVELS
@DTYPES
@SIZES
def test_add_rms_norm(size: int, dtype: str, level: IsaLevel) -> None:
    x, residual, weight = (normal(5, size, dtype=dtype, seed=s) for s in range(3))
    before = x.clone(), residual.clone()
    y, total = add_rms_norm(x, residual, weight[0], 1e-5, level=level)
    expected_y, expected_total = add_rms_norm_reference(x, residual, weight[0], 1e-5)
    close(y, expected_y)
    assert torch.equal(total, expected_total)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


def test_rms_norm_takes_heads_of_a_fused_projection() -> None:
    heads = normal(4, 6, 32, dtype="float32")[:, 1:3]  # rows apart, as in per-head norms
    weight = normal(32, dtype="float32")
    close(rms_norm(heads, weight, 1e-6), rms_norm_reference(heads, weight, 1e-6))


@LEVELS
@DTYPES
def test_rows_shared_by_threads_equal_rows_alone(dtype: str, level: IsaLevel) -> None:
    x, weight = normal(64, 576, dtype=dtype), normal(576, dtype=dtype, seed=1)
    alone = torch.cat([rms_norm(row[None], weight, 1e-5, level=level) for row in x])
    assert torch.equal(rms_norm(x, weight, 1e-5, level=level), alone)


@LEVELS
@DTYPES
@SIZES
def test_silu_and_mul(size: int, dtype: str, level: IsaLevel) -> None:
    x = normal(7, 2 * size, dtype=dtype) * 4
    close(silu_and_mul(x, level=level), silu_and_mul_reference(x))


@LEVELS
@DTYPES
def test_silu_and_mul_far_from_zero(dtype: str, level: IsaLevel) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e30], dtype=torch.float32)
    x = torch.cat((gate.clamp(-6e4, 6e4), torch.ones(8))).to(getattr(torch, dtype))[None]
    torch.testing.assert_close(silu_and_mul(x, level=level), silu_and_mul_reference(x), rtol=1e-3, atol=1e-30)


@LEVELS
@DTYPES
@pytest.mark.parametrize("head_dim", [2, 20, 64, 128])
def test_rotary_embedding(head_dim: int, dtype: str, level: IsaLevel) -> None:
    qkv = normal(9, 7, head_dim, dtype=dtype)
    table = normal(50, head_dim, dtype="float32", seed=1)
    positions = torch.tensor([0, 49, 3, 3, 1, 7, 20, 21, 22])
    actual, expected = qkv.clone(), qkv.clone()
    rotary_embedding(positions, actual[:, :4], actual[:, 4:6], table, level=level)
    rotary_embedding_reference(positions, expected[:, :4], expected[:, 4:6], table)
    torch.testing.assert_close(actual, expected, rtol=2**-7 if dtype == "bfloat16" else 1e-3, atol=1e-6)
    assert torch.equal(actual[:, 6:], qkv[:, 6:])  # the values beside them stay


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_write_kv_writes_its_slots_and_no_others(data: st.DataObject) -> None:
    num_blocks, block_size = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([8, 16, 32]))
    slots = data.draw(st.lists(st.integers(0, num_blocks * block_size - 1), unique=True, max_size=20))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    qkv = normal(len(slots), 7, 16, dtype=dtype)
    caches = [normal(num_blocks, block_size, 2, 16, dtype=dtype, seed=s) for s in (1, 2)]
    expected = [cache.clone() for cache in caches]
    slot_mapping = torch.tensor(slots, dtype=torch.int64)
    write_kv(caches[0], caches[1], qkv[:, 3:5], qkv[:, 5:], slot_mapping)
    write_kv_reference(expected[0], expected[1], qkv[:, 3:5], qkv[:, 5:], slot_mapping)
    assert torch.equal(caches[0], expected[0]) and torch.equal(caches[1], expected[1])


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, weight = normal(3, 8, dtype="float32"), normal(8, dtype="float32")
    with pytest.raises(ValueError, match="weight"):
        rms_norm(x, weight[:7], 1e-5)
    with pytest.raises(ValueError, match="weight"):
        rms_norm(x, weight.bfloat16(), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(x, x[:2], weight, 1e-5)
    with pytest.raises(ValueError, match="contiguous"):
        silu_and_mul(x.T)
    with pytest.raises(ValueError, match=r"2 \* d"):
        silu_and_mul(x[:, :7].contiguous())


def test_rotary_arguments_that_do_not_fit_are_refused() -> None:
    query, key, table = normal(3, 4, 8, dtype="float32"), normal(3, 2, 8, dtype="float32"), torch.zeros(10, 8)
    positions = torch.arange(3)
    before = query.clone()
    with pytest.raises(ValueError, match="position"):
        rotary_embedding(positions + 8, query, key, table)
    with pytest.raises(ValueError, match="position"):
        rotary_embedding(positions - 1, query, key, table)
    with pytest.raises(ValueError, match="int64"):
        rotary_embedding(positions.int(), query, key, table)
    with pytest.raises(ValueError, match="cos_sin_cache"):
        rotary_embedding(positions, query, key, table.double())
    with pytest.raises(ValueError, match="one dtype"):
        rotary_embedding(positions, query, key.half(), table)
    with pytest.raises(ValueError, match="last two dimensions"):
        rotary_embedding(positions, query.transpose(1, 2).contiguous().transpose(1, 2), key, table)
    with pytest.raises(ValueError, match="num_tokens"):
        rotary_embedding(positions, query, key[:2], table)
    assert torch.equal(query, before)


def test_write_kv_arguments_that_do_not_fit_are_refused() -> None:
    cache, rows = torch.zeros(2, 8, 2, 16), normal(3, 2, 16, dtype="float32")
    slots = torch.tensor([0, 1, 2])
    for bad in (torch.tensor([0, 1, 16]), torch.tensor([0, -1, 2])):
        with pytest.raises(ValueError, match="slot_mapping"):
            write_kv(cache, cache.clone(), rows, rows, bad)
    with pytest.raises(ValueError, match="slot_mapping"):
        write_kv(cache, cache.clone(), rows, rows, slots.int())
    with pytest.raises(ValueError, match="must be"):
        write_kv(cache, cache.clone(), rows[:2], rows, slots)
    with pytest.raises(ValueError, match="dtype"):
        write_kv(cache, cache.clone(), rows.half(), rows.half(), slots)
    with pytest.raises(ValueError, match="contiguous"):
        write_kv(cache[:, :, :1], cache[:, :, :1], rows[:, :1], rows[:, :1], slots)
    assert not cache.any()
