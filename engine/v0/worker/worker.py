"""``Worker``: one device's model and KV cache. The driver worker, rank 0, lives in the engine process.

Owns loading and allocation. What happens in a step is the runner's business.
"""

from __future__ import annotations

import torch

from engine.attention.backend import make_backend
from engine.config import EngineConfig
from engine.kv.spec import spec_of
from engine.kv.tensors import allocate_kv_caches
from engine.models.load_model import load_model
from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput
from engine.v0.worker.model_input import ModelInputBuilder
from engine.v0.worker.model_runner import ModelRunner
from engine.v0.worker.sampling_metadata import SamplingMetadataBuilder


class Worker:
    """Loads the model at construction.

    Raises:
        ModelError: the model's files cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(config.num_threads)
        device = torch.device(config.device)
        architecture = config.model.architecture
        spec = spec_of(architecture, config.cache.block_size, config.model.dtype)
        self._runner = ModelRunner(
            load_model(config.model, device),
            allocate_kv_caches(spec, config.cache.num_blocks, device),
            make_backend(config.attention_backend),
            ModelInputBuilder(config.cache.block_size, device),
            SamplingMetadataBuilder(architecture.vocab_size, architecture.eos_token_ids, config.model.seed, device),
        )

    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        """Runs one step."""
        return self._runner.execute_model(request)
