"""Finding and loading the compiled library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from struct import Struct

import pytest
import torch

from engine.errors import StartupError
from engine.kernels import native
from engine.kernels.rms_norm import rms_norm
from tests.support.server import ROOT


def test_a_missing_library_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    native._library.cache_clear()
    native.function.cache_clear()
    try:
        with pytest.raises(StartupError, match=r"pip install \."):
            rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)
    finally:
        native._library.cache_clear()
        native.function.cache_clear()


def test_only_one_openmp_runtime_is_in_the_process() -> None:
    """In a process of its own, because packages that only tests use bring runtimes too."""
    code = (
        "import torch\n"
        "from engine.kernels.rms_norm import rms_norm\n"
        "rms_norm(torch.ones(64, 576), torch.ones(576), 1e-5)\n"
        "print(open('/proc/self/maps').read())\n"
    )
    maps = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    mapped = {Path(line.split(maxsplit=5)[5].strip()).resolve() for line in maps.splitlines() if "omp" in line}
    runtimes = {path for path in mapped if path.name.startswith(("libgomp", "libiomp", "libomp"))}
    assert len(runtimes) == 1


def test_a_library_of_another_version_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE_VERSION", native.INTERFACE_VERSION + 1)
    with pytest.raises(StartupError, match=r"version.*pip install \."):
        native._library.__wrapped__()


def test_a_level_this_machine_lacks_is_refused() -> None:
    arguments = Struct("PPqqiii").pack(0, 0, 0, 0, 0, native.best_isa_level() + 1, 1)
    status = native.function("engine_silu_and_mul")(arguments)
    assert status == native.Status.UNSUPPORTED_LEVEL
    with pytest.raises(ValueError, match=native.best_isa_level().name):
        native.check_status(status)
