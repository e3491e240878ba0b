"""The default model: real weights from its GGUF file, against transformers' own reading of that file."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.config.engine_args import DEFAULT_MODEL
from engine.config.engine_config import Dtype, ModelConfig
from engine.loader.architecture import read_architecture
from engine.loader.source import find_model
from engine.models.load_model import load_model
from engine.text.tokenizer import load_tokenizer
from tests.models.harness import greedy_tokens, paged_logits
from tests.models.tiny import hf_logits

QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def default_model() -> ModelConfig:
    source = find_model(DEFAULT_MODEL, "auto", "")
    architecture = read_architecture(source)
    return ModelConfig(
        model=DEFAULT_MODEL,
        served_name=DEFAULT_MODEL,
        source=source,
        architecture=architecture,
        dtype="float32",
        load_format="auto",
        max_model_len=1024,
        seed=0,
        skip_tokenizer_init=False,
    )


@pytest.fixture(scope="module")
def reference(default_model: ModelConfig) -> Iterator[transformers.PreTrainedModel]:
    """``from_pretrained(..., gguf_file=...)`` by its parts, because the whole asks for accelerate."""
    path = default_model.source.path
    with torch.device("meta"):  # only its names are read
        names = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=30))
    parsed = load_gguf_checkpoint(path, return_tensors=True, model_to_load=names)  # type: ignore[no-untyped-call]
    config = transformers.LlamaConfig(**parsed["config"])
    model = transformers.LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(parsed["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    model.tie_weights()
    yield model


def question_tokens(config: ModelConfig) -> list[int]:
    return load_tokenizer(config.source).encode(QUESTION, add_special_tokens=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_capital_of_france_is_paris(default_model: ModelConfig, dtype: Dtype) -> None:
    config = dataclasses.replace(default_model, dtype=dtype)
    model = load_model(config, torch.device("cpu"))
    [output] = greedy_tokens(model, config, [question_tokens(config)], 8, backend="cpu")
    assert "Paris" in load_tokenizer(config.source).decode(output)


def test_logits_equal_transformers(default_model: ModelConfig, reference: transformers.PreTrainedModel) -> None:
    model = load_model(default_model, torch.device("cpu"))
    tokens = question_tokens(default_model)
    [ours] = paged_logits(model, default_model, [tokens], backend="cpu")
    torch.testing.assert_close(ours, hf_logits(reference, tokens), rtol=1e-3, atol=1e-3)


def test_half_the_bytes_keep_the_logits_close(
    default_model: ModelConfig, reference: transformers.PreTrainedModel
) -> None:
    """bfloat16 with packed weights differs from fp32 by rounding, and not more than transformers' own does."""
    config = dataclasses.replace(default_model, dtype="bfloat16")
    tokens = question_tokens(config)
    exact = hf_logits(reference, tokens)
    [ours] = paged_logits(load_model(config, torch.device("cpu")), config, [tokens], backend="cpu")
    theirs = hf_logits(reference.bfloat16(), tokens).float()
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()
