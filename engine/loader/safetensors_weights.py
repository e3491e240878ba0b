"""Weights of a (sharded) safetensors checkpoint as (name, tensor) pairs.

Owns the agreement between index and files. The ``safetensors`` package reads and checks the format:
no tensor of it can lie outside its file or over another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from safetensors import SafetensorError, safe_open

from engine.config.engine_config import ModelConfig, ModelSource
from engine.errors import ModelError
from engine.loader.fields import show
from engine.loader.source import INDEX_FILE, model_file, read_index

_DTYPES = ("F32", "F16", "BF16")

#: Buffers that old checkpoints stored though they follow from the config.
_DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")


def safetensors_weights(config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every weight in its stored dtype, file by file, one tensor at a time.

    Raises:
        ModelError: a file is malformed, holds another dtype, or the index does not fit the files.
    """
    tied = config.architecture.tie_word_embeddings
    for path, names in _tensor_names(config.source).items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    if name.endswith(_DERIVED_SUFFIXES) or (tied and name == "lm_head.weight"):
                        continue
                    dtype = file.get_slice(name).get_dtype()
                    if dtype not in _DTYPES:
                        raise ModelError(
                            f"Tensor {show(name)} has the dtype {dtype}; supported are {', '.join(_DTYPES)}."
                        )
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError):
            raise _malformed(path) from None


def _tensor_names(source: ModelSource) -> dict[str, list[str]]:
    """File -> names of its tensors, checked against the index; reads headers only."""
    names: dict[str, list[str]] = {}
    for path in source.files:
        try:
            with safe_open(path, framework="pt") as file:
                names[path] = list(file.keys())
        except (SafetensorError, OSError):
            raise _malformed(path) from None
    index = model_file(source, INDEX_FILE)
    if index is not None:
        held = {(name, os.path.basename(path)) for path, held in names.items() for name in held}
        missing = sorted(set(read_index(index).items()) - held)
        if missing:
            shown = ", ".join(f"{show(name)} in {file_name}" for name, file_name in missing[:3])
            raise ModelError(
                f"{INDEX_FILE} lists {len(missing)} tensors that the files do not hold ({shown}); "
                "the checkpoint is incomplete, download it again."
            )
    return names


def _malformed(path: str) -> ModelError:
    return ModelError(f"{os.path.basename(path)} is truncated or no safetensors file; download it again.")
