"""``ModelRunner``: one plan on the device, from diff to sampled tokens.

Owns the order of the parts; the parts own the state: ``WorkerSlots`` what every request has,
``features/`` what some of them ask for. A plan changes both, everything else is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.backend import AttentionBackend
from engine.attention.context import ForwardContext, forward_context
from engine.kv.tensors import LayerKVCache
from engine.models.causal_lm import CausalLM
from engine.sampling.batch import LogprobTensors, SamplerOutput
from engine.sampling.sampler import sample
from engine.v1.core.step import LogprobRows, StepPlan, StepResult
from engine.v1.worker.features.sampling_features import SamplingFeatures
from engine.v1.worker.input_batch import InputBatch, gather_inputs, next_layout
from engine.v1.worker.layout import BatchLayout
from engine.v1.worker.slots import WorkerSlots


class ModelRunner:
    """Executes plans in the order they are given."""

    def __init__(
        self,
        model: CausalLM,
        kv_caches: Sequence[LayerKVCache],
        backend: AttentionBackend,
        slots: WorkerSlots,
        features: SamplingFeatures,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._backend = backend
        self._slots = slots
        self._features = features
        self._layout: BatchLayout | None = None

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step and waits for its tokens."""
        self._slots.apply(plan)
        self._features.apply(plan)
        layout = self._layout = next_layout(self._layout, plan, self._slots)
        if not layout.slots.size:
            return StepResult.empty()
        hidden = self._forward(gather_inputs(layout, self._slots))  # [num_tokens, hidden]
        self._slots.advance(layout)
        if not layout.sampled.size:
            return StepResult.empty()
        logits = self._model.compute_logits(hidden[layout.logits_rows])  # [num_sampled, vocab]
        sampled = sample(logits, self._features.batch(layout))
        self._slots.append(layout, sampled.token_ids)
        self._features.sampled(layout, sampled.token_ids)
        return _result(layout, sampled, self._features.logprobs.rows(layout))

    def _forward(self, inputs: InputBatch) -> torch.Tensor:
        with forward_context(ForwardContext(inputs.attention, self._kv_caches, self._backend)):
            hidden: torch.Tensor = self._model(inputs.input_ids, inputs.positions)
        return hidden


def _result(layout: BatchLayout, output: SamplerOutput, logprob_rows: list[int]) -> StepResult:
    """The device's answer on the host. Rows without a usable logit are taken out."""
    slots = layout.sampled
    token_ids, invalid = output.token_ids.cpu().numpy(), output.invalid.cpu().numpy()
    places = np.arange(len(slots))  # of each row in the result
    invalid_slots: list[int] = []
    if invalid.any():
        invalid_slots = slots[invalid].tolist()
        logprob_rows = [row for row in logprob_rows if not invalid[row]]
        slots, token_ids, places = slots[~invalid], token_ids[~invalid], np.cumsum(~invalid) - 1
    logprobs = None
    if output.logprobs is not None and logprob_rows:
        logprobs = _logprobs(output.logprobs, logprob_rows, places[logprob_rows])
    return StepResult(slots, token_ids, invalid_slots, logprobs)


def _logprobs(tensors: LogprobTensors, rows: list[int], places: NDArray[np.int64]) -> LogprobRows:
    return LogprobRows(
        places=places,
        token_ids=tensors.token_ids[rows].cpu().numpy(),
        logprobs=tensors.logprobs[rows].cpu().numpy(),
        ranks=tensors.ranks[rows].cpu().numpy(),
    )
