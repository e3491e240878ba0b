"""``OutputProcessor``: turns the tokens of a step into text, ends and ``RequestOutput`` deltas.

This is the only loop over a step's outputs. Owns no state of a request: that is the
sequence's (``core/sequence.py``). One step brings each sequence one token. Torch-free.
"""

from __future__ import annotations

from engine.api import CompletionOutput, Logprob, PositionLogprobs, RequestOutput, SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.v0.core.execute_model import SamplerOutput, SequenceOutput
from engine.v0.core.scheduler_outputs import SchedulerOutputs
from engine.v0.core.sequence import Sequence, SequenceStatus
from engine.v0.core.sequence_group import SequenceGroup
from engine.v0.llm_engine.stop_checker import StopChecker


class OutputProcessor:
    """Appends, detokenises, checks for the end, reports."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._stop_checker = StopChecker(eos_token_ids)

    def process(self, scheduled: SchedulerOutputs, sampled: SamplerOutput) -> list[RequestOutput]:
        """Advances every group of a step; a group whose prompt is not yet done brings no output."""
        outputs = []
        for entry, group_output in zip(scheduled.scheduled_seq_groups, sampled, strict=True):
            group = entry.group
            for seq in group.unfinished_seqs:
                seq.data.update_num_computed_tokens(entry.token_chunk_size)
            if group_output.samples:
                seqs = {seq.seq_id: (index, seq) for index, seq in enumerate(group.seqs)}
                parts = [self._advance(*seqs[s.seq_id], s, group.params) for s in group_output.samples]
                outputs.append(request_output(group, parts))
        for group in scheduled.ignored_seq_groups:
            outputs.append(self.end(group))
        return outputs

    def end(self, group: SequenceGroup) -> RequestOutput:
        """The last output of a group that was ended from outside: text still held back, and the reason."""
        parts = []
        for index, seq in enumerate(group.seqs):
            text = seq.output_text.push([], finished=True).text
            parts.append(CompletionOutput(index, text, [], finish_reason=seq.finish_reason))
        return request_output(group, parts)

    def _advance(self, index: int, seq: Sequence, sample: SequenceOutput, params: SamplingParams) -> CompletionOutput:
        if sample.token_id is None:
            seq.status = SequenceStatus.FINISHED_ERROR
            text = seq.output_text.push([], finished=True).text
            return CompletionOutput(index, text, [], finish_reason=seq.finish_reason)
        seq.data.append_token(sample.token_id)
        self._stop_checker.check(seq, params)
        delta = seq.output_text.push([sample.token_id], finished=seq.is_finished)
        if delta.stop is not None:
            seq.status = SequenceStatus.FINISHED_STOPPED
            seq.stop_reason = delta.stop
        return CompletionOutput(
            index=index,
            text=delta.text,
            token_ids=[sample.token_id],
            logprobs=None if sample.logprobs is None else [self._with_texts(sample.logprobs)],
            finish_reason=seq.finish_reason,
            stop_reason=seq.stop_reason,
        )

    def _with_texts(self, logprobs: PositionLogprobs) -> PositionLogprobs:
        tokenizer = self._tokenizer
        if tokenizer is None:
            return logprobs
        return {
            token_id: Logprob(entry.logprob, entry.rank, tokenizer.token_text(token_id))
            for token_id, entry in logprobs.items()
        }


def request_output(group: SequenceGroup, parts: list[CompletionOutput]) -> RequestOutput:
    """A delta of ``group``. The prompt is left out: whoever asked has it."""
    return RequestOutput(group.request_id, [], parts, finished=group.is_finished)
