"""Metadata of a GGUF file -> ``Architecture``. Torch-free.

Owns the meaning of the keys. Keys of an architecture are prefixed by its name (``llama.block_count``);
Mistral's files call themselves "llama" too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from engine.config.engine_config import Architecture, RopeScaling
from engine.errors import ModelError
from engine.loader import huggingface_config as bounds
from engine.loader.fields import Fields, finite_positive, show
from engine.loader.gguf_file import GgufFile, GgufTensor

#: GGUF architecture -> family.
FAMILIES: Mapping[str, str] = MappingProxyType({"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"})

ROPE_FACTORS = "rope_freqs.weight"


def gguf_architecture(file: GgufFile) -> Architecture:
    """Reads the architecture of a GGUF file.

    Raises:
        ModelError: the architecture or a feature is not supported, or a key is missing or out of bounds.
    """
    general = Fields(file.metadata, "GGUF metadata")
    name = general.text("general.architecture")
    if name not in FAMILIES:
        raise ModelError(
            f"{general.label('general.architecture')} is {show(name)}; supported are {', '.join(FAMILIES)}."
        )
    if general.integer("split.count", 0, 1 << 16, 1) > 1:
        raise ModelError("The GGUF file is one part of a split model; join the parts with gguf-split --merge.")
    fields = Fields(file.metadata, "GGUF metadata", f"{name}.")
    _refuse_unsupported(fields)
    hidden_size = fields.integer("embedding_length", 1, bounds.MAX_WIDTH)
    num_heads = fields.integer("attention.head_count", 1, bounds.MAX_HEADS)
    vocab_size = _vocab_size(file, hidden_size)
    head_dim = _head_dim(fields, hidden_size, num_heads)
    max_position = fields.integer("context_length", 1, bounds.MAX_POSITION)
    scaling = _rope_scaling(fields, file.tensors.get(ROPE_FACTORS), head_dim, max_position)
    ends = [general.token_ids(f"tokenizer.ggml.{end}_token_id", vocab_size) for end in ("eos", "eot", "eom")]
    window = fields.integer("attention.sliding_window", 0, bounds.MAX_POSITION, 0)
    return Architecture(
        family=FAMILIES[name],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length", 1, bounds.MAX_WIDTH),
        num_layers=fields.integer("block_count", 1, bounds.MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", 1, bounds.MAX_HEADS, num_heads),
        head_dim=head_dim,
        max_position=bounds.extended_context(max_position, scaling),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        rope_theta=fields.number("rope.freq_base", 2.0, bounds.MAX_THETA, 10000.0),
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in file.tensors,
        sliding_window=window or None,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        eos_token_ids=tuple(dict.fromkeys(token_id for ids in ends for token_id in ids)),
        bos_token_id=next(iter(general.token_ids("tokenizer.ggml.bos_token_id", vocab_size, most=1)), None),
    )


def _refuse_unsupported(fields: Fields) -> None:
    """Keys that would change the maths, each with the values that do not."""
    for name, harmless in (
        ("expert_count", 0),
        ("nextn_predict_layers", 0),
        ("attention.causal", True),
        ("use_parallel_residual", False),
        ("rope.scaling.yarn_log_multiplier", 0.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
    ):
        fields.refuse_unless(name, harmless)
    for name in (
        "attention.max_alibi_bias",
        "attention.clamp_kqv",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ):
        fields.refuse_unless(name, 0.0)
    for name in ("logit_scale", "embedding_scale", "residual_scale", "rope.scaling.alpha", "rope.dimension_sections"):
        fields.refuse_unless(name)
    for name in ("scale", "output_scale", "temperature_scale", "temperature_length", "sliding_window_pattern"):
        fields.refuse_unless(f"attention.{name}")


def _vocab_size(file: GgufFile, hidden_size: int) -> int:
    """The embedding table is the authority: ``vocab_size`` keys are optional, and token lists may be padded."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise ModelError("The GGUF file has no tensor token_embd.weight; it is not a whole model.")
    if len(table.shape) != 2 or table.shape[1] != hidden_size or table.shape[0] > bounds.MAX_VOCAB:
        raise ModelError(
            f"GGUF tensor token_embd.weight has the shape {list(table.shape)}; "
            f"it must be [vocabulary, {hidden_size}] with at most {bounds.MAX_VOCAB} tokens."
        )
    return table.shape[0]


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.integer("attention.key_length", 2, bounds.MAX_HEAD_DIM, max(2, hidden_size // num_heads))
    fields.refuse_unless("attention.value_length", head_dim)
    fields.refuse_unless("rope.dimension_count", head_dim)
    return head_dim


def _rope_scaling(fields: Fields, table: GgufTensor | None, head_dim: int, max_position: int) -> RopeScaling | None:
    factor = fields.number("rope.scaling.factor", 1.0, bounds.MAX_FACTOR, 1.0)
    kind = fields.text("rope.scaling.type", "none" if factor == 1.0 else "linear")
    original = fields.integer("rope.scaling.original_context_length", 1, bounds.MAX_POSITION, max_position)
    if table is not None:
        if kind != "none":
            raise ModelError(f"The GGUF file has both {ROPE_FACTORS} and rope scaling {show(kind)}; one is supported.")
        return _baked_factors(table, head_dim, max_position)
    match kind:
        case "none":
            fields.refuse_unless("rope.scale_linear", 1.0)
            return None
        case "linear":
            return RopeScaling(kind="linear", factor=factor, original_max_position=max_position)
        case "yarn":
            return RopeScaling(
                kind="yarn",
                factor=factor,
                original_max_position=original,
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 1e-3, 1e4, 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1e-3, 1e4, 1.0),
                attention_factor=_yarn_magnitude(fields, factor),
            )
    raise ModelError(f"{fields.label('rope.scaling.type')} is {show(kind)}; supported are none, linear and yarn.")


def _yarn_magnitude(fields: Fields, factor: float) -> float | None:
    """llama.cpp multiplies YaRN's own magnitude by these keys; ``config.json``'s factor replaces it."""
    given = fields.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    given *= fields.number("rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1.0)
    return None if given == 1.0 else given * (0.1 * math.log(factor) + 1.0)


def _baked_factors(table: GgufTensor, head_dim: int, max_position: int) -> RopeScaling:
    """Llama 3's scaling, which converters write as one divisor for each pair of dimensions."""
    factors = table.data.view(np.float32).tolist() if table.type.name == "F32" else []
    if table.shape != (head_dim // 2,) or not finite_positive(factors) or not factors:
        raise ModelError(f"GGUF tensor {ROPE_FACTORS} must hold {head_dim // 2} positive float32 numbers.")
    return RopeScaling(kind="factors", factor=1.0, original_max_position=max_position, factors=tuple(factors))
