"""Configs and a fake executor for the tests of engine/v1.

The fake executor mirrors slots from the plan's diffs as a worker does, and its "model" is a hash of
every token of a request, so a lost, repeated, foreign or misplaced token changes all that follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.api import SamplingParams
from engine.config import EngineConfig, ModelSource
from engine.v1.core.request import Finished
from engine.v1.core.step import StepPlan, StepResult
from engine.v1.llm_engine.engine_core import EngineCore
from engine.v1.llm_engine.messages import AddRequest
from tests.support.configs import tiny_config

EOS = 2
VOCAB = 128


def make_config(
    *, slots: int = 4, budget: int = 16, blocks: int = 32, block_size: int = 4, waiting: int = 1000, path: str = "/none"
) -> EngineConfig:
    """A tiny model and, unless told otherwise, room for four requests and 128 tokens."""
    return tiny_config(
        source=ModelSource(kind="huggingface", path=path, files=()),
        max_model_len=64,
        block_size=block_size,
        num_blocks=blocks,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=True,
        max_num_waiting=waiting,
    )


def next_token(token_ids: Sequence[int]) -> int:
    """The fake model: a hash of all tokens so far."""
    digest = hashlib.blake2b(np.array(token_ids, np.int32).tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def expected_tokens(prompt: Sequence[int], count: int, ends: frozenset[int] = frozenset()) -> list[int]:
    """What the fake model continues ``prompt`` with, alone and undisturbed."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(tokens))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


@dataclass
class _Mirror:
    """What the fake worker knows of a slot."""

    tokens: list[int]
    blocks: list[int]
    computed: int = 0


class FakeExecutor:
    """Follows plans strictly: anything a real worker could not do is an ``AssertionError`` here."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._slots: dict[int, _Mirror] = {}
        self._memory: dict[tuple[int, int], int] = {}  # (block, offset) -> the token written there
        #: Requests whose newest token is this one get logits that are not numbers.
        self.poison: int | None = None
        self.plans: list[StepPlan] = []

    @property
    def held_slots(self) -> set[int]:
        return set(self._slots)

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._apply(plan)
        counts = {slot: 1 for slot in self._slots}
        counts.update(zip(plan.uneven_slots, plan.uneven_tokens, strict=True))
        assert set(counts) == set(self._slots), "a plan computes tokens of a slot the worker does not hold"
        assert sum(counts.values()) <= self._config.scheduler.max_num_batched_tokens, "the budget is exceeded"
        sampled: list[tuple[int, int]] = []
        invalid: list[int] = []
        for slot, count in sorted(counts.items()):
            mirror = self._slots[slot]
            self._write(mirror, count)
            if count and mirror.computed == len(mirror.tokens):
                read = self._read(mirror)
                assert read == mirror.tokens, "the cache does not hold this request's tokens"
                if read[-1] == self.poison:
                    invalid.append(slot)
                    continue
                mirror.tokens.append(next_token(read))
                sampled.append((slot, mirror.tokens[-1]))
        slots = np.array([slot for slot, _ in sampled], np.int64)
        return StepResult(slots, np.array([token for _, token in sampled], np.int64), invalid, None)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released:
            del self._slots[slot]
        for new in plan.new:
            assert new.slot not in self._slots, "a slot is given away twice"
            self._slots[new.slot] = _Mirror(list(new.token_ids), list(new.block_ids))
        for slot, block in zip(plan.grown_slots, plan.grown_blocks, strict=True):
            self._slots[slot].blocks.append(block)
        owners = [block for mirror in self._slots.values() for block in mirror.blocks]
        assert len(owners) == len(set(owners)), "a block has two owners"

    def _write(self, mirror: _Mirror, count: int) -> None:
        size = self._config.cache.block_size
        assert mirror.computed + count <= len(mirror.tokens), "more tokens are to be computed than there are"
        for position in range(mirror.computed, mirror.computed + count):
            self._memory[mirror.blocks[position // size], position % size] = mirror.tokens[position]
        mirror.computed += count

    def _read(self, mirror: _Mirror) -> list[int]:
        size = self._config.cache.block_size
        return [self._memory[mirror.blocks[p // size], p % size] for p in range(mirror.computed)]


class Driver:
    """An ``EngineCore`` over the fake executor, checked after every step."""

    def __init__(self, config: EngineConfig) -> None:
        self.executor = FakeExecutor(config)
        self.core = EngineCore(config, self.executor)
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}

    def add(self, handle: int, prompt: list[int], max_tokens: int = 8, **params: Any) -> None:
        params.setdefault("ignore_eos", True)
        self.core.add(AddRequest(handle, prompt, SamplingParams(max_tokens=max_tokens, **params)))
        self.tokens[handle] = []

    def step(self) -> None:
        outputs = self.core.step()
        for handle, token in zip(outputs.handles, outputs.token_ids, strict=True):
            assert handle not in self.finished
            self.tokens[handle].append(token)
        for finished in outputs.finished:
            assert finished.handle not in self.finished
            self.finished[finished.handle] = finished
        self.core.scheduler.check_invariants()

    def run(self) -> None:
        for _ in range(2000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("no end in sight")

    @property
    def plan(self) -> StepPlan:
        return self.executor.plans[-1]
