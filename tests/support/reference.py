"""The default model in transformers, fp32: what both engines must agree with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from engine.config.engine_args import DEFAULT_MODEL
from engine.loader.source import find_model


@cache
def transformers_model() -> Any:
    """Loads once a test process.

    The weights are dequantized by the ``gguf`` package and put into transformers' Llama here, so
    that nothing of our loader is part of the reference.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(find_model(DEFAULT_MODEL, "auto", "").path)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).float().eval()
    state = {_name(t.name): torch.tensor(dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    for name in state:
        for part, heads in (("q_proj", 9), ("k_proj", 3)):
            if part in name:
                state[name] = _halves(state[name], heads)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not unexpected, (missing, unexpected)
    return model


def _name(gguf_name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
    }
    names = gguf_name.split(".")
    if names[0] == "blk":
        return f"model.layers.{names[1]}.{parts[names[2]]}.weight"
    return f"{parts[names[0]]}.weight"


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp interleaves the two halves that a rotation pairs; transformers lays them end to end."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def greedy(prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy continuation, end of sequence ignored; one sequence at a time, with transformers' own cache."""
    return list(_greedy(tuple(prompt), max_tokens))


@cache
@torch.inference_mode()
def _greedy(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    model = transformers_model()
    ids, past, tokens = torch.tensor([prompt]), None, []
    for _ in range(max_tokens):
        out = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        ids = torch.tensor([[tokens[-1]]])
    return tuple(tokens)


@torch.inference_mode()
def next_logits(ids: list[int]) -> torch.Tensor:  # [vocab]
    """Logits of the token after ``ids``."""
    return transformers_model()(input_ids=torch.tensor([ids])).logits[0, -1].float()


@torch.inference_mode()
def all_logits(ids: list[int]) -> torch.Tensor:  # [len(ids), vocab]
    """Logits after each prefix of ``ids``."""
    return transformers_model()(input_ids=torch.tensor([ids])).logits[0].float()
