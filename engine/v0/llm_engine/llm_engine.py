"""``LLMEngine``: V0's loop. Schedule, execute, process the outputs; then the same again.

Owns the requests between ``add_request`` and their last output, and the counters. Knows no
sockets (``engine_process.py``) and no tensors (``worker/``), so it runs in any process.
"""

from __future__ import annotations

import itertools

import msgspec

from engine.api import GenerateRequest, ModelLimits, RequestOutput
from engine.api.request import check_request
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.metrics.stats import EngineStats
from engine.text.output_text import OutputText
from engine.text.tokenizer import Tokenizer
from engine.v0.core.block_manager import BlockManager
from engine.v0.core.execute_model import ExecuteModelRequest
from engine.v0.core.scheduler import Scheduler
from engine.v0.core.scheduler_outputs import SchedulerOutputs
from engine.v0.core.sequence import Sequence
from engine.v0.core.sequence_group import SequenceGroup
from engine.v0.executor.base import Executor
from engine.v0.llm_engine.output_processor import OutputProcessor


class LLMEngine:
    """The engine as one object; ``tokenizer`` is ``None`` when prompts and outputs are token ids."""

    def __init__(self, config: EngineConfig, executor: Executor, tokenizer: Tokenizer | None) -> None:
        model = config.model
        self.block_manager = BlockManager(config.cache.block_size, config.cache.num_blocks)
        self.scheduler = Scheduler(config.scheduler, self.block_manager, max_model_len=model.max_model_len)
        self.executor = executor
        self.output_processor = OutputProcessor(tokenizer, model.architecture.eos_token_ids)
        self.limits = ModelLimits(
            vocab_size=model.architecture.vocab_size,
            max_model_len=model.max_model_len,
            kv_capacity_tokens=self.block_manager.capacity_tokens,
        )
        self._tokenizer = tokenizer
        self._seq_ids = itertools.count()
        self._groups: dict[str, SequenceGroup] = {}
        self._counters = EngineStats(kv_blocks_total=config.cache.num_blocks, slots_total=config.scheduler.max_num_seqs)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do."""
        return self.scheduler.has_work

    def add_request(self, request: GenerateRequest) -> None:
        """Queues a request.

        Raises:
            RequestError: it does not fit the model or the cache, or its id is in use.
        """
        if request.request_id in self._groups:
            raise RequestError(f"The request id {request.request_id!r} is in use; give each request its own.")
        if request.params.stop and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer; use stop_token_ids instead.", param="stop")
        params = check_request(request.prompt_token_ids, request.params, self.limits)
        output_text = OutputText(self._tokenizer, request.prompt_token_ids, params)
        seq = Sequence(next(self._seq_ids), request.prompt_token_ids, output_text)
        group = SequenceGroup(request.request_id, [seq], params, request.arrival_time)
        self._groups[request.request_id] = group
        self.scheduler.add_seq_group(group)
        self._counters.prompt_tokens += len(request.prompt_token_ids)

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """Ends a request between two steps; its last output, or ``None`` if it is not here (any more)."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return None
        self.scheduler.abort_seq_group(group)
        self._counters.requests_aborted += 1
        return self.output_processor.end(group)

    def step(self) -> list[RequestOutput]:
        """Computes one batch and returns what is new, a delta a request. Any exception is fatal."""
        metadata, scheduled = self.scheduler.schedule()
        sampled = self.executor.execute_model(ExecuteModelRequest(metadata, scheduled.finished_request_ids))
        outputs = self.output_processor.process(scheduled, sampled)
        self.scheduler.free_finished_seq_groups()
        self._count(scheduled, outputs)
        return outputs

    def stats(self) -> EngineStats:
        """A snapshot."""
        return msgspec.structs.replace(
            self._counters,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_blocks_free=self.block_manager.num_free_blocks,
            slots_used=len(self.scheduler.running),
        )

    def _count(self, scheduled: SchedulerOutputs, outputs: list[RequestOutput]) -> None:
        """Counts the step, and forgets the requests it finished."""
        self._counters.num_steps += bool(scheduled.scheduled_seq_groups)
        self._counters.preemptions += scheduled.num_preempted
        for output in outputs:
            self._counters.generation_tokens += sum(len(part.token_ids) for part in output.outputs)
            if output.finished:
                self._counters.requests_finished += 1
                del self._groups[output.request_id]
