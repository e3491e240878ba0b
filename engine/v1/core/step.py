"""The step messages: ``StepPlan`` (scheduler -> worker) and ``StepResult`` (worker -> scheduler).

A plan is a *diff*. Workers remember every slot, so a plan names only what changed since the
last one; a step in which everybody just decodes is an empty diff of constant size. The rule
that makes this work: **every slot a worker holds computes one token, unless the plan gives it
another number.** Plans are applied in order, and within a plan ``released`` comes first, so a
slot can change its owner in one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.api import SamplingParams


class NewRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request takes a slot: for the first time, or again after a preemption."""

    slot: int
    #: Every token known so far: the prompt, then what it generated before a preemption.
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    block_ids: list[int]


class StepPlan(msgspec.Struct, array_like=True, frozen=True):
    """What changed since the previous plan."""

    step: int
    #: Slots whose request ended or was preempted.
    released: list[int] = []
    new: list[NewRequest] = []
    #: Slots that got blocks and the blocks, pairwise, in table order.
    grown_slots: list[int] = []
    grown_blocks: list[int] = []
    #: Slots that compute another number of tokens than one in this step (0: they pause), and that number.
    uneven_slots: list[int] = []
    uneven_tokens: list[int] = []


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log probabilities for those sampled tokens whose requests asked. The sampled token comes first."""

    places: NDArray[np.int64]  # [num_rows] indices into ``StepResult.slots``
    token_ids: NDArray[np.int64]  # [num_rows, 1 + k], k the largest number any of them asked for
    logprobs: NDArray[np.float32]  # [num_rows, 1 + k]
    ranks: NDArray[np.int64]  # [num_rows] rank of the sampled token; 1 is the most likely


@dataclass(frozen=True, slots=True)
class StepResult:
    """One sampled token for each slot whose computed tokens caught up with its tokens."""

    slots: NDArray[np.int64]  # [num_sampled]
    token_ids: NDArray[np.int64]  # [num_sampled]
    #: Slots whose logits were not numbers: nothing was sampled, their requests cannot go on.
    invalid_slots: list[int]
    logprobs: LogprobRows | None

    @staticmethod
    def empty() -> StepResult:
        """Nobody caught up: prompts were computed in part, or slots only released."""
        return StepResult(np.zeros(0, np.int64), np.zeros(0, np.int64), [], None)
