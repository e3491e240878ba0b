"""The environment variables of this package, all of them, read in one place.

Owns names, types and defaults. ``ENGINE_V1`` is the one exception: it is read by
``engine/select.py`` alone, and listed here only so that it counts as known.
Nothing in this package writes the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

KNOWN = frozenset({"ENGINE_V1", "ENGINE_LOG_LEVEL", "ENGINE_CACHE_DIR", "ENGINE_API_KEY"})


@dataclass(frozen=True, slots=True)
class Envs:
    """What the environment asked for, with defaults filled in."""

    log_level: str
    cache_dir: str
    api_key: str | None


def read_envs(environ: Mapping[str, str] = os.environ) -> Envs:
    """Reads the variables above; unset means the default."""
    default_cache = os.path.join(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "engine")
    return Envs(
        log_level=environ.get("ENGINE_LOG_LEVEL", "INFO").upper(),
        cache_dir=environ.get("ENGINE_CACHE_DIR") or default_cache,
        api_key=environ.get("ENGINE_API_KEY") or None,
    )


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """``ENGINE_*`` names nobody reads: most likely a spelling mistake worth a warning."""
    return sorted(name for name in environ if name.startswith("ENGINE_") and name not in KNOWN)
