"""``SlotTable``: the state of all running requests, as arrays over fixed slots.

A request occupies one slot from admission to finish (or preemption). What every step reads
or writes is a column here, so that a step costs a few vector operations however many
requests run, and touches no ``Request``. Rows of free slots hold garbage nobody reads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.api.sampling_params import MAX_STOP_TOKEN_IDS
from engine.v1.core.request import FinishCause, Request, RequestStatus

#: Fills unused places of ``stop_token_ids``; no token has this id.
_NO_TOKEN = -1


class SlotTable:
    """``num_slots`` places for running requests. Columns are ``[num_slots]`` unless they say otherwise."""

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.num_slots = num_slots
        self._requests: list[Request | None] = [None] * num_slots
        #: Occupied slots, oldest request first. Replaced, never changed in place.
        self.running: NDArray[np.int64] = np.zeros(0, np.int64)  # [num_running]
        self._free = list(range(num_slots - 1, -1, -1))

        self.handle = np.zeros(num_slots, np.int64)
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)  # [num_slots, max_model_len]
        #: Tokens known: prompt and output.
        self.num_tokens = np.zeros(num_slots, np.int32)
        #: Tokens whose keys and values are in the cache, or will be once the plans handed out have run.
        self.num_computed = np.zeros(num_slots, np.int32)
        #: Length at which the request ends, and below which no stop token ends it.
        self.max_length = np.zeros(num_slots, np.int32)
        self.min_length = np.zeros(num_slots, np.int32)

        self._is_eos = np.zeros(vocab_size, np.bool_)  # [vocab_size]
        self._is_eos[list(eos_token_ids)] = True
        self._heeds_eos = np.zeros(num_slots, np.bool_)
        self._has_stop_ids = np.zeros(num_slots, np.bool_)
        self._stop_ids = np.full((num_slots, MAX_STOP_TOKEN_IDS), _NO_TOKEN, np.int32)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def occupy(self, request: Request) -> int:
        """Gives ``request``, the newest of all running ones, a free slot and fills its row."""
        slot = self._free.pop()
        params, num_prompt = request.params, request.num_prompt_tokens
        assert params.max_tokens is not None, "max_tokens is resolved before admission"
        self._requests[slot] = request
        self.running = np.append(self.running, slot)
        self.handle[slot] = request.handle
        self.token_ids[slot, : len(request.token_ids)] = request.token_ids
        self.num_tokens[slot] = len(request.token_ids)
        self.num_computed[slot] = 0
        self.max_length[slot] = num_prompt + params.max_tokens
        self.min_length[slot] = num_prompt + params.min_tokens
        self._heeds_eos[slot] = not params.ignore_eos
        self._has_stop_ids[slot] = bool(params.stop_token_ids)
        self._stop_ids[slot] = _NO_TOKEN
        self._stop_ids[slot, : len(params.stop_token_ids)] = params.stop_token_ids
        request.slot, request.status = slot, RequestStatus.RUNNING
        return slot

    def release(self, slot: int) -> None:
        """Takes the slot back. The caller sets the request's next status, and saves its tokens if it goes on."""
        self.request_in(slot).slot = None
        self._requests[slot] = None
        self.running = self.running[self.running != slot]
        self._free.append(slot)

    def request_in(self, slot: int) -> Request:
        """The request that occupies ``slot``."""
        request = self._requests[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def tokens_of(self, slot: int) -> list[int]:
        """All tokens of the slot's request: prompt, then output."""
        tokens: list[int] = self.token_ids[slot, : self.num_tokens[slot]].tolist()
        return tokens

    def append(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Adds one sampled token to each of ``slots``."""
        length = self.num_tokens[slots]
        self.token_ids[slots, length] = token_ids
        self.num_tokens[slots] = length + 1

    def stopped(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> list[tuple[int, FinishCause]]:
        """The places in ``slots`` that the token just appended ends, and why. Called after ``append``.

        End-of-sequence and stop token ids win over the length, and count only from ``min_length`` on.
        """
        length = self.num_tokens[slots]
        at_stop = self._is_eos[token_ids] & self._heeds_eos[slots]
        asked = np.flatnonzero(self._has_stop_ids[slots])
        if asked.size:
            at_stop[asked] |= (self._stop_ids[slots[asked]] == token_ids[asked, None]).any(axis=1)
        at_stop &= length >= self.min_length[slots]
        at_end = at_stop | (length >= self.max_length[slots])
        return [
            (place, FinishCause.STOP if at_stop[place] else FinishCause.LENGTH)
            for place in np.flatnonzero(at_end).tolist()
        ]

    def stop_token_id(self, slot: int) -> int | None:
        """The id that stopped the slot's request, its last token; ``None`` if that was end-of-sequence."""
        last = int(self.token_ids[slot, self.num_tokens[slot] - 1])
        return None if self._is_eos[last] and self._heeds_eos[slot] else last

    def check_invariants(self) -> None:
        """Every running request owns exactly one slot, and the slots add up. O(num_slots)."""
        running = self.running.tolist()
        assert sorted(running + self._free) == list(range(self.num_slots)), "a slot is lost, or free and running"
        requests = [self._requests[slot] for slot in running]
        for slot, request in zip(running, requests, strict=True):
            assert request is not None and request.slot == slot and request.status is RequestStatus.RUNNING
            assert self.handle[slot] == request.handle
        assert all(self._requests[slot] is None for slot in self._free), "a free slot has a request"
        orders = [request.order for request in requests if request is not None]
        assert orders == sorted(orders), "running requests are not in order of arrival"
        tokens, computed = self.num_tokens[self.running], self.num_computed[self.running]
        assert ((computed >= 0) & (computed <= tokens)).all(), "more tokens computed than known"
        assert (tokens < self.max_length[self.running]).all(), "a request runs past its end"
