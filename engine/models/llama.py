"""Llama 2 and 3, and what shares their shape: SmolLM2, TinyLlama, Yi."""

from __future__ import annotations

from engine.config.engine_config import ModelConfig
from engine.layers.attention import SelfAttention
from engine.layers.mlp import GatedMLP
from engine.layers.rotary import RotaryEmbedding
from engine.models.causal_lm import CausalLM, DecoderLayer


class LlamaForCausalLM(CausalLM):
    """Grouped-query attention and gated feed-forward; biases only where the config asks for them."""

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
            )
            return DecoderLayer(architecture, attention, GatedMLP(architecture))

        super().__init__(architecture, map(make_layer, range(architecture.num_layers)))
