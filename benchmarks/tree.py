"""Counts lines of code by side of the seam: what a second engine costs. ``python -m benchmarks.tree``."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines(*globs: str) -> int:
    """Non-blank lines of all files that match."""
    files = {path for pattern in globs for path in ROOT.glob(pattern)}
    return sum(sum(1 for line in path.read_text().splitlines() if line.strip()) for path in files)


def count() -> dict[str, int]:
    v0, v1 = lines("engine/v0/**/*.py"), lines("engine/v1/**/*.py")
    return {
        "engine/v0": v0,
        "engine/v1": v1,
        "engine (shared)": lines("engine/**/*.py") - v0 - v1,
        "csrc": lines("csrc/**/*.cpp", "csrc/**/*.h"),
        "tests": lines("tests/**/*.py"),
    }


if __name__ == "__main__":
    print(json.dumps(count(), indent=2))
