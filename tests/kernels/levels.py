"""Every instruction set level that this machine can run, as a pytest parameter."""

from __future__ import annotations

import pytest

from engine.kernels.native import IsaLevel, best_isa_level

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
SUPPORTED = [level for level in IsaLevel if level <= best_isa_level()]
LEVELS = pytest.mark.parametrize("level", SUPPORTED, ids=[level.name for level in SUPPORTED])
