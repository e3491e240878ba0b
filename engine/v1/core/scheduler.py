"""The V1 scheduler: who computes how many tokens in the next step.

There is no prefill and no decode phase. Every request has tokens and computed tokens, and each
step lets the computed ones catch up, oldest request first, within one token budget. A long
prompt is thus computed in chunks beside everybody's decodes, a decode is a request that lacks
one token, and a preempted request is one that has computed none again.

Owns the order of requests, their slots (``core/slots.py``) and their blocks
(``core/kv_cache_manager.py``). Knows neither tensors, text nor sockets.

Stop rule, the same in V0: a token that ends a request is part of its ``token_ids``. End of
sequence gives "stop" without a stop reason, a stop token id gives "stop" with that id, both
only once ``min_tokens`` are out; else ``max_tokens`` or the context's end give "length".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.api import SamplingParams
from engine.config import EngineConfig
from engine.errors import OverloadedError
from engine.metrics.stats import EngineStats
from engine.v1.core.kv_cache_manager import KVCacheManager
from engine.v1.core.queue import WaitingQueue
from engine.v1.core.request import FinishCause, Finished, Request, RequestStatus
from engine.v1.core.slots import SlotTable
from engine.v1.core.step import NewRequest, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step gave: one token for each of ``handles``, and the requests that ended."""

    handles: NDArray[np.int64]  # [num_sampled], in the order of ``StepResult.slots``
    token_ids: NDArray[np.int64]  # [num_sampled]
    finished: list[Finished]


@dataclass(slots=True)
class _Draft:
    """A plan in the making. ``slots[i]`` computes ``counts[i]`` tokens."""

    budget: int
    slots: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    new: list[NewRequest] = field(default_factory=list)
    grown_slots: list[int] = field(default_factory=list)
    grown_blocks: list[int] = field(default_factory=list)


