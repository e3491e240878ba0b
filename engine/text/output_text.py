"""``OutputText``: one sequence's tokens become text, up to its stop string.

Owns the order of things (detokenize, match stop strings, hide the token that ended the sequence) and
which tokens count. Length limits and stop tokens are decided by the engine, before text exists.
V0's ``Sequence`` and V1's frontend each own one per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.api import SamplingParams
from engine.text.detokenizer import IncrementalDetokenizer, make_detokenizer
from engine.text.stop import StopMatcher
from engine.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True, array_like=True):
    """What some new tokens added to a sequence's text."""

    text: str
    #: The stop string that ended the sequence just now.
    stop: str | None
    #: How many of the new tokens count: all, or those up to the one that completed ``stop``.
    num_tokens: int


class OutputText:
    """The text of one sequence. Without a tokenizer, or with ``detokenize=False``, it is empty.

    A stop string is not matched before ``min_tokens`` tokens have passed, and does not appear in the
    text, not even in part, unless ``include_stop_str_in_output``. The same holds for the token that ended
    the sequence: EOS, or one of ``stop_token_ids``.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer: IncrementalDetokenizer | None = None
        self._hidden_ends: frozenset[int] = frozenset()
        if tokenizer is not None and params.detokenize:
            self._detokenizer = make_detokenizer(tokenizer, prompt_token_ids, params.skip_special_tokens)
            self._hidden_ends = _hidden_ends(tokenizer, params)
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], finished: bool) -> TextDelta:
        """Adds new tokens; ``finished`` says that the engine ends the sequence with them.

        After a stop string was matched, further tokens do not count.
        """
        if self._detokenizer is None:
            return TextDelta("", None, len(token_ids))
        if self._matcher is not None:
            return self._push_matching(self._detokenizer, self._matcher, token_ids, finished)
        if finished:
            visible = self._visible(token_ids)
            return TextDelta(self._detokenizer.push(visible) + self._detokenizer.finish(), None, len(token_ids))
        return TextDelta(self._detokenizer.push(token_ids), None, len(token_ids))

    def _push_matching(
        self, detokenizer: IncrementalDetokenizer, matcher: StopMatcher, token_ids: Sequence[int], finished: bool
    ) -> TextDelta:
        """Token by token, to know which one completes a stop string."""
        if matcher.matched is not None:
            return TextDelta("", None, 0)
        shown: list[str] = []
        for count, token_id in enumerate(self._visible(token_ids) if finished else token_ids, start=1):
            self._num_tokens += 1
            text = detokenizer.push((token_id,))
            if text:
                shown.append(matcher.push(text, self._armed))
                if matcher.matched is not None:
                    return TextDelta("".join(shown), matcher.matched, count)
        if finished:
            shown += [matcher.push(detokenizer.finish(), self._armed), matcher.finish()]
        return TextDelta("".join(shown), matcher.matched, len(token_ids))

    @property
    def _armed(self) -> bool:
        return self._num_tokens > self._min_tokens

    def _visible(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The last tokens of a sequence without the one that ended it."""
        return token_ids[:-1] if token_ids and token_ids[-1] in self._hidden_ends else token_ids


def _hidden_ends(tokenizer: Tokenizer, params: SamplingParams) -> frozenset[int]:
    if params.include_stop_str_in_output:
        return frozenset()
    eos = () if params.ignore_eos else tokenizer.eos_token_ids
    return frozenset(params.stop_token_ids).union(eos)
