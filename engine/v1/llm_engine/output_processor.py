"""``OutputProcessor``: the core's tokens become the clients' ``RequestOutput`` deltas. Torch-free.

Owns, in the API process, the open requests and their text: detokenizing, stop strings, the form
of log probabilities. The core knows tokens only; when a stop string ends a request here, the core
has to be told, which is the client's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from engine.api import CompletionOutput, GenerateRequest, Logprob, PositionLogprobs, RequestOutput
from engine.api.mailbox import Mailbox
from engine.api.outputs import FinishReason
from engine.errors import EngineDeadError, EngineError
from engine.text.output_text import OutputText
from engine.text.tokenizer import Tokenizer
from engine.v1.core.request import FinishCause, Finished
from engine.v1.llm_engine.messages import StepOutputs, TokenLogprobs

log = logging.getLogger(__name__)

_REASONS: Mapping[FinishCause, FinishReason] = {
    FinishCause.STOP: "stop",
    FinishCause.LENGTH: "length",
    FinishCause.ABORT: "abort",
    FinishCause.ERROR: "error",
}


class RequestState:
    """What the frontend remembers of one request, from its start to its terminal event."""

    __slots__ = ("mailbox", "num_logprobs", "request", "text")

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.text = OutputText(tokenizer, request.prompt_token_ids, request.params)
        self.num_logprobs = request.params.logprobs
        self.mailbox = Mailbox()


class OutputProcessor:
    """Open requests by handle. A handle that is not open (any more) is ignored: its reader has left."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._open: dict[int, RequestState] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, handle: int, request: GenerateRequest) -> Mailbox:
        """Starts to listen for a request's tokens; its deltas appear in the mailbox."""
        state = self._open[handle] = RequestState(request, self._tokenizer)
        return state.mailbox

    def close(self, handle: int) -> bool:
        """Stops to listen. ``False`` if the request had its terminal event already."""
        return self._open.pop(handle, None) is not None

    def fail(self, handle: int, error: EngineError) -> None:
        """Ends one request with an error."""
        state = self._open.pop(handle, None)
        if state is not None:
            state.mailbox.fail(error)

    def fail_all(self, message: str) -> None:
        """Ends every open request, each with an exception of its own: the engine is gone."""
        for handle in list(self._open):
            self.fail(handle, EngineDeadError(message))

    def process(self, outputs: StepOutputs) -> list[int]:
        """Delivers what a step gave. This is the only loop over outputs.

        Returns:
            Handles that ended here and not in the core (a stop string), which the core must abort.
        """
        finished = {end.handle: end for end in outputs.finished}
        logprobs = {row.handle: row for row in outputs.logprobs}
        to_abort = []
        for handle, token_id in zip(outputs.handles, outputs.token_ids, strict=True):
            state = self._open.get(handle)
            if state is None:
                continue
            end = finished.pop(handle, None)
            if self._deliver(state, [token_id], logprobs.get(handle), end):
                del self._open[handle]
                if end is None:
                    to_abort.append(handle)
        self._end_without_token(finished.values())
        return to_abort

    def _end_without_token(self, finished: Iterable[Finished]) -> None:
        """Aborts and errors come without a last token."""
        for end in finished:
            state = self._open.pop(end.handle, None)
            if state is not None:
                self._deliver(state, [], None, end)

    def _deliver(
        self, state: RequestState, token_ids: list[int], logprobs: TokenLogprobs | None, end: Finished | None
    ) -> bool:
        """Puts one delta into the mailbox and says whether it was the last."""
        try:
            output = self._completion(state, token_ids, logprobs, end)
        except Exception:
            log.exception("The output of a request could not be processed.")
            output = CompletionOutput(0, "", token_ids, finish_reason="error")
        request, is_last = state.request, output.finish_reason is not None
        state.mailbox.put(
            RequestOutput(request.request_id, request.prompt_token_ids, [output], is_last, prompt=request.prompt)
        )
        return is_last

    def _completion(
        self, state: RequestState, token_ids: list[int], logprobs: TokenLogprobs | None, end: Finished | None
    ) -> CompletionOutput:
        delta = state.text.push(token_ids, finished=end is not None)
        output = CompletionOutput(0, delta.text, token_ids)
        if logprobs is not None and state.num_logprobs is not None:
            output.logprobs = [self._position(logprobs, state.num_logprobs)]
        if delta.stop is not None:
            output.finish_reason, output.stop_reason = "stop", delta.stop
        elif end is not None:
            output.finish_reason, output.stop_reason = _REASONS[end.cause], end.stop_token_id
        return output

    def _position(self, row: TokenLogprobs, num_logprobs: int) -> PositionLogprobs:
        """The sampled token first, then the ``num_logprobs`` most likely; a token in both keeps its first place."""
        position = {row.token_ids[0]: Logprob(row.logprobs[0], row.rank, self._token_text(row.token_ids[0]))}
        best: Iterable[tuple[int, float]] = zip(row.token_ids[1:], row.logprobs[1:], strict=True)
        for rank, (token_id, logprob) in enumerate(best, start=1):
            if rank <= num_logprobs and token_id not in position:
                position[token_id] = Logprob(logprob, rank, self._token_text(token_id))
        return position

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id) if self._tokenizer is not None else ""
