"""Each sampling operation against the plainest way to say what it means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import ops
from engine.sampling.batch import BannedTokens, PenaltyBatch

# Weights and shares in 8ths and 64ths: all sums are exact, and ties and exact hits of p are common.
eighths = st.lists(st.integers(0, 8), min_size=1, max_size=12).map(lambda w: [v / 8 for v in [*w, 8]])


def kept_by_definition(weights: list[float], top_k: int, top_p: float, min_p: float) -> list[bool]:
    """The docstring of ``ops``, word by word."""
    in_top_k = [top_k < 1 or sum(other > w for other in weights) < top_k for w in weights]
    left = [w for w, ok in zip(weights, in_top_k, strict=True) if ok]
    in_top_p = [top_p >= 1 or sum(other for other in left if other > w) < top_p * sum(left) for w in weights]
    in_min_p = [w >= min_p * max(weights) for w in weights]
    return [k and p and m and w > 0 for k, p, m, w in zip(in_top_k, in_top_p, in_min_p, weights, strict=True)]


@pytest.fixture(params=[(1024, 256), (3, 1)], ids=["all-candidates", "few-candidates"])
def candidates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny vocabulary never outgrows the usual candidates, so shrink those as well."""
    monkeypatch.setattr(ops, "_TOP_P_CANDIDATES", request.param[0])
    monkeypatch.setattr(ops, "_TIES", request.param[1])


@pytest.mark.usefixtures("candidates")
@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(eighths, st.integers(-1, 14), st.integers(1, 64), st.integers(0, 8)), min_size=1, max_size=4
    ),
    use=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_filters_keep_what_their_definition_keeps(rows, use) -> None:
    use_k, use_p, use_m = use
    vocab = max(len(weights) for weights, *_ in rows)
    weights = torch.tensor([w + [0.0] * (vocab - len(w)) for w, *_ in rows])
    top_k = [k for _, k, _, _ in rows]
    top_p = [p / 64 for _, _, p, _ in rows]
    min_p = [m / 8 for _, _, _, m in rows]
    expected = [
        kept_by_definition(w, k if use_k else 0, p if use_p else 1.0, m if use_m else 0.0)
        for w, k, p, m in zip(weights.tolist(), top_k, top_p, min_p, strict=True)
    ]
    result = ops.apply_filters(
        weights.clone(),
        torch.tensor(top_k) if use_k else None,
        torch.tensor(top_p) if use_p else None,
        torch.tensor(min_p) if use_m else None,
    )
    assert (result > 0).tolist() == expected
    assert torch.equal(result[result > 0], weights[result > 0])


@pytest.mark.usefixtures("candidates")
def test_ties_that_reach_beyond_the_candidates_count(device: torch.device) -> None:
    """Eight tokens share the second place, so top-k 2 leaves nine, which hold 2; the first is not 70 % of that."""
    weights = torch.tensor([[1.0] + [0.125] * 8], device=device)
    kept = ops.apply_filters(weights, torch.tensor([2], device=device), torch.tensor([0.7], device=device), None)
    assert (kept > 0).all()


def test_a_top_p_of_almost_one_does_not_undo_top_k(device: torch.device) -> None:
    almost_one = torch.full((4000,), 1 - 2**-24, device=device)
    weights = torch.rand(4000, 60, generator=torch.Generator().manual_seed(0)).to(device)
    kept = ops.apply_filters(weights, torch.full((4000,), 40, device=device), almost_one, None)
    assert int((kept > 0).sum(-1).max()) == 40


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_p_of_a_large_vocabulary_equals_a_full_sort(
    spread: float, dtype: torch.dtype, device: torch.device
) -> None:
    """Flat rows need a full sort, peaked ones do not; either way the nucleus is the same."""
    source = torch.Generator().manual_seed(3)
    logits = (torch.randn(6, 30011, generator=source) * spread).to(dtype).float()
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.95, 0.999, 1.0])
    weights = ops.token_weights(logits, logits.amax(-1), torch.ones(6))
    kept = ops.apply_filters(weights.to(device), None, top_p.to(device), None).cpu() > 0
    for row, p in enumerate(top_p.tolist()):
        exact = np.exp(logits[row].double().numpy() - logits[row].max().item())
        values, counts = np.unique(exact, return_counts=True)
        mass = values * counts
        larger = dict(zip(values.tolist(), (mass[::-1].cumsum()[::-1] - mass).tolist(), strict=True))
        share = np.array([larger[w] for w in exact.tolist()]) / exact.sum()
        unclear = (p < 1) & (np.abs(share - p) < 1e-6)  # float32 weights cannot tell these
        assert np.array_equal(kept[row].numpy() | unclear, (share < p) | (p >= 1) | unclear)
        assert unclear.sum() < 200


