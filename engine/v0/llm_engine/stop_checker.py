"""``StopChecker``: whether the newest token ends a sequence.

Owns the rules about token ids and lengths. Stop strings are found where text is made
(``engine/text/output_text.py``).
"""

from __future__ import annotations

from engine.api import SamplingParams
from engine.v0.core.sequence import Sequence, SequenceStatus


class StopChecker:
    """Stateless but for the model's end-of-sequence ids."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)

    def check(self, seq: Sequence, params: SamplingParams) -> None:
        """Gives ``seq`` its finished status, and the stop id as its reason, if its newest token ends it.

        ``max_tokens`` also stands for the context length: ``check_request`` cut it to what fits.
        """
        assert params.max_tokens is not None, "check_request resolves max_tokens"
        token_id = seq.data.token_ids[-1]
        may_stop = seq.data.num_output_tokens >= params.min_tokens
        if may_stop and token_id in self._eos_token_ids and not params.ignore_eos:
            seq.status = SequenceStatus.FINISHED_STOPPED
        elif may_stop and token_id in params.stop_token_ids:
            seq.status = SequenceStatus.FINISHED_STOPPED
            seq.stop_reason = token_id
        elif seq.data.num_output_tokens >= params.max_tokens:
            seq.status = SequenceStatus.FINISHED_LENGTH
