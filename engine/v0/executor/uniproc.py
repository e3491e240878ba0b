"""``UniprocExecutor``: the driver worker and no other, called in the engine's own thread."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.v0.core.execute_model import ExecuteModelRequest, SamplerOutput
from engine.v0.worker.worker import Worker


class UniprocExecutor:
    """An ``Executor`` (``base.py``) of one device.

    Raises:
        ModelError: the model's files cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._driver_worker = Worker(config)

    def execute_model(self, request: ExecuteModelRequest) -> SamplerOutput:
        """Runs one step. Any exception is fatal to the engine."""
        return self._driver_worker.execute_model(request)
