"""``config.json`` of a Hugging Face model -> ``Architecture``. Torch-free.

Owns the meaning of the fields, with the defaults that transformers gives an absent one. A field that
would change the maths in a way this package does not compute is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.config.engine_config import Architecture, RopeScaling
from engine.errors import ModelError
from engine.loader.fields import Fields, show

MAX_VOCAB = 1 << 22
MAX_WIDTH = 1 << 18
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_POSITION = 1 << 23
MAX_THETA = 1e12
MAX_FACTOR = 4096.0


@dataclass(frozen=True, slots=True)
class _Family:
    """A supported class and what transformers assumes where its ``config.json`` is silent."""

    name: str
    max_position: int
    head_dim: int | None = None


FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "LlamaForCausalLM": _Family("llama", 2048),
        "MistralForCausalLM": _Family("mistral", 131072),
        "Qwen2ForCausalLM": _Family("qwen2", 32768),
        "Qwen3ForCausalLM": _Family("qwen3", 32768, head_dim=128),
    }
)


def huggingface_architecture(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> Architecture:
    """Reads ``config.json``, and end tokens also from ``generation_config.json``.

    Raises:
        ModelError: the class or a feature is not supported, or a field is missing or out of bounds.
    """
    fields = Fields(config, "config.json")
    family = _family(fields)
    _refuse_unsupported(fields)
    vocab_size = fields.integer("vocab_size", 1, MAX_VOCAB)
    num_layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    max_position = fields.integer("max_position_embeddings", 1, MAX_POSITION, family.max_position)
    rope_theta, rope_scaling = _rope(fields, max_position)
    ends = fields.token_ids("eos_token_id", vocab_size)
    more_ends = Fields(generation_config, "generation_config.json").token_ids("eos_token_id", vocab_size)
    return Architecture(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=fields.integer("hidden_size", 1, MAX_WIDTH),
        intermediate_size=fields.integer("intermediate_size", 1, MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads),
        head_dim=_head_dim(fields, family, num_heads),
        max_position=extended_context(max_position, rope_scaling),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        sliding_window=_sliding_window(fields, family.name, num_layers),
        attention_bias=family.name == "qwen2"
        or (family.name in ("llama", "qwen3") and fields.boolean("attention_bias", False)),
        mlp_bias=family.name == "llama" and fields.boolean("mlp_bias", False),
        eos_token_ids=tuple(dict.fromkeys(ends + more_ends)),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", vocab_size, most=1)), None),
    )


def extended_context(max_position: int, scaling: RopeScaling | None) -> int:
    """Tokens the model can address once its rotary embeddings are stretched.

    ``max_position_embeddings`` stays that of the original model for these three kinds, as vLLM reads
    it; Llama 3's already counts the stretch.
    """
    if scaling is None or scaling.kind not in ("linear", "dynamic", "yarn"):
        return max_position
    return min(max(max_position, int(scaling.original_max_position * scaling.factor)), MAX_POSITION)


def _family(fields: Fields) -> _Family:
    architectures = fields.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        remote = " Code shipped with a model (auto_map) is never run." if fields.get("auto_map") else ""
        raise ModelError(
            f"{fields.label('architectures')} is {show(architectures)}; supported are {', '.join(FAMILIES)}.{remote}"
        )
    return family


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse_unless("hidden_act", "silu", "swish")
    fields.refuse_unless("quantization_config", {})
    fields.refuse_unless("compression_config", {})
    fields.refuse_unless("partial_rotary_factor", 1, 1.0)
    fields.refuse_unless("use_mrope", False)
    fields.refuse_unless("is_encoder_decoder", False)
    fields.refuse_unless("add_cross_attention", False)
    for experts in ("num_experts", "num_local_experts", "n_routed_experts"):
        fields.refuse_unless(experts, 0)


def _head_dim(fields: Fields, family: _Family, num_heads: int) -> int:
    hidden_size = fields.integer("hidden_size", 1, MAX_WIDTH)
    if fields.get("head_dim") is None and family.head_dim is None and hidden_size % num_heads:
        raise ModelError(
            f"{fields.label('hidden_size')} is {hidden_size}, no multiple of the {num_heads} attention heads; "
            "such a model must give head_dim."
        )
    return fields.integer("head_dim", 2, MAX_HEAD_DIM, family.head_dim or max(2, hidden_size // num_heads))


def _sliding_window(fields: Fields, family: str, num_layers: int) -> int | None:
    if family == "mistral":
        return None if fields.has_null("sliding_window") else fields.integer("sliding_window", 1, MAX_POSITION, 4096)
    if family == "llama" or not fields.boolean("use_sliding_window", False) or fields.has_null("sliding_window"):
        return None
    window = fields.integer("sliding_window", 1, MAX_POSITION, 4096)
    first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(num_layers)]
    kinds = fields.get("layer_types") or default
    if not isinstance(kinds, list) or any(kind != kinds[0] for kind in kinds):
        raise ModelError(
            f"{fields.label('use_sliding_window')} is true for some layers only (max_window_layers {first} of "
            f"{num_layers}), which is not supported; set it to false if the context fits the window of {window}."
        )
    if kinds[0] not in ("sliding_attention", "full_attention"):
        raise ModelError(f"{fields.label('layer_types')} has {show(kinds[0])}, which is not supported.")
    return window if kinds[0] == "sliding_attention" else None


def _rope(fields: Fields, max_position: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``."""
    theta = fields.number("rope_theta", 2.0, MAX_THETA, 10000.0)
    rope = fields.nested("rope_scaling") or fields.nested("rope_parameters")
    if rope is None:
        return theta, None
    for layer_type in ("full_attention", "sliding_attention"):
        rope.refuse_unless(layer_type)
    rope.refuse_unless("partial_rotary_factor", 1, 1.0)
    rope.refuse_unless("mrope_section")
    theta = rope.number("rope_theta", 2.0, MAX_THETA, theta)
    kind = rope.text("rope_type", rope.text("type", "default"))
    top_level = fields.integer("original_max_position_embeddings", 0, MAX_POSITION, 0)
    original = top_level or rope.integer("original_max_position_embeddings", 1, MAX_POSITION, max_position)
    match kind:
        case "default":
            return theta, None
        case "linear":
            return theta, RopeScaling(kind="linear", factor=_factor(rope), original_max_position=max_position)
        case "dynamic":
            return theta, RopeScaling(kind="dynamic", factor=_factor(rope), original_max_position=max_position)
        case "llama3":
            return theta, _llama3(rope, original)
        case "yarn":
            return theta, _yarn(rope, original, max_position)
    raise ModelError(
        f"{rope.label('rope_type')} is {show(kind)}; supported are default, linear, dynamic, llama3 and yarn."
    )


def _factor(rope: Fields, default: float | None = None) -> float:
    return rope.number("factor", 1.0, MAX_FACTOR, default)


def _llama3(rope: Fields, original: int) -> RopeScaling:
    low = rope.number("low_freq_factor", 1e-3, MAX_FACTOR)
    high = rope.number("high_freq_factor", 1e-3, MAX_FACTOR)
    if high <= low:
        raise ModelError(f"{rope.label('high_freq_factor')} is {high:g}; it must be above low_freq_factor, {low:g}.")
    return RopeScaling(
        kind="llama3",
        factor=_factor(rope),
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(rope: Fields, original: int, max_position: int) -> RopeScaling:
    rope.refuse_unless("truncate", True)
    factor = _factor(rope, max(1.0, max_position / original))
    attention = rope.optional_number("attention_factor", 1e-3, 1e3)
    mscale, all_dim = rope.number("mscale", 0.0, 100.0, 0.0), rope.number("mscale_all_dim", 0.0, 100.0, 0.0)
    if attention is None and mscale and all_dim:
        attention = (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * all_dim * math.log(factor) + 1.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 1e-3, 1e4, 32.0),
        beta_slow=rope.number("beta_slow", 1e-3, 1e4, 1.0),
        attention_factor=attention,
    )
