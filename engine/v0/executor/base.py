"""``Executor``: how the engine runs a step, wherever the workers are."""

from __future__ import annotations

from typing import Protocol

from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput


class Executor(Protocol):
    """Runs steps on some number of workers; the engine neither knows how many nor where."""

    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        """Runs one step and waits for its tokens. Any exception is fatal to the engine."""
        ...
