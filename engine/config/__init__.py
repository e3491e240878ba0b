"""Configuration: what the user asked (``EngineArgs``), what it became (``EngineConfig``), and why.

All dataclasses are frozen, torch-free and msgspec-encodable: the resolved config is the first
message an engine process receives. Facts found at run time (the number of KV blocks) live in
objects of their own and are never written back.
"""

from engine.config.engine_args import EngineArgs
from engine.config.engine_config import (
    Architecture,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ModelSource,
    RopeScaling,
    SchedulerConfig,
)

__all__ = [
    "Architecture",
    "CacheConfig",
    "EngineArgs",
    "EngineConfig",
    "ModelConfig",
    "ModelSource",
    "RopeScaling",
    "SchedulerConfig",
]
