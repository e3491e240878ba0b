"""The whole engine but its worker, driven at random against the hash model (see ``helpers.py``)."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.api import RequestOutput, SamplingParams
from engine.config import EngineConfig
from tests.v0.helpers import EOS, VOCAB, expected_tokens, greedy, make_config, make_engine, request


class Harness:
    """An engine, and for each of its requests what has come out and what should."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine, self.executor = make_engine(config)
        self.expected: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.open: list[str] = []
        self._params: dict[str, SamplingParams] = {}

    def add(self, prompt: list[int], params: SamplingParams) -> None:
        request_id = f"r{len(self.expected)}"
        self.engine.add_request(request(request_id, prompt, params))
        self.expected[request_id] = expected_tokens(prompt, params)
        self.got[request_id] = []
        self.open.append(request_id)
        self._params[request_id] = params

    def step(self) -> None:
        seen = set()
        for output in self.engine.step():
            assert output.request_id not in seen, "two outputs for a request in one step"
            seen.add(output.request_id)
            self._take(output)
        self.engine.scheduler.check_invariants()

    def abort(self, request_id: str) -> None:
        self.open.remove(request_id)
        output = self.engine.abort_request(request_id)
        assert output is not None and output.finished and output.outputs[0].finish_reason == "abort"
        self.engine.scheduler.check_invariants()

    def _take(self, output: RequestOutput) -> None:
        name, part = output.request_id, output.outputs[0]
        assert name in self.open, "an output after the last"
        self.got[name] += part.token_ids
        assert self.got[name] == self.expected[name][: len(self.got[name])]
        assert output.finished == (len(self.got[name]) == len(self.expected[name]))
        if output.finished:
            self.open.remove(name)
            stopped = self.got[name][-1] in (EOS, *self._params[name].stop_token_ids)
            assert part.finish_reason == ("stop" if stopped else "length")

    def drain(self) -> None:
        """Every open request ends, and then nothing is left of any."""
        for _ in range(5_000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.open == [], "a request never ended"
        assert self.executor.live == set()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.slots_used) == (0, 0, 0)
        assert stats.kv_blocks_free == stats.kv_blocks_total == self.config.cache.num_blocks
        assert stats.requests_finished + stats.requests_aborted == len(self.expected)
        assert self.engine._groups == {}


def tight(chunked: bool) -> EngineConfig:
    """A cache of 48 tokens for up to 5 sequences of up to 40: preemption is the rule."""
    return make_config(
        chunked=chunked,
        num_blocks=12,
        block_size=4,
        max_num_seqs=5,
        max_num_batched_tokens=11 if chunked else 256,
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_gives_the_hash_models_tokens(chunked: bool, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(tight(chunked))
    for _ in range(1_500):
        kind = rng.random()
        if kind < 0.2 and len(harness.open) < 12:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
            harness.add(prompt, greedy(rng.randint(1, 16), stop_token_ids=(7,) if rng.random() < 0.3 else ()))
        elif kind < 0.24 and harness.open:
            harness.abort(rng.choice(harness.open))
        elif harness.engine.has_work:
            harness.step()
    preemptions = harness.engine.stats().preemptions
    harness.drain()
    assert preemptions > 20, "the cache was too large for this test to test anything"


class EngineMachine(RuleBasedStateMachine):
    """The same, with Hypothesis to find the shortest way to break it."""

    @initialize(chunked=st.booleans())
    def start(self, chunked: bool) -> None:
        self.harness = Harness(tight(chunked))

    @rule(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), max_tokens=st.integers(1, 18))
    def add(self, prompt: list[int], max_tokens: int) -> None:
        self.harness.add(prompt, greedy(max_tokens))

    @precondition(lambda self: self.harness.engine.has_work)
    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.harness.step()

    @precondition(lambda self: self.harness.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(self.harness.open)))

    @invariant()
    def work_is_known(self) -> None:
        assert self.harness.engine.has_work or not self.harness.open

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
