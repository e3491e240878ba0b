"""engine/v1/worker with a tiny random Llama: however a batch is cut and composed, the tokens are the same."""

from dataclasses import replace

import pytest
import torch

from engine.api import SamplingParams
from engine.config import EngineConfig
from engine.v1.executor.uniproc import UniprocExecutor
from engine.v1.llm_engine.engine_core import EngineCore
from engine.v1.llm_engine.messages import AddRequest, TokenLogprobs
from tests.v1.helpers import VOCAB, make_config

PROMPTS = [[(7 * i + 3 * j) % VOCAB for j in range(length)] for i, length in enumerate([1, 2, 7, 19, 33])]


class Run:
    """Requests through a core with a real worker."""

    def __init__(self, config: EngineConfig) -> None:
        self.core = EngineCore(config, UniprocExecutor(config))
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}

    def add(self, handle: int, prompt: list[int], **params: object) -> None:
        params = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **params}
        self.core.add(AddRequest(handle, prompt, SamplingParams(**params)))
        self.tokens[handle], self.logprobs[handle] = [], []

    def run(self) -> dict[int, list[int]]:
        while self.core.has_work:
            outputs = self.core.step()
            for handle, token in zip(outputs.handles, outputs.token_ids, strict=True):
                self.tokens[handle].append(token)
            for row in outputs.logprobs:
                self.logprobs[row.handle].append(row)
            self.core.scheduler.check_invariants()
        return self.tokens


def run_all(config: EngineConfig, prompts: list[list[int]], **params: object) -> list[list[int]]:
    run = Run(config)
    for handle, prompt in enumerate(prompts):
        run.add(handle, prompt, **params)
    return list(run.run().values())


def alone(prompt: list[int], **params: object) -> list[int]:
    return run_all(make_config(budget=64), [prompt], **params)[0]


@pytest.fixture(scope="module")
def greedy() -> list[list[int]]:
    torch.set_num_threads(1)
    tokens = [alone(prompt) for prompt in PROMPTS]
    assert len({tuple(t) for t in tokens}) == len(tokens), "the model must tell the prompts apart"
    return tokens


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 16, 33, 64])
def test_chunk_size_and_company_do_not_matter(greedy: list[list[int]], budget: int) -> None:
    assert run_all(make_config(slots=8, budget=budget, blocks=64), PROMPTS) == greedy
    assert run_all(make_config(slots=2, budget=budget, block_size=3, blocks=64), PROMPTS) == greedy


def test_preemption_does_not_matter(greedy: list[list[int]]) -> None:
    run = Run(make_config(slots=5, budget=16, blocks=14, block_size=4))
    for handle, prompt in enumerate(PROMPTS):
        run.add(handle, prompt)
    assert list(run.run().values()) == greedy
    assert run.core.stats().preemptions > 0


OPTIONS = [
    {"temperature": 1.5, "seed": 11},
    {"temperature": 2.0, "seed": 12, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    {"temperature": 1.0, "seed": -3, "frequency_penalty": 2.0},
    {"ignore_eos": False, "min_tokens": 9, "stop_token_ids": tuple(range(3, 100))},
]


def test_options_hold_in_any_company_and_through_preemption() -> None:
    expected = [alone(prompt, **options) for prompt, options in zip(PROMPTS, OPTIONS, strict=True)]
    for config in (make_config(slots=8, budget=64, blocks=64), make_config(slots=5, budget=7, blocks=14)):
        run = Run(config)
        for handle, (prompt, options) in enumerate(zip(PROMPTS, OPTIONS, strict=True)):
            run.add(handle, prompt, **options)
        run.add(9, PROMPTS[3])
        tokens = run.run()
        assert tokens.pop(9) == alone(PROMPTS[3])
        assert list(tokens.values()) == expected
    assert run.core.stats().preemptions > 0


def test_a_slot_keeps_nothing_of_its_last_request() -> None:
    run = Run(make_config(slots=1, budget=64))
    for handle in range(0, 2 * len(OPTIONS), 2):
        run.add(handle, PROMPTS[3], **{"logprobs": 2, **OPTIONS[handle // 2]})
        run.add(handle + 1, PROMPTS[3])
    tokens = run.run()
    plain = alone(PROMPTS[3])
    assert all(tokens[handle] == plain for handle in range(1, 2 * len(OPTIONS), 2))
    assert not any(run.logprobs[handle] for handle in range(1, 2 * len(OPTIONS), 2))
    assert all(len(run.logprobs[handle]) == len(tokens[handle]) for handle in range(0, 2 * len(OPTIONS), 2))


def test_min_tokens_ban_holds_exactly_as_long_as_it_must() -> None:
    prompt = PROMPTS[2]
    stops = tuple(token for token in range(VOCAB) if token % 3)
    got = alone(prompt, max_tokens=20, stop_token_ids=stops, min_tokens=6, repetition_penalty=5.0)
    expected: list[int] = []
    while len(expected) < 20 and not (len(expected) > 6 and expected[-1] in stops):
        ban = {"stop_token_ids": stops, "min_tokens": 1} if len(expected) < 6 else {}
        expected += alone(prompt + expected, max_tokens=1, repetition_penalty=5.0, **ban)
    assert got == expected
    assert not set(got[:6]) & set(stops) and got[-1] in stops


def test_logprobs_are_of_the_token_at_their_place() -> None:
    run = Run(make_config(slots=8, budget=16, blocks=64))
    for handle, prompt in enumerate(PROMPTS):
        run.add(handle, prompt, logprobs=(None, 0, 3, 1, None)[handle])
    tokens = run.run()
    assert not run.logprobs[0] and not run.logprobs[4]
    for handle in (1, 2, 3):
        rows = run.logprobs[handle]
        assert [row.token_ids[0] for row in rows] == tokens[handle]
        for row in rows:
            assert row.rank == 1 and all(value <= row.logprobs[0] for value in row.logprobs)
    assert [len(row.token_ids) for row in run.logprobs[2]] == [4] * 12


def test_a_row_that_is_not_a_number_ends_its_request_only(greedy: list[list[int]], monkeypatch) -> None:
    config = make_config(slots=8, budget=64, blocks=64)
    run = Run(config)
    for handle, prompt in enumerate(PROMPTS):
        run.add(handle, prompt, logprobs=1)
    model = run.core.executor._worker._runner._model
    compute = model.compute_logits
    calls = []

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        calls.append(len(calls))
        if calls[-1] == 4:
            logits[2] = float("nan")
        return logits

    monkeypatch.setattr(model, "compute_logits", spoil)
    tokens = run.run()
    assert len(tokens[2]) < 12
    assert tokens[2] == greedy[2][: len(tokens[2])]
    for handle in (0, 1, 3, 4):
        assert tokens[handle] == greedy[handle]
        assert [row.token_ids[0] for row in run.logprobs[handle]] == greedy[handle]


def test_an_idle_worker_holds_nothing() -> None:
    run = Run(make_config())
    run.add(0, PROMPTS[2])
    run.core.step()
    run.core.abort([0])
    run.run()
    assert not run.core.executor._worker._runner._slots.held.any()


def test_bfloat16_runs() -> None:
    config = make_config()
    config = replace(config, model=replace(config.model, dtype="bfloat16"))
    assert len(run_all(config, PROMPTS[:2])[1]) == 12
