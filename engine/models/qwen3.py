"""Qwen3, dense."""

from __future__ import annotations

from engine.config.engine_config import ModelConfig
from engine.layers.attention import SelfAttention
from engine.layers.mlp import GatedMLP
from engine.layers.rotary import RotaryEmbedding
from engine.models.causal_lm import CausalLM, DecoderLayer


class Qwen3ForCausalLM(CausalLM):
    """Llama's layers with each head's query and key normalised before they are rotated."""

    def __init__(self, config: ModelConfig) -> None:
        architecture = config.architecture
        rotary = RotaryEmbedding(architecture, config.max_model_len)

        def make_layer(index: int) -> DecoderLayer:
            attention = SelfAttention(
                architecture,
                index,
                rotary,
                qkv_bias=architecture.attention_bias,
                output_bias=architecture.attention_bias,
                qk_norm=True,
            )
            return DecoderLayer(architecture, attention, GatedMLP(architecture))

        super().__init__(architecture, map(make_layer, range(architecture.num_layers)))
