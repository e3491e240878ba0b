"""``Scheduler``: which groups the next step computes, and how many tokens of each.

Owns the queues. By default a step is either prefills or decodes, and prefills go first: new
requests reach their first token soon, and running ones stall while they do. With
``enable_chunked_prefill`` a step takes the running groups first and fills what is left of its
token budget with chunks of prompts (Sarathi-Serve, arXiv 2403.02310).

When blocks run out the newest running group gives its own back and will be recomputed from its
tokens, so the oldest always advances and every request ends.

Does not own blocks (``block_manager.py``) or what a finished step means (``llm_engine/``).
"""

from __future__ import annotations

from collections import deque

from engine.config import SchedulerConfig
from engine.v0.core.block_manager import AllocStatus, BlockManager
from engine.v0.core.budget import SchedulingBudget
from engine.v0.core.scheduler_outputs import (
    ScheduledSequenceGroup,
    SchedulerOutputs,
    SchedulerPrefillOutputs,
    SchedulerRunningOutputs,
)
from engine.v0.core.sequence import SequenceStatus
from engine.v0.core.sequence_group import SequenceGroup, SequenceGroupMetadata


class Scheduler:
    """First come, first served, over two queues in order of arrival.

    ``engine/config/resolve.py`` refuses limits under which a request could wait for ever.
    """

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager, *, max_model_len: int) -> None:
        needed = config.max_num_seqs if config.enable_chunked_prefill else max_model_len
        assert config.max_num_batched_tokens >= needed, "a step must hold a token of each sequence, or a whole prompt"
        self.config = config
        self.block_manager = block_manager
        self.waiting: deque[SequenceGroup] = deque()
        self.running: deque[SequenceGroup] = deque()
        self._finished_request_ids: list[str] = []

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do; telling the worker who finished counts."""
        return bool(self.waiting or self.running or self._finished_request_ids)

    def add_seq_group(self, group: SequenceGroup) -> None:
        """Queues a new group behind all others."""
        self.waiting.append(group)

    def abort_seq_group(self, group: SequenceGroup) -> None:
        """Ends a queued group now; its blocks are free at once."""
        queue = self.running if group.seqs[0].status is SequenceStatus.RUNNING else self.waiting
        queue.remove(group)
        group.set_status(SequenceStatus.FINISHED_ABORTED)
        self._release(group)

    def free_finished_seq_groups(self) -> None:
        """Takes groups that the last step finished out of the running queue, with their blocks."""
        finished = [group for group in self.running if group.is_finished]
        if not finished:
            return
        self.running = deque(group for group in self.running if not group.is_finished)
        for group in finished:
            self._release(group)

    def schedule(self) -> tuple[list[SequenceGroupMetadata], SchedulerOutputs]:
        """Decides one step and gives its groups their blocks.

        Returns:
            The description of each group for the worker, and the decision, in the same order.
        """
        budget = SchedulingBudget(self.config.max_num_batched_tokens, self.config.max_num_seqs)
        if self.config.enable_chunked_prefill:
            outputs = self._schedule_chunked_prefill(budget)
        else:
            outputs = self._schedule_default(budget)
        self._finished_request_ids = []
        return [self._metadata_of(scheduled) for scheduled in outputs.scheduled_seq_groups], outputs

    # -- policies ---------------------------------------------------------------------------------

    def _schedule_default(self, budget: SchedulingBudget) -> SchedulerOutputs:
        """Prefills if any can be admitted, else decodes: never both in one batch."""
        for group in self.running:
            budget.add_seqs(group.request_id, len(group.unfinished_seqs))
        admitted = self._schedule_prefills(budget)
        running = SchedulerRunningOutputs() if admitted.prefills else self._schedule_running(budget)
        return self._outputs(budget, running, admitted)

    def _schedule_chunked_prefill(self, budget: SchedulingBudget) -> SchedulerOutputs:
        """Running groups first, then new prompts, under one token budget.

        A group preempted here heads the waiting queue and needs more blocks than it left, so a
        step that preempts admits nobody.
        """
        running = self._schedule_running(budget)
        return self._outputs(budget, running, self._schedule_prefills(budget))

    def _schedule_running(self, budget: SchedulingBudget) -> SchedulerRunningOutputs:
        """One more token, or one more chunk, for each running group, oldest first."""
        outputs = SchedulerRunningOutputs()
        for group in tuple(self.running):
            if group.seqs[0].status is not SequenceStatus.RUNNING:
                break  # Victims come from the end of the queue: all that follow were preempted.
            num_new_tokens = min(group.num_uncomputed_tokens, budget.remaining_tokens)
            if num_new_tokens == 0 or not self._make_room(group, outputs.preempted):
                break
            self.block_manager.append_slots(group)
            budget.add_tokens(group.request_id, num_new_tokens)
            budget.add_seqs(group.request_id, len(group.unfinished_seqs))
            batch = outputs.prefills if group.is_prefill else outputs.decodes
            batch.append(ScheduledSequenceGroup(group, num_new_tokens))
        return outputs

    def _schedule_prefills(self, budget: SchedulingBudget) -> SchedulerPrefillOutputs:
        """Admits waiting groups in order until one does not fit; nobody overtakes."""
        outputs = SchedulerPrefillOutputs()
        while self.waiting:
            group = self.waiting[0]
            num_new_tokens = group.num_uncomputed_tokens
            if self.config.enable_chunked_prefill:
                num_new_tokens = min(num_new_tokens, budget.remaining_tokens)
            num_new_seqs = len(group.unfinished_seqs)
            status = self.block_manager.can_allocate(group)
            if status is AllocStatus.NEVER:
                self._ignore(self.waiting.popleft(), outputs)
                continue
            fits = num_new_tokens > 0 and budget.can_schedule(num_new_tokens=num_new_tokens, num_new_seqs=num_new_seqs)
            if status is AllocStatus.LATER or not fits:
                break
            self.block_manager.allocate(group)
            group.set_status(SequenceStatus.RUNNING)
            self.running.append(self.waiting.popleft())
            budget.add_tokens(group.request_id, num_new_tokens)
            budget.add_seqs(group.request_id, num_new_seqs)
            outputs.prefills.append(ScheduledSequenceGroup(group, num_new_tokens))
        return outputs

    # -- parts ------------------------------------------------------------------------------------

    def _make_room(self, group: SequenceGroup, preempted: list[SequenceGroup]) -> bool:
        """Preempts from the end of the queue until ``group`` can grow; False if it was the victim itself."""
        while not self.block_manager.can_append_slots(group):
            victim = self.running.pop()
            self._preempt_by_recompute(victim)
            preempted.append(victim)
            if victim is group:
                return False
        return True

    def _preempt_by_recompute(self, group: SequenceGroup) -> None:
        """Blocks go, tokens stay. The front of the queue keeps arrival order: newer victims went first."""
        for seq in group.unfinished_seqs:
            self.block_manager.free(seq)
            seq.data.reset_for_recompute()
        group.set_status(SequenceStatus.WAITING)
        self.waiting.appendleft(group)

    def _ignore(self, group: SequenceGroup, outputs: SchedulerPrefillOutputs) -> None:
        group.set_status(SequenceStatus.FINISHED_ERROR)
        self._release(group)
        outputs.ignored.append(group)

    def _release(self, group: SequenceGroup) -> None:
        for seq in group.seqs:
            self.block_manager.free(seq)
        self._finished_request_ids.append(group.request_id)

    def _outputs(
        self, budget: SchedulingBudget, running: SchedulerRunningOutputs, admitted: SchedulerPrefillOutputs
    ) -> SchedulerOutputs:
        prefills = running.prefills + admitted.prefills
        return SchedulerOutputs(
            scheduled_seq_groups=prefills + running.decodes,
            num_prefill_groups=len(prefills),
            num_batched_tokens=budget.num_batched_tokens,
            num_preempted=len(running.preempted),
            ignored_seq_groups=admitted.ignored,
            finished_request_ids=self._finished_request_ids,
        )

    def _metadata_of(self, scheduled: ScheduledSequenceGroup) -> SequenceGroupMetadata:
        group = scheduled.group
        seqs = group.unfinished_seqs
        return SequenceGroupMetadata(
            request_id=group.request_id,
            is_prompt=group.is_prefill,
            seq_data={seq.seq_id: seq.data for seq in seqs},
            block_tables={seq.seq_id: self.block_manager.block_table(seq) for seq in seqs},
            params=group.params,
            token_chunk_size=scheduled.token_chunk_size,
            do_sample=scheduled.token_chunk_size == group.num_uncomputed_tokens,
        )

    def check_invariants(self) -> None:
        """Raises ``AssertionError`` if queues, statuses and blocks disagree. Between steps only."""
        for group in self.waiting:
            for seq in group.seqs:
                assert seq.status is SequenceStatus.WAITING, f"{group.request_id} waits as {seq.status}"
                assert seq.data.num_computed_tokens == 0, f"{group.request_id} waits but claims to have KV"
        for group in self.running:
            for seq in group.seqs:
                assert seq.status is SequenceStatus.RUNNING, f"{group.request_id} runs as {seq.status}"
                assert seq.data.num_uncomputed_tokens > 0, f"{group.request_id} has nothing left to compute"
        ids = [group.request_id for group in (*self.waiting, *self.running)]
        assert len(set(ids)) == len(ids), "a request is queued twice"
        assert len(self.running) <= self.config.max_num_seqs, "more sequences run than allowed"
        self.block_manager.check_invariants([seq for group in self.running for seq in group.seqs])
