"""Where a result came from: the machine, the software and the commit. Saved beside every number."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "pyzmq", "msgspec", "uvloop", "tokenizers")


def provenance(command: str) -> dict[str, Any]:
    """Facts as plain data. ``command`` is what a reader types to measure again."""
    return {
        "command": command,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "hardware": {
            "cpu": _cpu_model(Path("/proc/cpuinfo").read_text()),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpus": _gpus(),
        },
        "software": {
            "python": platform.python_version(),
            "kernel": platform.release(),
            **{name: metadata.version(name) for name in PACKAGES},
        },
    }


def _cpu_model(cpuinfo: str) -> str:
    """The model's name; the architecture where the kernel tells no name (as on ARM)."""
    names = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> list[str]:
    """Names of NVIDIA devices, without asking torch."""
    infos = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for info in infos for line in info.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _git(*arguments: str) -> str | None:
    """The output of a git command; ``None`` outside of a repository or without git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
