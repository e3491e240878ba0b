"""``Executor``: how the core runs a plan, wherever the workers are."""

from __future__ import annotations

from typing import Protocol

from engine.v1.core.step import StepPlan, StepResult


class Executor(Protocol):
    """Hands every plan to every worker, in order, and gives back one result a plan.

    An exception of ``execute`` means that workers and scheduler no longer agree: it is fatal.
    """

    def execute(self, plan: StepPlan) -> StepResult: ...
