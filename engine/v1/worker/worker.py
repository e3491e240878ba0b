"""``Worker``: one device's model, KV cache and runner.

Owns loading and allocation. Workers are symmetric: each is given every plan and remembers all of
it; none is a driver.
"""

from __future__ import annotations

import torch

from engine.attention.backend import make_backend
from engine.config import EngineConfig
from engine.kv.spec import spec_of
from engine.kv.tensors import allocate_kv_caches
from engine.models.load_model import load_model
from engine.v1.core.step import StepPlan, StepResult
from engine.v1.worker.features.sampling_features import SamplingFeatures
from engine.v1.worker.model_runner import ModelRunner
from engine.v1.worker.slots import WorkerSlots


class Worker:
    """Loads the model at construction.

    Raises:
        ModelError: the model's files cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(config.num_threads)
        device = torch.device(config.device)
        spec = spec_of(config.model.architecture, config.cache.block_size, config.model.dtype)
        self._runner = ModelRunner(
            load_model(config.model, device),
            allocate_kv_caches(spec, config.cache.num_blocks, device),
            make_backend(config.attention_backend),
            WorkerSlots(config, device),
            SamplingFeatures(config.model, config.scheduler.max_num_seqs, device),
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step."""
        return self._runner.execute(plan)