penalty_row = st.tuples(
    st.lists(st.floats(-20, 20, width=32), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.floats(0.125, 4, width=32),
    st.floats(-2, 2, width=32),
    st.floats(-2, 2, width=32),
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(penalty_row, min_size=1, max_size=4))
def test_penalties_equal_their_formulas(rows) -> None:
    assert_penalties(rows, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_penalties_equal_their_formulas_on_cuda() -> None:
    row = (
        [-3.0, 2.0, 0.0, 1.5, -0.5, 9.0],
        [True, False, True, False, False, True],
        [0, 2, 1, 0, 3, 0],
        1.5,
        0.5,
        -0.25,
    )
    assert_penalties([row, row], torch.device("cuda"))


def assert_penalties(rows, device: torch.device) -> None:
    """Penalised rows stand between others, which must stay as they are."""
    untouched = [7.0, -7.0, 0.0, 1.0, 2.0, 3.0]
    logits = torch.tensor([values for row in rows for values in (untouched, row[0])], device=device)

    def column(index: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([row[index] for row in rows], dtype=dtype, device=device)

    batch = PenaltyBatch(
        rows=torch.arange(1, 2 * len(rows), 2, device=device),
        repetition=column(3),
        presence=column(4),
        frequency=column(5),
        prompt_mask=column(1, torch.bool),
        output_counts=column(2, torch.int32),
    )
    result = ops.apply_penalties(logits, batch).tolist()
    for index, (values, in_prompt, counts, repetition, presence, frequency) in enumerate(rows):
        assert result[2 * index] == untouched
        for token, value in enumerate(values):
            if in_prompt[token] or counts[token]:
                value = value / repetition if value > 0 else value * repetition
            value -= frequency * counts[token] + presence * (counts[token] > 0)
            assert result[2 * index + 1][token] == pytest.approx(value, rel=1e-5, abs=1e-5)


def test_extreme_penalties_stay_comparable(device: torch.device) -> None:
    logits = torch.tensor([[0.0, 1.0, 3e38, -math.inf, 5.0]], device=device)
    one = torch.ones(1, device=device)
    seen = torch.tensor([[True, True, True, True, False]], device=device)
    batch = PenaltyBatch(torch.zeros(1, dtype=torch.int64, device=device), one * 0.0, one, one, seen, seen.int() * 0)
    (row,) = ops.apply_penalties(logits, batch).tolist()
    assert row[0] == 0.0 and row[3] == -math.inf and row[4] == 5.0
    assert all(math.isfinite(v) and v > 1e37 for v in row[1:3])


def test_banned_tokens(device: torch.device) -> None:
    logits = torch.zeros(2, 3, device=device)
    pairs = BannedTokens(torch.tensor([0, 0, 1], device=device), torch.tensor([0, 2, 1], device=device))
    ban = -math.inf
    assert ops.ban_tokens(logits, pairs).tolist() == [[ban, 0, ban], [0, ban, 0]]


def test_finite_logits(device: torch.device) -> None:
    clean = torch.tensor([[1.0, -math.inf]], device=device)
    dirty = torch.tensor([[math.nan, 2.0], [math.inf, 3.0], [4.0, -math.inf]], device=device)
    assert ops.finite_logits(clean).tolist() == [[1.0, -math.inf]]
    assert ops.finite_logits(dirty).tolist() == [[-math.inf, 2.0], [-math.inf, 3.0], [4.0, -math.inf]]


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 100.0])
def test_no_temperature_overflows(temperature: float, device: torch.device) -> None:
    logits = torch.tensor([[3.4e38, -3.4e38, 3.4e38, -math.inf]], device=device)
    weights = ops.token_weights(logits, logits.amax(-1), torch.tensor([temperature], device=device))
    assert weights.tolist() == [[1.0, 0.0, 1.0, 0.0]]


def draw(weights: list[float], uniform: float, device: torch.device) -> int:
    uniforms = torch.tensor([uniform], dtype=torch.float64, device=device)
    return int(ops.sample_inverse_cdf(torch.tensor([weights], device=device), uniforms))


def test_each_token_owns_its_share_of_the_unit_interval(device: torch.device) -> None:
    weights = [0.0, 1.0, 0.0, 0.5, 0.5, 0.0]
    drawn = [draw(weights, u, device) for u in (0.0, 0.499, 0.5, 0.749, 0.75, 1 - 2**-53)]
    assert drawn == [1, 1, 3, 3, 4, 4]


def test_rounding_at_the_end_never_draws_an_impossible_token(device: torch.device) -> None:
    assert draw([1.0, 0.1, 0.1, 0.1, 0.0, 0.0], 1 - 2**-53, device) == 3
    assert draw([0.0, 0.0], 0.5, device) == 1  # no mass: some token, inside the vocabulary


def test_the_far_tail_can_be_drawn(device: torch.device) -> None:
    """A float32 sum would lose a token of probability 1e-12 altogether."""
    assert draw([1.0, 1e-12], 1 - 1e-13, device) == 1
