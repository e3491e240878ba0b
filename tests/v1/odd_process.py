"""A V1 engine process that misbehaves as its model's served name says."""

import time

from engine.config import EngineConfig
from engine.ipc.child import run_child
from engine.v1.core.step import StepPlan, StepResult
from engine.v1.executor.uniproc import UniprocExecutor
from engine.v1.llm_engine import engine_process


class OddExecutor(UniprocExecutor):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._behaviour = config.model.served_name

    def execute(self, plan: StepPlan) -> StepResult:
        if self._behaviour == "slow":
            time.sleep(0.05)
        if self._behaviour == "fails at step 4" and plan.step == 4:
            raise RuntimeError("a step failed on purpose")
        return super().execute(plan)


if __name__ == "__main__":
    engine_process.UniprocExecutor = OddExecutor
    run_child(engine_process.main)
