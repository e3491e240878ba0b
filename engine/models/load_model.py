"""From a resolved config to a model that is ready to run."""

from __future__ import annotations

import torch

from engine.config.engine_config import ModelConfig
from engine.loader.load import load_weights
from engine.models.causal_lm import CausalLM
from engine.models.registry import make_model


def load_model(config: ModelConfig, device: torch.device) -> CausalLM:
    """Makes the model, fills its parameters and packs its linear layers.

    Raises:
        ModelError: the family is unknown, or the files do not hold this model's weights.
    """
    model = make_model(config, device)
    load_weights(model, config)
    model.pack()
    return model.eval()
