"""Chi-square tests of what is drawn against the distribution asked for; seeds are fixed."""

from __future__ import annotations

import math

import pytest
import torch

from engine.sampling.batch import SamplingBatch
from engine.sampling.sampler import sample

DRAWS = 40_000


def chi_square_z(observed: torch.Tensor, probabilities: torch.Tensor) -> float:
    """How many standard deviations too far the counts are from expectation (Wilson and Hilferty 1931)."""
    possible = probabilities > 0
    assert observed[~possible].sum() == 0, "an impossible token was drawn"
    expected = probabilities[possible] * observed.sum()
    assert expected.min() > 5, "too few draws for this test"
    statistic = float(((observed[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.6, 0, 1.0, 0.0),
        (1.7, 0, 1.0, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.08),
        (0.9, 12, 0.9, 0.05),
    ],
)
def test_draws_follow_the_filtered_softmax(
    temperature: float, top_k: int, top_p: float, min_p: float, device: torch.device
) -> None:
    logits = torch.linspace(2.0, -2.0, 24)[torch.randperm(24, generator=torch.Generator().manual_seed(9))]
    probabilities = (logits.double() / temperature).softmax(-1)
    order = probabilities.argsort(descending=True)
    if top_k:
        probabilities[order[top_k:]] = 0
    if top_p < 1:
        mass = probabilities[order].cumsum(-1) / probabilities.sum()
        probabilities[order[int((mass < top_p).sum()) + 1 :]] = 0
    probabilities[probabilities < min_p * probabilities.max()] = 0
    probabilities /= probabilities.sum()
    full = torch.ones(DRAWS, device=device)
    batch = SamplingBatch(
        temperature=full * temperature,
        all_greedy=False,
        generator=torch.Generator().manual_seed(2024),
        top_k=(full * top_k).long() if top_k else None,
        top_p=full * top_p if top_p < 1 else None,
        min_p=full * min_p if min_p else None,
    )
    drawn = sample(logits.repeat(DRAWS, 1).to(device), batch).token_ids.cpu()
    assert abs(chi_square_z(drawn.bincount(minlength=24), probabilities)) < 3.5


def test_neighbouring_seeds_draw_independently() -> None:
    """Clients count their seeds up from 0; the first token of each must still be a fair draw."""
    n, vocab = 4000, 20
    batch = SamplingBatch(
        temperature=torch.ones(n),
        all_greedy=False,
        generator=torch.Generator().manual_seed(0),
        generators={row: torch.Generator().manual_seed(row) for row in range(n)},
    )
    logits = torch.zeros(n, vocab)
    first, second = sample(logits, batch).token_ids, sample(logits, batch).token_ids
    fair = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
    for tokens in (first, second, (first[1:] - first[:-1]) % vocab, (second - first) % vocab):
        assert abs(chi_square_z(tokens.bincount(minlength=vocab), fair)) < 3.5
