"""The packed linear layer against a product in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.linear import PackedWeight, linear, pack_linear_weight
from engine.kernels.native import IsaLevel
from tests.kernels.levels import LEVELS, SUPPORTED


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def packed(weight: torch.Tensor) -> PackedWeight:
    result = pack_linear_weight(weight)
    assert isinstance(result, PackedWeight)
    return result


def assert_product(actual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-4 * weight.shape[1] ** 0.5)


@LEVELS
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 16, 17, 33, 100])
@pytest.mark.parametrize("shape", [(576, 576), (100, 50), (17, 33), (1, 1), (48, 1536)])
def test_linear(shape: tuple[int, int], num_tokens: int, level: IsaLevel) -> None:
    weight, x, bias = normal(*shape), normal(num_tokens, shape[1], seed=1), normal(shape[0], seed=2)
    assert_product(linear(x, packed(weight), level=level), x, weight, None)
    assert_product(linear(x, packed(weight), bias, level=level), x, weight, bias)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 70),
    out_features=st.integers(1, 200),
    in_features=st.integers(1, 200),
    level=st.sampled_from(SUPPORTED),
)
def test_linear_of_any_shape(tokens: int, out_features: int, in_features: int, level: IsaLevel) -> None:
    wide = normal(tokens, in_features + 3)
    x, weight = wide[:, 1 : in_features + 1], normal(out_features, in_features, seed=1)  # rows apart
    assert_product(linear(x, packed(weight), level=level), x, weight, None)


@LEVELS
def test_a_row_does_not_depend_on_its_batch(level: IsaLevel) -> None:
    weight, x = packed(normal(608, 320)), normal(70, 320, seed=1)
    together = linear(x, weight, level=level)
    for start, end in ((0, 1), (5, 21), (10, 43), (69, 70)):
        assert torch.equal(linear(x[start:end], weight, level=level), together[start:end])


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    weight, x = packed(normal(608, 320)), normal(70, 320, seed=1)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 50):
            torch.set_num_threads(count)
            results.append(linear(x, weight))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


def test_packing_loses_nothing() -> None:
    weight = normal(100, 50)
    assert torch.equal(packed(weight).rows(torch.arange(100)), weight)
    assert torch.equal(packed(weight).rows(torch.tensor([99, 0, 99])), weight[[99, 0, 99]])


def test_other_dtypes_stay_plain() -> None:
    weight, x = normal(8, 16).float(), normal(3, 16, seed=1).float()
    assert pack_linear_weight(weight) is weight
    torch.testing.assert_close(linear(x, weight), x @ weight.T)


def test_arguments_that_do_not_fit_are_refused() -> None:
    weight, x = packed(normal(8, 16)), normal(3, 16)
    with pytest.raises(ValueError, match="x must be"):
        linear(x[:, :15], weight)
    with pytest.raises(ValueError, match="x must be"):
        linear(x.float(), weight)
    with pytest.raises(ValueError, match="rows of x"):
        linear(normal(16, 3).T, weight)
    with pytest.raises(ValueError, match="bias"):
        linear(x, weight, normal(7))
    with pytest.raises(ValueError, match="bias"):
        linear(x, weight, normal(8).float())