class Scheduler:
    """``schedule`` -> (execute) -> ``update``, once a step; ``add`` and ``abort`` in between."""

    def __init__(self, config: EngineConfig) -> None:
        model = config.model
        num_slots = config.scheduler.max_num_seqs
        self._config = config.scheduler
        self._requests: dict[int, Request] = {}
        self._waiting = WaitingQueue()
        self._slots = SlotTable(
            num_slots, model.max_model_len, model.architecture.vocab_size, model.architecture.eos_token_ids
        )
        self._kv = KVCacheManager(config.cache, num_slots, model.max_model_len)
        self._released: list[int] = []  # slots freed since the last plan; the workers still hold them
        self._num_arrived = 0
        self._counters = EngineStats()  # its gauges stay 0; stats() fills them in

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything, if only tell the workers who left."""
        return bool(self._requests or self._released)

    def add(self, handle: int, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """Lets a checked request wait for a slot.

        Raises:
            OverloadedError: as many requests wait as may.
        """
        limit = self._config.max_num_waiting
        if len(self._waiting) - self._slots.num_free >= limit:
            raise OverloadedError(f"{limit} requests are waiting already, which is the limit; try again later.")
        self._num_arrived += 1
        request = Request(
            handle=handle,
            order=self._num_arrived,
            token_ids=prompt_token_ids,
            num_prompt_tokens=len(prompt_token_ids),
            params=params,
        )
        self._requests[handle] = request
        self._waiting.push(request)
        self._counters.prompt_tokens += len(prompt_token_ids)

    def abort(self, handle: int) -> bool:
        """Ends a request between two steps; ``False`` if it is not (or no longer) here."""
        request = self._requests.get(handle)
        if request is None:
            return False
        self._finish(request)
        self._counters.requests_aborted += 1
        return True

    def schedule(self) -> StepPlan:
        """Plans the next step and counts its tokens as computed, so the step after it could be planned at once."""
        draft = _Draft(self._config.max_num_batched_tokens)
        self._schedule_running(draft)
        self._admit_waiting(draft)
        return self._emit(draft)

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        """Takes in the tokens that ``plan`` gave; vector operations, but for the requests that end."""
        assert plan.step == self._counters.num_steps, "results must come in the order of their plans"
        slots, token_ids = result.slots, result.token_ids
        self._slots.append(slots, token_ids)
        handles = self._slots.handle[slots]
        finished = [self._finish_at(int(slots[place]), cause) for place, cause in self._slots.stopped(slots, token_ids)]
        finished += [self._finish_at(slot, FinishCause.ERROR) for slot in result.invalid_slots]
        self._counters.generation_tokens += len(slots)
        self._counters.requests_finished += len(finished)
        return StepOutcome(handles, token_ids, finished)

    def stats(self) -> EngineStats:
        """A snapshot; counters since the start."""
        pool = self._kv.pool
        return msgspec.structs.replace(
            self._counters,
            num_running=len(self._slots.running),
            num_waiting=len(self._waiting),
            kv_blocks_total=pool.num_blocks,
            kv_blocks_free=pool.num_free,
            slots_total=self._slots.num_slots,
            slots_used=self._slots.num_slots - self._slots.num_free,
        )

    def check_invariants(self) -> None:
        """Slots and blocks add up, every request is in one place, and the running are older than the waiting."""
        self._slots.check_invariants()
        self._kv.check_invariants()
        running = [self._slots.request_in(slot) for slot in self._slots.running.tolist()]
        waiting = list(self._waiting)
        everyone = running + waiting
        assert {r.handle: r for r in everyone} == self._requests and len(everyone) == len(self._requests)
        assert [r.order for r in everyone] == sorted(r.order for r in everyone), "a younger request overtook"
        assert all(r.slot is None and r.status is not RequestStatus.RUNNING for r in waiting)
        lacking = self._kv.missing(self._slots.running, self._slots.num_computed[self._slots.running])
        assert not lacking.any(), "a token was computed without a block to hold it"
        assert self._kv.num_held.sum() == self._kv.num_held[self._slots.running].sum(), "a free slot holds blocks"

    def _schedule_running(self, draft: _Draft) -> None:
        """Shares the budget among the running, oldest first, and finds blocks for those who need one more.

        When blocks run out, the newest request is preempted until the others' needs are met. A request that
        is alone fits, because admission checked it; so the oldest always advances.
        """
        table = self._slots
        slots = table.running
        counts = _share(draft.budget, table.num_tokens[slots] - table.num_computed[slots])
        missing = self._kv.missing(slots, table.num_computed[slots] + counts)
        if missing.any():
            while missing.sum() > self._kv.pool.num_free:
                self._preempt(int(slots[-1]))
                slots, counts, missing = slots[:-1], counts[:-1], missing[:-1]
            for place in np.flatnonzero(missing).tolist():
                slot, blocks = int(slots[place]), self._kv.grow(int(slots[place]), int(missing[place]))
                draft.grown_slots += [slot] * len(blocks)
                draft.grown_blocks += blocks
        draft.slots, draft.counts = slots, counts
        draft.budget -= int(counts.sum())

    def _admit_waiting(self, draft: _Draft) -> None:
        """Gives slots and blocks to the oldest waiting requests while there is room for them."""
        first_counts = []
        while self._waiting and self._has_room(self._waiting.peek(), draft):
            request = self._waiting.peek()
            self._waiting.remove(request)
            slot = self._slots.occupy(request)
            blocks = self._kv.grow(slot, self._kv.blocks_for(len(request.token_ids)))
            draft.new.append(NewRequest(slot, request.token_ids, request.num_prompt_tokens, request.params, blocks))
            first_counts.append(min(len(request.token_ids), draft.budget))
            draft.budget -= first_counts[-1]
        if first_counts:
            draft.slots = self._slots.running
            draft.counts = np.append(draft.counts, np.array(first_counts, np.int32))

    def _has_room(self, request: Request, draft: _Draft) -> bool:
        """Admission: a slot, budget, blocks for all its tokens, and one more block for everyone who runs.

        The spare blocks are what keeps preemption from thrashing: after an admission everybody, the newcomer
        included, can compute at least a block of tokens before blocks can run out again. A request preempted in
        this very step never passes: with its blocks counted as free, its step still did not fit.
        """
        if draft.budget == 0 or self._slots.num_free == 0:
            return False
        num_running = len(self._slots.running)
        spare = num_running + 1 if num_running else 0
        return self._kv.blocks_for(len(request.token_ids)) + spare <= self._kv.pool.num_free

    def _emit(self, draft: _Draft) -> StepPlan:
        """Turns the draft into a diff and moves everybody's computed tokens on."""
        self._slots.num_computed[draft.slots] += draft.counts
        uneven = np.flatnonzero(draft.counts != 1)
        self._counters.num_steps += 1
        released, self._released = self._released, []
        return StepPlan(
            step=self._counters.num_steps,
            released=released,
            new=draft.new,
            grown_slots=draft.grown_slots,
            grown_blocks=draft.grown_blocks,
            uneven_slots=draft.slots[uneven].tolist(),
            uneven_tokens=draft.counts[uneven].tolist(),
        )

    def _preempt(self, slot: int) -> None:
        """Sends a running request back to the front of the queue. It keeps its tokens and computes them again."""
        request = self._slots.request_in(slot)
        request.token_ids = self._slots.tokens_of(slot)
        self._leave_slot(slot)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._waiting.push_front(request)
        self._counters.preemptions += 1

    def _finish_at(self, slot: int, cause: FinishCause) -> Finished:
        """Ends the request in ``slot``, whose last token is in place."""
        stop_token_id = self._slots.stop_token_id(slot) if cause is FinishCause.STOP else None
        request = self._slots.request_in(slot)
        self._finish(request)
        return Finished(request.handle, cause, stop_token_id)

    def _finish(self, request: Request) -> None:
        """Ends a request wherever it is and takes back all it holds."""
        if request.slot is not None:
            self._leave_slot(request.slot)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.handle]

    def _leave_slot(self, slot: int) -> None:
        self._slots.release(slot)
        self._kv.free(slot)
        self._released.append(slot)


def _share(budget: int, wanted: NDArray[np.int32]) -> NDArray[np.int32]:
    """Grants in order until the budget is used up; the one at the edge gets a part."""
    before = np.cumsum(wanted, dtype=np.int32) - wanted
    granted: NDArray[np.int32] = np.minimum(wanted, np.maximum(budget - before, 0))
    return granted
