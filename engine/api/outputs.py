"""What an engine gives back for a request: the public output nouns.

Owns the shapes. ``EngineClient.generate`` yields *deltas* of these (only what is new since
the previous item); ``merge`` adds deltas up, for offline use and for slow readers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: OpenAI's words. ``abort`` never reaches a client that is still there.
FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """Log probability of one token at one position; ``rank`` 1 is the most likely token."""

    logprob: float
    rank: int
    decoded_token: str = ""


#: Token id -> Logprob at one position; the sampled token is the first key.
PositionLogprobs = dict[int, Logprob]


class CompletionOutput(msgspec.Struct, array_like=True):
    """One generated sequence, or the newest part of it."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    #: The stop string or stop token id that ended the sequence; ``None`` for EOS or length.
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, array_like=True):
    """All sequences of one request; the last item of a stream has ``finished`` set."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt: str | None = None


def merge(total: RequestOutput, delta: RequestOutput) -> None:
    """Adds ``delta`` to ``total`` in place. Both belong to one request; order is the stream's order."""
    by_index = {output.index: output for output in total.outputs}
    for new in delta.outputs:
        old = by_index.get(new.index)
        if old is None:
            total.outputs.append(new)
            continue
        old.text += new.text
        old.token_ids.extend(new.token_ids)
        if new.logprobs is not None:
            old.logprobs = (old.logprobs or []) + new.logprobs
        old.finish_reason = new.finish_reason
        old.stop_reason = new.stop_reason
    total.finished = delta.finished
    total.num_cached_tokens = max(total.num_cached_tokens, delta.num_cached_tokens)
