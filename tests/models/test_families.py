"""Every family computes what transformers computes, however its batch is cut."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.engine_config import AttentionBackendName, Dtype
from engine.loader.load import load_weights
from engine.models.registry import make_model
from tests.models.harness import Schedule, greedy_tokens, paged_logits
from tests.models.tiny import hf_greedy_tokens, hf_logits, hf_model, random_tokens, save_and_load

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}

SEQUENCES = random_tokens([37, 1, 18, 50])

SCHEDULES: dict[str, Schedule] = {
    "batched": [[(0, 37), (1, 1), (2, 18), (3, 50)]],
    "chunked": [[(3, 20), (0, 1)], [(0, 30), (3, 13), (2, 17)], [(2, 1), (3, 1), (1, 1)], [(3, 16)], [(0, 6)]],
    "one-by-one": [[(2, 1), (1, 1)], *[[(2, 1), (0, 1), (3, 2)]] * 17, [(3, 16), (0, 20)]],
}


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    reference = hf_model(family, **overrides)
    model, config = save_and_load(reference, tmp_path)
    expected = [hf_logits(reference, tokens) for tokens in SEQUENCES]
    for ours, theirs in zip(paged_logits(model, config, SEQUENCES), expected, strict=True):
        assert_close(ours, theirs)
    for prompt, output in zip(SEQUENCES, greedy_tokens(model, config, SEQUENCES, 12), strict=True):
        assert output == hf_greedy_tokens(reference, prompt, 12)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("variant", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_batching_chunking_and_paging_change_nothing(
    variant: str, backend: AttentionBackendName, tmp_path: Path
) -> None:
    family, overrides = VARIANTS[variant]
    reference = hf_model(family, **overrides)
    model, config = save_and_load(reference, tmp_path)
    expected = [hf_logits(reference, tokens) for tokens in SEQUENCES]
    for name, schedule in SCHEDULES.items():
        for block_size in (4, 16):
            outputs = paged_logits(model, config, SEQUENCES, schedule, backend, block_size)
            for ours, theirs in zip(outputs, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name}: {m}")  # noqa: B023


def test_the_window_of_mistral_hides_older_tokens(tmp_path: Path) -> None:
    """Guards the tests above: with a window as long as the sequence the same weights say something else."""
    reference = hf_model("mistral", sliding_window=7)
    model, config = save_and_load(reference, tmp_path / "short")
    other, other_config = save_and_load(hf_model("mistral", sliding_window=64), tmp_path / "long")
    [short], [long] = (paged_logits(m, c, SEQUENCES[:1]) for m, c in ((model, config), (other, other_config)))
    assert_close(short[:7], long[:7])
    assert (short[8:] - long[8:]).abs().max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tied_embeddings_are_in_memory_once(dtype: Dtype, tmp_path: Path) -> None:
    """Before packing and after; in bfloat16 on a CPU the packed weight serves both ends."""
    _, config = save_and_load(hf_model("llama", tie_word_embeddings=True), tmp_path)
    model = make_model(dataclasses.replace(config, dtype=dtype), torch.device("cpu"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    load_weights(model, config)
    model.pack()
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_loaded_models_need_no_gradient(tmp_path: Path) -> None:
    model, _ = save_and_load(hf_model("qwen3"), tmp_path)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
