"""``SamplingFeatures``: all features together, and the ``SamplingBatch`` they make.

The only place that knows which features there are.
"""

from __future__ import annotations

import torch

from engine.config import ModelConfig
from engine.sampling.batch import SamplingBatch
from engine.v1.core.step import StepPlan
from engine.v1.worker.features.feature import Feature
from engine.v1.worker.features.logprobs import Logprobs
from engine.v1.worker.features.min_tokens import MinTokens
from engine.v1.worker.features.options import Options
from engine.v1.worker.features.penalties import Penalties
from engine.v1.worker.features.seeds import Seeds
from engine.v1.worker.layout import BatchLayout


class SamplingFeatures:
    """Forwards each event to every feature and puts their contributions together."""

    def __init__(self, model: ModelConfig, num_slots: int, device: torch.device) -> None:
        architecture = model.architecture
        #: For requests without a seed; on the CPU, like those of ``Seeds``.
        self._generator = torch.Generator().manual_seed(model.seed)
        self._options = Options(num_slots, device)
        self._penalties = Penalties(num_slots, architecture.vocab_size, device)
        self._min_tokens = MinTokens(architecture.eos_token_ids, device)
        self._seeds = Seeds()
        self.logprobs = Logprobs()
        self._all: tuple[Feature, ...] = (
            self._options,
            self._penalties,
            self._min_tokens,
            self._seeds,
            self.logprobs,
        )

    def apply(self, plan: StepPlan) -> None:
        """Requests leave and arrive."""
        if not plan.released and not plan.new:
            return
        for feature in self._all:
            for slot in plan.released:
                feature.remove(slot)
            for request in plan.new:
                feature.add(request)
            feature.flush()

    def batch(self, layout: BatchLayout) -> SamplingBatch:
        """How the rows of this step's logits are to be sampled."""
        options = self._options.rows(layout)
        return SamplingBatch(
            temperature=options.temperature,
            all_greedy=options.all_greedy,
            generator=self._generator,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            penalties=self._penalties.batch(layout),
            banned=self._min_tokens.banned(layout),
            generators=self._seeds.generators(layout),
            num_logprobs=self.logprobs.count(layout),
        )

    def sampled(self, layout: BatchLayout, token_ids: torch.Tensor) -> None:
        """Tells every feature what came out."""
        for feature in self._all:
            feature.sampled(layout, token_ids)
