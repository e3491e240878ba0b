"""``sample``: what rows get, and that no row depends on its neighbours."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.sampling.batch import BannedTokens, PenaltyBatch, SamplingBatch
from engine.sampling.sampler import sample

VOCAB = 500


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=seeded(seed)) * 3


def make_batch(temperature: list[float], device: torch.device, **options: Any) -> SamplingBatch:
    options.setdefault("generator", seeded(1))
    tensors = {
        name: torch.tensor(options.pop(name), dtype=torch.int64 if name == "top_k" else torch.float32, device=device)
        for name in ("top_k", "top_p", "min_p")
        if name in options
    }
    return SamplingBatch(
        temperature=torch.tensor(temperature, device=device),
        all_greedy=all(t == 0 for t in temperature),
        **tensors,
        **options,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_most_likely(dtype: torch.dtype, device: torch.device) -> None:
    logits = make_logits(4).to(dtype)
    logits[1, [7, 300]] = 99.0
    output = sample(logits.to(device), make_batch([0.0] * 4, device))
    assert output.token_ids.tolist() == logits.float().argmax(-1).tolist()
    assert output.token_ids[1] == 7 and output.logprobs is None and not output.invalid.any()


def test_greedy_and_random_rows_in_one_batch(device: torch.device) -> None:
    logits = make_logits(20).to(device)
    temperature = [0.0, 100.0] * 10
    output = sample(logits, make_batch(temperature, device)).token_ids
    best = logits.argmax(-1)
    assert torch.equal(output[::2], best[::2])
    assert (output[1::2] != best[1::2]).sum() >= 9


def test_top_k_of_one_is_greedy_even_among_equals(device: torch.device) -> None:
    logits = make_logits(32).to(device)
    logits[:, [3, 4, 5, 6]] = 50.0
    assert sample(logits, make_batch([1.0] * 32, device, top_k=[1] * 32)).token_ids.tolist() == [3] * 32


def test_filters_reach_the_right_rows(device: torch.device) -> None:
    """Row 2 is greedy, so on a CPU the filtered rows are not where they were in the batch."""
    logits = make_logits(1).repeat(5, 1)
    order = logits[0].argsort(descending=True).tolist()
    logits[2] += 30_000  # weights relative to this row's maximum would underflow
    allowed = [set(order[:2]), set(order[:5]), {order[0]}, set(order), set(order[:2])]
    batch = make_batch([30.0, 30.0, 0.0, 30.0, 30.0], device, top_k=[2, 5, 9, 0, 2])
    drawn = [set() for _ in range(5)]
    for _ in range(60):
        for row, token in enumerate(sample(logits.to(device), batch).token_ids.tolist()):
            drawn[row].add(token)
    assert all(d <= a for d, a in zip(drawn, allowed, strict=True))
    assert drawn[0] == allowed[0] and drawn[1] == allowed[1] and len(drawn[3]) > 20


def test_a_seeded_row_depends_on_nothing_but_its_seed(device: torch.device) -> None:
    logits = make_logits(6).to(device)
    alone = []
    generator = seeded(77)
    for _ in range(25):
        batch = make_batch([1.3], device, top_p=[0.9], generators={0: generator})
        alone += sample(logits[2:3], batch).token_ids.tolist()
    crowded = []
    generators = {5: seeded(77), 1: seeded(78)}
    moved = logits[[0, 1, 3, 4, 5, 2]]
    for step in range(25):
        batch = make_batch(
            [0.0, 2.0, 1.0, 0.5, 0.9, 1.3],
            device,
            top_p=[1.0, 0.2, 0.5, 1.0, 0.7, 0.9],
            top_k=[0, 400, 0, 3, 1, 0],
            min_p=[0.0, 0.0, 0.9, 0.0, 0.2, 0.0],
            generators=generators,
            generator=seeded(step),
            num_logprobs=3,
        )
        crowded += sample(moved, batch).token_ids[5:].tolist()
    assert crowded == alone
    assert len(set(alone)) > 5


def test_a_seed_repeats_and_another_differs(device: torch.device) -> None:
    logits = make_logits(1).repeat(3, 1).to(device)
    batch = make_batch([5.0] * 3, device, generators={0: seeded(5), 1: seeded(5), 2: seeded(6)})
    draws = torch.stack([sample(logits, batch).token_ids for _ in range(20)])
    assert torch.equal(draws[:, 0], draws[:, 1])
    assert not torch.equal(draws[:, 0], draws[:, 2])


def test_no_row_touches_another(device: torch.device) -> None:
    """Rows of every broken kind between healthy ones: the healthy tokens do not change."""
    logits = make_logits(8)
    broken = logits.clone()
    broken[1] = math.nan
    broken[3] = -math.inf
    broken[5] = math.inf
    broken[6, ::2] = math.nan
    temperature = [0.8, 0.8, 0.0, 0.8, 1.5, 0.0, 0.8, 1.0]
    options: dict[str, Any] = {"top_p": [0.9] * 8, "top_k": [40] * 8, "min_p": [0.01] * 8, "num_logprobs": 2}
    good = sample(logits.to(device), make_batch(temperature, device, **options))
    bad = sample(broken.to(device), make_batch(temperature, device, **options))
    assert bad.invalid.tolist() == [False, True, False, True, False, True, False, False]
    healthy = [0, 2, 4, 7]
    assert torch.equal(good.token_ids[healthy], bad.token_ids[healthy])
    assert torch.equal(good.logprobs.logprobs[healthy], bad.logprobs.logprobs[healthy])
    assert bad.token_ids[[1, 3, 5]].tolist() == [0, 0, 0]
    assert bad.token_ids[6] % 2 == 1


def test_banning_everything_is_invalid_not_a_crash(device: torch.device) -> None:
    logits = torch.zeros(2, 3, device=device)
    pairs = BannedTokens(torch.tensor([1, 1, 1], device=device), torch.tensor([0, 1, 2], device=device))
    for temperature in (0.0, 1.0):
        output = sample(logits, make_batch([temperature] * 2, device, banned=pairs))
        assert output.invalid.tolist() == [False, True]


def test_penalties_and_bans_choose_but_do_not_show_in_logprobs(device: torch.device) -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]], device=device)
    one = torch.ones(1, device=device)
    penalties = PenaltyBatch(
        rows=torch.tensor([0], device=device),
        repetition=one,
        presence=one * 2.5,
        frequency=one * 0,
        prompt_mask=torch.zeros(1, 4, dtype=torch.bool, device=device),
        output_counts=torch.tensor([[1, 0, 0, 0]], dtype=torch.int32, device=device),
    )
    banned = BannedTokens(torch.tensor([0], device=device), torch.tensor([1], device=device))
    output = sample(logits, make_batch([0.0], device, penalties=penalties, banned=banned, num_logprobs=2))
    assert output.token_ids.tolist() == [2]
    assert output.logprobs is not None
    raw = logits.double().log_softmax(-1)[0].tolist()
    assert output.logprobs.token_ids.tolist() == [[2, 0, 1]]
    assert output.logprobs.logprobs[0].tolist() == pytest.approx([raw[2], raw[0], raw[1]], abs=1e-5)


@pytest.mark.parametrize("k", [0, 1, 20])
def test_logprobs_and_ranks_equal_a_double_precision_softmax(k: int, device: torch.device) -> None:
    logits = make_logits(16)
    output = sample(logits.to(device), make_batch([2.0] * 16, device, top_k=[50] * 16, num_logprobs=k))
    exact = logits.double().log_softmax(-1)
    assert output.logprobs is not None and output.logprobs.token_ids.shape == (16, k + 1)
    ids, values = output.logprobs.token_ids.cpu(), output.logprobs.logprobs.cpu()
    assert torch.equal(ids[:, 0], output.token_ids.cpu())
    torch.testing.assert_close(values, exact.gather(1, ids).float(), atol=1e-5, rtol=0)
    assert torch.equal(ids[:, 1:], exact.argsort(-1, descending=True)[:, :k])
    ranks = (exact > exact.gather(1, ids[:, :1])).sum(-1) + 1
    assert torch.equal(output.logprobs.ranks.cpu(), ranks) and len(set(ranks.tolist())) > 3


def test_more_logprobs_than_tokens(device: torch.device) -> None:
    output = sample(torch.zeros(1, 3, device=device), make_batch([0.0], device, num_logprobs=20))
    assert output.logprobs is not None and output.logprobs.token_ids.shape == (1, 4)


def test_neither_the_input_nor_the_global_generator_changes(device: torch.device) -> None:
    logits = make_logits(3).to(device)
    before, state = logits.clone(), torch.get_rng_state()
    banned = BannedTokens(torch.tensor([0], device=device), torch.tensor([1], device=device))
    sample(
        logits,
        make_batch([1.0, 0.0, 2.0], device, top_p=[0.5] * 3, banned=banned, generators={0: seeded(3)}, num_logprobs=1),
    )
    assert torch.equal(logits, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_empty_batch(device: torch.device) -> None:
    output = sample(torch.zeros(0, VOCAB, device=device), make_batch([], device))
    assert output.token_ids.shape == (0,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cpu_and_a_gpu_draw_the_same_tokens() -> None:
    logits = make_logits(200)
    drawn = [
        sample(
            logits.to(device),
            make_batch([1.0] * 200, torch.device(device), top_p=[0.95] * 200, top_k=[100] * 200),
        ).token_ids.tolist()
        for device in ("cpu", "cuda")
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_is_never_waited_for() -> None:
    device = torch.device("cuda")
    logits = make_logits(4).to(device)
    one = torch.ones(1, device=device)
    seen = torch.ones(1, VOCAB, dtype=torch.bool, device=device)
    batch = make_batch(
        [1.0, 0.0, 0.5, 2.0],
        device,
        top_k=[0, 1, 5, 9],
        top_p=[0.9] * 4,
        min_p=[0.1] * 4,
        penalties=PenaltyBatch(torch.tensor([2], device=device), one, one, one, seen, seen.int()),
        banned=BannedTokens(torch.tensor([0], device=device), torch.tensor([1], device=device)),
        generator=torch.Generator(device).manual_seed(0),
        generators={0: torch.Generator(device).manual_seed(1)},
        num_logprobs=2,
    )
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(logits, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
