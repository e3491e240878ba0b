"""engine/models/registry.py: lazy, without duplicates, helpful when asked for the unknown."""

import subprocess
import sys

import pytest

from engine.errors import ModelError
from engine.models.registry import MODELS, ModelRegistry


def test_every_family_has_its_class() -> None:
    assert MODELS.families == ("llama", "mistral", "qwen2", "qwen3")
    names = [MODELS.model_class(family).__name__ for family in MODELS.families]
    assert names == ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]


def test_a_duplicate_is_an_error() -> None:
    with pytest.raises(ValueError, match="'llama' is registered twice"):
        ModelRegistry([("llama", "a", "A"), ("qwen2", "b", "B"), ("llama", "c", "C")])


def test_an_unknown_family_is_told_what_is_supported() -> None:
    with pytest.raises(ModelError, match="'mamba' is not supported; supported are llama, mistral, qwen2, qwen3"):
        MODELS.model_class("mamba")


def test_looking_up_families_imports_no_torch() -> None:
    code = "import sys; from engine.models.registry import MODELS; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
