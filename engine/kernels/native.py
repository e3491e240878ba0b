"""The compiled kernels of ``csrc/``: finding the library, loading it, describing its functions.

Owns the ctypes side of the C interface: calling convention, status codes, element types and
instruction set levels. Does not own any kernel's meaning (one wrapper a kernel, beside this file).

Every kernel takes a pointer to one struct. A wrapper fills it with ``struct.Struct.pack``: the call
costs a quarter of a microsecond, where ctypes takes two and more to convert as many arguments.

The library is data of the top-level package ``engine_native``, which ``pip install .`` puts beside
the other installed packages, so it is found both from a checkout and from an installed ``engine``.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch

from engine.errors import StartupError

LIBRARY = "libengine_native.so"

#: ``engine::kInterfaceVersion``: the structs that this package fills.
INTERFACE_VERSION = 1

#: ``engine::DType``: the element types that kernels take.
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class IsaLevel(IntEnum):
    """Instruction sets that every kernel is compiled for; a level includes the ones before it."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX = 4


class Status(IntEnum):
    """``engine::Status``: what a kernel returns."""

    OK = 0
    UNSUPPORTED_LEVEL = 1
    INDEX_OUT_OF_RANGE = 2
    OUT_OF_MEMORY = 3


@cache
def function(name: str) -> Callable[[bytes], int]:
    """The kernel of that name: takes its packed struct of arguments, returns a ``Status``.

    Raises:
        StartupError: the library is missing, of another version or cannot be loaded.
    """
    result = getattr(_library(), name)
    result.argtypes = [ctypes.c_char_p]
    result.restype = ctypes.c_int32
    return result  # type: ignore[no-any-return]


@cache
def best_isa_level() -> IsaLevel:
    """The highest level that this machine can run."""
    return IsaLevel(_library().engine_best_isa_level())


def check_status(status: int, index_name: str = "an index") -> None:
    """Raises what a kernel's status means; ``index_name`` is what the kernel was indexed with.

    Raises:
        ValueError: an index leads outside of its table, or the machine cannot run the level asked for.
        MemoryError: the kernel's scratch memory could not be had.
    """
    if status == Status.OK:
        return
    if status == Status.INDEX_OUT_OF_RANGE:
        raise ValueError(f"{index_name} leads outside of its table; nothing was computed.")
    if status == Status.UNSUPPORTED_LEVEL:
        raise ValueError(f"this machine runs instruction set levels up to {best_isa_level().name} only.")
    raise MemoryError("a kernel could not get its scratch memory.")


@cache
def _library() -> ctypes.CDLL:
    path = _find_library()
    ctypes.CDLL(_openmp_runtime(), mode=ctypes.RTLD_GLOBAL)
    try:
        library = ctypes.CDLL(str(path))
        version = library.engine_interface_version()
    except (OSError, AttributeError) as error:
        raise StartupError(
            f"The compiled kernels ({LIBRARY}) do not load on this machine; rebuild them with `pip install .`."
        ) from error
    if version != INTERFACE_VERSION:
        raise StartupError(
            f"The compiled kernels ({LIBRARY}) are of version {version}, this source tree needs {INTERFACE_VERSION}; "
            "rebuild them with `pip install .`."
        )
    return library


def _find_library() -> Path:
    spec = importlib.util.find_spec("engine_native")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / LIBRARY
        if path.is_file():
            return path
    raise StartupError(f"The compiled kernels ({LIBRARY}) are not installed; run `pip install .` in the source tree.")


def _openmp_runtime() -> str:
    """The OpenMP runtime that torch has loaded, whatever its wheel calls it.

    The library leaves its OpenMP symbols unresolved, so that they bind to this one: two runtimes in
    a process would each start a thread a core.
    """
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "omp" in line}
    for path in sorted(mapped):
        if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")):
            return path
    return "libgomp.so.1"
