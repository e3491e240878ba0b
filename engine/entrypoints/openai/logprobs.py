"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.api import Logprob, PositionLogprobs
from engine.entrypoints.openai.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

#: OpenAI's value for "too unlikely to matter"; minus infinity has no JSON.
LOWEST = -9999.0


class LogprobFormatter:
    """Formats one request's log probabilities; ``num_top`` alternatives a position."""

    def __init__(self, tokenizer: Tokenizer | None, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._text_offset = 0

    def chat(self, positions: list[PositionLogprobs] | None) -> ChatLogprobs:
        """One element a token, each with its ``num_top`` most likely alternatives, best first."""
        return ChatLogprobs([self._chat_position(position) for position in positions or ()])

    def _chat_position(self, position: PositionLogprobs) -> TokenLogprob:
        tops = [
            TopLogprob(self._text(i, entry), max(entry.logprob, LOWEST), self._bytes(i))
            for i, entry in self._ranked(position)[: self._num_top]
        ]
        sampled_id, sampled = next(iter(position.items()))
        return TokenLogprob(
            self._text(sampled_id, sampled), max(sampled.logprob, LOWEST), self._bytes(sampled_id), tops
        )

    def completion(self, positions: list[PositionLogprobs] | None) -> CompletionLogprobs:
        """Parallel lists; call it in stream order, for ``text_offset`` counts on."""
        result = CompletionLogprobs([], [], [], [])
        for position in positions or ():
            sampled_id, sampled = next(iter(position.items()))
            text = self._text(sampled_id, sampled)
            result.tokens.append(text)
            result.token_logprobs.append(max(sampled.logprob, LOWEST))
            result.top_logprobs.append(
                {self._text(i, entry): max(entry.logprob, LOWEST) for i, entry in self._ranked(position)}
            )
            result.text_offset.append(self._text_offset)
            self._text_offset += len(text)
        return result

    @staticmethod
    def _ranked(position: PositionLogprobs) -> list[tuple[int, Logprob]]:
        return sorted(position.items(), key=lambda item: -item[1].logprob)

    def _text(self, token_id: int, logprob: Logprob) -> str:
        if logprob.decoded_token:
            return logprob.decoded_token
        return f"token_id:{token_id}" if self._tokenizer is None else self._tokenizer.token_text(token_id)

    def _bytes(self, token_id: int) -> list[int] | None:
        """What the token adds to the text, exactly: it may be a part of a character."""
        return None if self._tokenizer is None else list(self._tokenizer.token_bytes(token_id))
