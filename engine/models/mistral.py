"""Mistral 7B and its line."""

from __future__ import annotations

from engine.config.engine_config import ModelConfig
from engine.layers.attention import SelfAttention
from engine.layers.mlp import GatedMLP
from engine.layers.rotary import RotaryEmbedding
from engine.models.causal_lm import CausalLM, DecoderLayer


class MistralForCausalLM(CausalLM):
    """Llama's layers without biases; attention sees a sliding window where the config has one."""

    def __init__(self, config: ModelConfig) -> None:
        architecture = config.architecture
        rotary = RotaryEmbedding(architecture, config.max_model_len)

        def make_layer(index: int) -> DecoderLayer:
            attention = SelfAttention(architecture, index, rotary, qkv_bias=False, output_bias=False)
            return DecoderLayer(architecture, attention, GatedMLP(architecture))

        super().__init__(architecture, map(make_layer, range(architecture.num_layers)))
