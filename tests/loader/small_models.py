"""A small Llama model: its shapes, its files, and a module that holds its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import save_file
from torch import nn

from engine.config import Architecture, ModelConfig, ModelSource

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 50

#: Hugging Face name of a layer's matrix -> (GGUF name, shape).
LAYER_SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "input_layernorm.weight": ("attn_norm.weight", (HIDDEN,)),
    "self_attn.q_proj.weight": ("attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.k_proj.weight": ("attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.v_proj.weight": ("attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.o_proj.weight": ("attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)),
    "post_attention_layernorm.weight": ("ffn_norm.weight", (HIDDEN,)),
    "mlp.gate_proj.weight": ("ffn_gate.weight", (INTERMEDIATE, HIDDEN)),
    "mlp.up_proj.weight": ("ffn_up.weight", (INTERMEDIATE, HIDDEN)),
    "mlp.down_proj.weight": ("ffn_down.weight", (HIDDEN, INTERMEDIATE)),
}


def tensor_names() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Hugging Face name -> (GGUF name, shape) of the whole small model; its embeddings are tied."""
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("token_embd.weight", (VOCAB, HIDDEN)),
        "model.norm.weight": ("output_norm.weight", (HIDDEN,)),
    }
    for layer in range(LAYERS):
        for name, (stored, shape) in LAYER_SHAPES.items():
            names[f"model.layers.{layer}.{name}"] = (f"blk.{layer}.{stored}", shape)
    return names


def random_weights() -> dict[str, np.ndarray]:
    """Hugging Face name -> values, always the same."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, (_, shape) in tensor_names().items()}


def llama_metadata() -> dict[str, Any]:
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"token{i}" for i in range(VOCAB)],
        "tokenizer.ggml.token_type": [1] * VOCAB,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key projections of "llama" models."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def write_gguf(
    path: Path,
    arch: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Writes the small model; the mappings change or add, and ``None`` leaves a key or tensor out."""
    writer = gguf.GGUFWriter(path, arch)
    keys = {key.replace("llama.", f"{arch}.", 1): value for key, value in llama_metadata().items()}
    for key, value in {**keys, **(metadata or {})}.items():
        add_key(writer, key, value)
    for name, array in {**gguf_tensors(random_weights(), arch), **(tensors or {})}.items():
        if array is not None:
            kind = quantization if array.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(weights: dict[str, np.ndarray], arch: str) -> dict[str, np.ndarray]:
    stored = {gguf_name: weights[name] for name, (gguf_name, _) in tensor_names().items()}
    if arch == "llama":
        for layer in range(LAYERS):
            stored[f"blk.{layer}.attn_q.weight"] = interleave(stored[f"blk.{layer}.attn_q.weight"], HEADS)
            stored[f"blk.{layer}.attn_k.weight"] = interleave(stored[f"blk.{layer}.attn_k.weight"], KV_HEADS)
    return stored


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def hf_config(**changes: Any) -> dict[str, Any]:
    """``config.json`` of the small model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "bos_token_id": 1,
    } | changes


def write_safetensors(directory: Path, weights: dict[str, np.ndarray] | None = None) -> Path:
    """Writes the small model as two shards with an index."""
    weights = weights or random_weights()
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config()))
    names = list(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file_name, held in shards.items():
        save_file({name: weights[name] for name in held}, directory / file_name)
    weight_map = {name: file_name for file_name, held in shards.items() for name in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def model_config(source: ModelSource, architecture: Architecture, **changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "model": "small",
        "served_name": "small",
        "source": source,
        "architecture": architecture,
        "dtype": "float32",
        "load_format": "auto",
        "max_model_len": 128,
        "seed": 0,
        "skip_tokenizer_init": True,
    }
    return ModelConfig(**(values | changes))


class SmallModel(nn.Module):
    """The small model's parameters under their names, query, key and value merged."""

    packed_modules: ClassVar[dict[str, tuple[str, str]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
    }

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        rows = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}

        def load_shard(param: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
            assert shard is not None
            param[rows[shard]].copy_(loaded)

        for name, (_, shape) in tensor_names().items():
            if "q_proj" in name:
                merged = self._add(name.replace("q_proj", "qkv_proj"), (q + 2 * kv, HIDDEN), dtype)
                merged.weight_loader = load_shard  # type: ignore[attr-defined]
            elif "k_proj" not in name and "v_proj" not in name:
                self._add(name, shape, dtype)

    def _add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
        module: nn.Module = self
        *path, leaf = name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        parameter = nn.Parameter(torch.full(shape, torch.nan, dtype=dtype), requires_grad=False)
        module.register_parameter(leaf, parameter)
        return parameter

    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters, split as a checkpoint has them."""
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        split: dict[str, torch.Tensor] = {}
        for name, parameter in self.named_parameters():
            if "qkv_proj" in name:
                for part, rows in zip("qkv", parameter.tensor_split((q, q + kv)), strict=True):
                    split[name.replace("qkv_proj", f"{part}_proj")] = rows
            else:
                split[name] = parameter
        return split
