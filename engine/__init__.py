"""One LLM server, two complete engines. ``from engine import LLM, SamplingParams``.

Names are loaded on first use: every process of the package imports this module, and most need
none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.api import CompletionOutput, RequestOutput, SamplingParams
    from engine.entrypoints.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]

_HOME = {
    "LLM": "engine.entrypoints.llm",
    "CompletionOutput": "engine.api",
    "RequestOutput": "engine.api",
    "SamplingParams": "engine.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
