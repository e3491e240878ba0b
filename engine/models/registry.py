"""The families of models this package knows, each imported only when it is made.

Owns the table and the construction of an empty model. Which checkpoint belongs to which family
is decided by ``engine/loader/architecture.py``. Torch-free until a model is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import ModelError

if TYPE_CHECKING:
    import torch

    from engine.config.engine_config import ModelConfig
    from engine.models.causal_lm import CausalLM


class ModelRegistry:
    """An immutable map of family -> (module, class).

    Raises:
        ValueError: two entries have the same family.
    """

    def __init__(self, entries: Iterable[tuple[str, str, str]]) -> None:
        locations: dict[str, tuple[str, str]] = {}
        for family, module, class_name in entries:
            if family in locations:
                raise ValueError(f"The model family {family!r} is registered twice.")
            locations[family] = (module, class_name)
        self._locations = MappingProxyType(locations)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(self._locations)

    def model_class(self, family: str) -> Callable[[ModelConfig], CausalLM]:
        """Imports and returns the class of a family.

        Raises:
            ModelError: there is no such family.
        """
        if family not in self._locations:
            raise ModelError(f"The model family {family!r} is not supported; supported are {', '.join(self.families)}.")
        module, class_name = self._locations[family]
        model_class: Callable[[ModelConfig], CausalLM] = getattr(import_module(module), class_name)
        return model_class


MODELS = ModelRegistry(
    [
        ("llama", "engine.models.llama", "LlamaForCausalLM"),
        ("mistral", "engine.models.mistral", "MistralForCausalLM"),
        ("qwen2", "engine.models.qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "engine.models.qwen3", "Qwen3ForCausalLM"),
    ]
)


def make_model(config: ModelConfig, device: torch.device) -> CausalLM:
    """Makes the model with uninitialised parameters of ``config.dtype`` on ``device``.

    Raises:
        ModelError: the family is not supported.
    """
    import torch

    model_class = MODELS.model_class(config.architecture.family)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.dtype))
    try:
        with torch.device(device):
            return model_class(config)
    finally:
        torch.set_default_dtype(previous)
