"""Which engine runs: the only place that reads ``ENGINE_V1`` and that knows both engines.

Owns the decision and the construction of the chosen engine's client. It never changes its
mind: an engine that cannot do what was asked refuses, it is not swapped for the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.client import EngineClient
    from engine.config import EngineConfig
    from engine.text.tokenizer import Tokenizer

EngineName = Literal["v0", "v1"]
VARIABLE = "ENGINE_V1"


@dataclass(frozen=True, slots=True)
class EngineDecision:
    """What was asked, what runs, where the wish came from, and why."""

    requested: EngineName | None
    chosen: EngineName
    source: Literal["environment", "argument", "default"]
    reasons: tuple[str, ...]


def decide(environ: Mapping[str, str] = os.environ) -> EngineDecision:
    """Reads ``ENGINE_V1``: "1" is V1, "0" is V0, unset is V0.

    Raises:
        ConfigError: any other value; guessing would hide a typing mistake.
    """
    value = environ.get(VARIABLE)
    if value is None:
        reason = f"{VARIABLE} is not set; V0 is the default until an RFC flips it"
        return EngineDecision(None, "v0", "default", (reason,))
    if value not in ("0", "1"):
        raise ConfigError(f"{VARIABLE} is {value!r}; set it to 1 for V1 or 0 for V0, or unset it.")
    chosen: EngineName = "v1" if value == "1" else "v0"
    return EngineDecision(chosen, chosen, "environment", (f"{VARIABLE}={value}",))


def create_client(decision: EngineDecision, config: EngineConfig, tokenizer: Tokenizer | None) -> EngineClient:
    """Makes the client of the chosen engine; nothing is started yet.

    V1 detokenizes beside the HTTP server and uses ``tokenizer``; V0's engine process has its own.
    """
    if decision.chosen == "v1":
        from engine.v1.llm_engine.client import V1Client

        return V1Client(config, tokenizer)
    from engine.v0.llm_engine.client import V0Client

    return V0Client(config)
