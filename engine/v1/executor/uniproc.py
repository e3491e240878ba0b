"""``UniprocExecutor``: one worker, called in the core's own thread."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.v1.core.step import StepPlan, StepResult
from engine.v1.worker.worker import Worker


class UniprocExecutor:
    """An ``Executor`` of one device. Loads the model at construction.

    Raises:
        ModelError: the model's files cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(config)

    def execute(self, plan: StepPlan) -> StepResult:
        return self._worker.execute(plan)
