"""The default model in transformers, fp32: what both engines must agree with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.config.engine_args import DEFAULT_MODEL
from engine.loader.source import find_model


@cache
def transformers_model() -> Any:
    """Loads once a test process; about 5 s."""
    from transformers import AutoModelForCausalLM

    path = Path(find_model(DEFAULT_MODEL, "auto", "").path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def greedy(prompt: list[int], max_tokens: int, eos: tuple[int, ...] = ()) -> list[int]:
    """Greedy continuation, one sequence at a time, with transformers' own cache."""
    model = transformers_model()
    ids, past, tokens = torch.tensor([prompt]), None, []
    while len(tokens) < max_tokens:
        out = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        token = int(out.logits[0, -1].argmax())
        tokens.append(token)
        if token in eos:
            break
        ids = torch.tensor([[token]])
    return tokens


@torch.inference_mode()
def next_logits(ids: list[int]) -> torch.Tensor:  # [vocab]
    """Logits of the token after ``ids``."""
    return transformers_model()(input_ids=torch.tensor([ids])).logits[0, -1].float()


@torch.inference_mode()
def all_logits(ids: list[int]) -> torch.Tensor:  # [len(ids), vocab]
    """Logits after each prefix of ``ids``."""
    return transformers_model()(input_ids=torch.tensor([ids])).logits[0].float()
