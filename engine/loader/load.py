"""``load_weights``: fills a model's parameters from its files.

Owns the bookkeeping: every parameter is loaded exactly once, and nothing is left over. Knows no
architecture: a model's ``packed_modules`` says where a checkpoint's tensor goes, and the
parameter's ``weight_loader`` which part of itself it fills.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from engine.config.engine_config import ModelConfig
from engine.errors import ModelError
from engine.loader.dummy_weights import fill_with_dummy_weights
from engine.loader.fields import show

_MAX_NAMES_SHOWN = 3


def load_weights(model: nn.Module, config: ModelConfig) -> None:
    """Loads every parameter of ``model`` in place, converting to the parameter's dtype and device.

    Raises:
        ModelError: a file is malformed, a tensor is missing, unknown, given twice or of another shape.
    """
    with torch.no_grad(), _one_thread_each() as num_workers:
        if config.load_format == "dummy":
            fill_with_dummy_weights(model, config.seed)
            return
        placement = _Placement(model)
        for name, tensor in _weights(config, num_workers):
            placement.load(name, tensor)
        placement.check_complete()


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Gives each operation one thread, and yields how many threads torch had, to be spent on whole tensors.

    Threads that share an operation meet at a barrier after it. For the thousands of small ones of loading
    that is no faster on idle cores, and ten times slower on cores that others use too.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield num_threads
    finally:
        torch.set_num_threads(num_threads)


def _weights(config: ModelConfig, num_workers: int) -> Iterator[tuple[str, torch.Tensor]]:
    if config.source.kind == "gguf":
        from engine.loader.gguf_weights import gguf_weights

        return gguf_weights(config, num_workers)
    from engine.loader.safetensors_weights import safetensors_weights

    return safetensors_weights(config)


class _Placement:
    """Which parameters a model has, and which checkpoint tensors they still wait for."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self._packed: Mapping[str, tuple[str, str]] = getattr(model, "packed_modules", {})
        self._waiting = {name for parameter in self._parameters for name in self._checkpoint_names(parameter)}
        self._loaded: set[str] = set()

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Copies one checkpoint tensor into its parameter."""
        if name in self._loaded:
            raise ModelError(f"The model's files hold the tensor {show(name)} twice; download them again.")
        if name not in self._waiting:
            raise ModelError(
                f"The model's files hold a tensor {show(name)} of shape {list(tensor.shape)}, "
                "which the model has no parameter for; the files and the configuration do not match."
            )
        self._waiting.remove(name)
        self._loaded.add(name)
        target, shard = self._target(name)
        parameter = self._parameters[target]
        weight_loader = getattr(parameter, "weight_loader", None)
        if weight_loader is not None:
            try:
                weight_loader(parameter, tensor, shard)
            except ModelError as error:
                raise ModelError(f"Tensor {name}: {error}") from None
        elif parameter.shape != tensor.shape:
            raise ModelError(
                f"Tensor {name} has the shape {list(tensor.shape)} where the model needs {list(parameter.shape)}."
            )
        else:
            parameter.copy_(tensor)

    def check_complete(self) -> None:
        """Raises ``ModelError`` if a parameter has not been loaded."""
        if self._waiting:
            names = sorted(self._waiting)
            more = ", ..." if len(names) > _MAX_NAMES_SHOWN else ""
            raise ModelError(
                f"The model's files lack {len(names)} tensors: {', '.join(names[:_MAX_NAMES_SHOWN])}{more}; "
                "they are incomplete, download them again."
            )

    def _target(self, name: str) -> tuple[str, str | None]:
        """The parameter that holds a checkpoint tensor, and the shard of it."""
        prefix, module, leaf = _split(name)
        merged, shard = self._packed.get(module, (module, None))
        return f"{prefix}{merged}{leaf}", shard

    def _checkpoint_names(self, parameter: str) -> list[str]:
        """The checkpoint tensors that make up one parameter."""
        prefix, module, leaf = _split(parameter)
        parts = [part for part, (merged, _) in self._packed.items() if merged == module]
        return [f"{prefix}{part}{leaf}" for part in parts or [module]]


def _split(name: str) -> tuple[str, str, str]:
    """``"a.b.q_proj.weight"`` -> ``("a.b.", "q_proj", ".weight")``."""
    module_path, dot, leaf = name.rpartition(".")
    prefix, prefix_dot, module = module_path.rpartition(".")
    return prefix + prefix_dot, module, dot + leaf
