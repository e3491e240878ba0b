"""``EngineCore``: a scheduler and an executor, and the step that ties them together.

Owns the step loop's body. Knows no socket, thread or process: ``engine_process.py`` runs it,
tests call it. Speaks the nouns of ``messages.py``: handles and tokens, never text.
"""

from __future__ import annotations

from engine.api import ModelLimits
from engine.api.request import check_request
from engine.config import EngineConfig
from engine.metrics.stats import EngineStats
from engine.v1.core.request import FinishCause, Finished
from engine.v1.core.scheduler import Scheduler, StepOutcome
from engine.v1.core.step import LogprobRows
from engine.v1.executor.base import Executor
from engine.v1.llm_engine.messages import AddRequest, StepOutputs, TokenLogprobs


class EngineCore:
    """Call ``step`` while ``has_work``; ``add`` and ``abort`` in between."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        self.scheduler = Scheduler(config)
        self.executor = executor
        self.limits = ModelLimits(
            vocab_size=config.model.architecture.vocab_size,
            max_model_len=config.model.max_model_len,
            kv_capacity_tokens=config.cache.num_blocks * config.cache.block_size,
        )

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> StepOutputs:
        """Computes one batch. An exception here is fatal: scheduler and workers may disagree."""
        plan = self.scheduler.schedule()
        result = self.executor.execute(plan)
        outcome = self.scheduler.update(plan, result)
        return _step_outputs(outcome, result.logprobs)

    def add(self, add: AddRequest) -> None:
        """Takes in a request, checked again because the sender may have been wrong.

        Raises:
            RequestError: it cannot be served; nothing has changed.
        """
        params = check_request(add.prompt_token_ids, add.params, self.limits)
        self.scheduler.add(add.handle, add.prompt_token_ids, params)

    def abort(self, handles: list[int]) -> StepOutputs | None:
        """Ends those requests that are still open, and says which those were."""
        ended = [Finished(handle, FinishCause.ABORT) for handle in handles if self.scheduler.abort(handle)]
        return StepOutputs([], [], ended) if ended else None

    def stats(self) -> EngineStats:
        return self.scheduler.stats()


def _step_outputs(outcome: StepOutcome, logprobs: LogprobRows | None) -> StepOutputs:
    """The frame for the API process."""
    handles: list[int] = outcome.handles.tolist()
    rows = _token_logprobs(handles, logprobs) if logprobs is not None else []
    return StepOutputs(handles, outcome.token_ids.tolist(), outcome.finished, rows)


def _token_logprobs(handles: list[int], rows: LogprobRows) -> list[TokenLogprobs]:
    columns = (rows.places.tolist(), rows.token_ids.tolist(), rows.logprobs.tolist(), rows.ranks.tolist())
    return [
        TokenLogprobs(handles[place], token_ids, logprobs, rank)
        for place, token_ids, logprobs, rank in zip(*columns, strict=True)
    ]
