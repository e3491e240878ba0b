"""Weights of a GGUF file as (Hugging Face name, tensor) pairs.

Owns the names and the one difference in content: llama.cpp's rotary embedding pairs neighbouring
dimensions where Hugging Face checkpoints pair halves of a head, so converters reorder the rows of
query and key projections of "llama" files, and this module orders them back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType

import torch

from engine.config.engine_config import ModelConfig
from engine.errors import ModelError
from engine.loader.dequantize import dequantize
from engine.loader.fields import show
from engine.loader.gguf_config import ROPE_FACTORS
from engine.loader.gguf_file import GgufFile, GgufTensor

_GLOBAL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)

_LAYER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)

_LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", re.ASCII)


def gguf_weights(config: ModelConfig, num_workers: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every weight, dequantized to ``config.dtype`` on the CPU.

    ``num_workers`` threads work ahead, each on a tensor of its own, so about that many exist at a time.

    Raises:
        ModelError: the file is malformed or holds a tensor of unknown meaning.
    """
    stored = GgufFile(config.source.path).tensors.values()
    tensors = [(huggingface_name(tensor.name), tensor) for tensor in stored if tensor.name != ROPE_FACTORS]
    ahead: deque[tuple[str, Future[torch.Tensor]]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        for name, tensor in tensors:
            ahead.append((name, pool.submit(_weight, name, tensor, config)))
            if len(ahead) > num_workers:
                name, weight = ahead.popleft()
                yield name, weight.result()
        for name, weight in ahead:
            yield name, weight.result()


def _weight(name: str, tensor: GgufTensor, config: ModelConfig) -> torch.Tensor:
    weight = dequantize(tensor, getattr(torch, config.dtype))
    architecture = config.architecture
    heads = {"q_proj": architecture.num_heads, "k_proj": architecture.num_kv_heads}.get(name.split(".")[-2])
    if architecture.family == "llama" and heads is not None:
        return _pair_halves(name, weight, heads)
    return weight


def huggingface_name(name: str) -> str:
    """The name that a Hugging Face checkpoint gives to a GGUF tensor: ``blk.0.attn_q.weight`` and so on.

    Raises:
        ModelError: no tensor of the supported families has this name.
    """
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    module = _LAYER_NAMES.get(match[2]) if match else None
    if match is None or module is None:
        raise ModelError(f"GGUF tensor {show(name)} has no place in the supported model families.")
    return f"model.layers.{int(match[1])}.{module}.{match[3]}"


def _pair_halves(name: str, weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows (x0 y0 x1 y1 ...) of each head -> (x0 x1 ... y0 y1 ...); [num_heads * head_dim, ...]."""
    rows = weight.shape[0]
    if rows % (2 * num_heads):
        raise ModelError(f"GGUF tensor {name} has {rows} rows, which {num_heads} heads cannot share.")
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
