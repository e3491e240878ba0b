"""Tiny random models of every family, made by transformers and loaded by us from its files."""

from pathlib import Path
from typing import Any

import torch
import transformers

from engine.config.engine_config import ModelConfig
from engine.loader.architecture import read_architecture
from engine.loader.source import find_model
from engine.models.causal_lm import CausalLM
from engine.models.load_model import load_model

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


def hf_model(family: str, **overrides: Any) -> transformers.PreTrainedModel:
    """A random fp32 model of two layers whose logits and positions matter (large weights)."""
    shape: dict[str, Any] = {
        "vocab_size": 193,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "attn_implementation": "eager",
    }
    if family in ("llama", "qwen2"):
        shape["num_attention_heads"], shape["num_key_value_heads"], shape["hidden_size"] = 4, 2, 64
    torch.manual_seed(0)
    config = CONFIGS[family](**(shape | overrides))
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # made as zeros and ones, which would hide a missing one
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save_and_load(
    model: transformers.PreTrainedModel, folder: Path, max_model_len: int = 256
) -> tuple[CausalLM, ModelConfig]:
    """Our model of the same weights, through the files and the product's own loader."""
    model.save_pretrained(folder)
    source = find_model(str(folder), "safetensors", str(folder / "cache"))
    config = ModelConfig(
        model=str(folder),
        served_name="tiny",
        source=source,
        architecture=read_architecture(source),
        dtype="float32",
        load_format="safetensors",
        max_model_len=max_model_len,
        seed=0,
        skip_tokenizer_init=True,
    )
    return load_model(config, torch.device("cpu")), config


@torch.inference_mode()
def hf_logits(model: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[len, vocab] logits of one sequence, computed at once."""
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def hf_greedy_tokens(model: transformers.PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """The most likely continuation, each token computed from scratch."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(hf_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def random_tokens(lengths: list[int], vocab_size: int = 193) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]
