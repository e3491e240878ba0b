"""EngineCore under any order of add, step and abort, against an oracle.

The fake model is a hash of all earlier tokens read back through the block table, so one wrong, stale or
foreign block, one lost or repeated token, changes every token after it.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.v1.core.request import FinishCause
from tests.v1.helpers import EOS, Driver, expected_tokens, make_config

#: Small enough that blocks run out all the time: 40 tokens of cache for three slots.
CRAMPED = make_config(slots=3, budget=7, blocks=10, block_size=4, waiting=6)


class Requests:
    """What was asked of the driver, and what must come of it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.wanted: dict[int, list[int]] = {}
        self.aborted: set[int] = set()

    @property
    def open(self) -> list[int]:
        return sorted(set(self.wanted) - set(self.driver.finished) - self.aborted)

    def add(self, seed: int, length: int, max_tokens: int, ignore_eos: bool) -> None:
        if len(self.open) >= 6:
            return
        handle, prompt = len(self.wanted), expected_tokens([seed], length)
        ends = frozenset() if ignore_eos else frozenset([EOS])
        self.wanted[handle] = expected_tokens(prompt, max_tokens, ends)
        self.driver.add(handle, prompt, max_tokens, ignore_eos=ignore_eos)

    def abort(self, which: int) -> None:
        if self.open:
            handle = self.open[which % len(self.open)]
            ended = self.driver.core.abort([handle])
            assert ended is not None and ended.finished[0].cause is FinishCause.ABORT
            self.aborted.add(handle)
            self.driver.core.scheduler.check_invariants()

    def step(self) -> None:
        if self.driver.core.has_work:
            self.driver.step()

    def check(self) -> None:
        for handle, tokens in self.driver.tokens.items():
            wanted = self.wanted[handle]
            assert tokens == wanted[: len(tokens)], f"request {handle} went astray"
            assert handle not in self.driver.finished or tokens == wanted

    def finish(self) -> None:
        self.driver.run()
        assert set(self.driver.finished) | self.aborted == set(self.wanted)
        assert not set(self.driver.finished) & self.aborted
        self.check()
        stats = self.driver.core.stats()
        assert (stats.slots_used, stats.num_running, stats.num_waiting) == (0, 0, 0)
        assert stats.kv_blocks_free == stats.kv_blocks_total
        assert not self.driver.executor.held_slots


class EngineCoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests(Driver(CRAMPED))

    @rule(seed=st.integers(0, 127), length=st.integers(1, 20), count=st.integers(1, 20), ignore_eos=st.booleans())
    def add(self, seed: int, length: int, count: int, ignore_eos: bool) -> None:
        self.requests.add(seed, length, count, ignore_eos)

    @rule(which=st.integers(0, 5))
    def abort(self, which: int) -> None:
        self.requests.abort(which)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.requests.step()

    @invariant()
    def tokens_are_right(self) -> None:
        self.requests.check()

    def teardown(self) -> None:
        self.requests.finish()


EngineCoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngineCore = EngineCoreMachine.TestCase


@pytest.mark.parametrize("seed", range(4))
def test_long_random_runs(seed: int) -> None:
    chance = random.Random(seed)
    block_size = 1 + seed
    config = make_config(slots=4, budget=5 + 3 * seed, blocks=36 // block_size, block_size=block_size, waiting=9)
    requests = Requests(Driver(config))
    for _ in range(1000):
        if chance.random() < 0.3:
            requests.add(chance.randrange(128), chance.randint(1, 8), chance.randint(8, 24), chance.random() < 0.5)
        if chance.random() < 0.03:
            requests.abort(chance.randrange(6))
        requests.step()
    requests.finish()
    assert requests.driver.core.stats().preemptions > 10, "the run must have been cramped"
