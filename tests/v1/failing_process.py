"""A V1 engine process whose fourth step fails."""

from engine.ipc.child import run_child
from engine.v1.core.step import StepPlan, StepResult
from engine.v1.executor.uniproc import UniprocExecutor
from engine.v1.llm_engine.engine_process import main

execute = UniprocExecutor.execute


def failing(self: UniprocExecutor, plan: StepPlan) -> StepResult:
    if plan.step == 4:
        raise RuntimeError("a step failed on purpose")
    return execute(self, plan)


if __name__ == "__main__":
    UniprocExecutor.execute = failing
    run_child(main)
