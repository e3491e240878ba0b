"""``read_architecture``: the shape of a model, from whichever file describes it. Torch-free.

Owns which checkpoints are supported (class names of ``config.json``, architectures of GGUF files) and
the checks that hold for all of them. ``huggingface_config`` and ``gguf_config`` read the fields.
"""

from __future__ import annotations

import math
import os

from engine.config.engine_config import Architecture, ModelSource
from engine.errors import ModelError
from engine.loader.fields import read_json_object
from engine.loader.gguf_config import gguf_architecture
from engine.loader.gguf_file import GgufFile
from engine.loader.huggingface_config import huggingface_architecture
from engine.loader.source import model_file

MAX_CONFIG_BYTES = 4 << 20


def read_architecture(source: ModelSource) -> Architecture:
    """Reads and checks the architecture; runs no code of the model, whatever its ``auto_map`` says.

    Raises:
        ModelError: the architecture or one of its features is not supported, a value is missing or out of
            bounds, or the weight files are too small for a model of this shape.
    """
    if source.kind == "gguf":
        file = GgufFile(source.path)
        architecture = gguf_architecture(file)
        stored = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    else:
        architecture = huggingface_architecture(_read(source, "config.json"), _read(source, "generation_config.json"))
        smallest_dtype_bytes = 2
        stored = sum(map(os.path.getsize, source.files)) // smallest_dtype_bytes
    _check(architecture)
    if source.files:
        _check_size(architecture, stored)
    return architecture


def num_parameters(architecture: Architecture) -> int:
    """Weights in the matrices of a model; biases and norms, a fraction of a percent, are not counted."""
    a = architecture
    attention = 2 * a.hidden_size * a.head_dim * (a.num_heads + a.num_kv_heads)
    feed_forward = 3 * a.hidden_size * a.intermediate_size
    vocabulary = a.vocab_size * a.hidden_size * (1 if a.tie_word_embeddings else 2)
    return vocabulary + a.num_layers * (attention + feed_forward)


def _read(source: ModelSource, file_name: str) -> dict[str, object]:
    """A side file as an object; empty when the model has none."""
    path = model_file(source, file_name)
    return read_json_object(path, MAX_CONFIG_BYTES) if path else {}


def _check(architecture: Architecture) -> None:
    """What must hold between the fields, whatever file they came from."""
    heads, kv_heads, head_dim = architecture.num_heads, architecture.num_kv_heads, architecture.head_dim
    if heads % kv_heads:
        raise ModelError(
            f"The model has {heads} attention heads and {kv_heads} key-value heads; the first must be a multiple."
        )
    if head_dim % 2:
        raise ModelError(f"The model's head dimension is {head_dim}; rotary embeddings need an even one.")


def _check_size(architecture: Architecture, stored: int) -> None:
    """Refuses a description far larger than the weights, before anybody allocates a model of that shape."""
    described = num_parameters(architecture)
    if described > stored:
        raise ModelError(
            f"The model's configuration describes {described} weights, but its files hold at most {stored}; "
            "they are incomplete, or belong to another model. Download it again."
        )
