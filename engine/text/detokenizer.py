"""Incremental detokenizing: the text of a sequence as its tokens arrive.

Owns the rule that what was emitted is never taken back: the deltas add up to
``Tokenizer.decode(prompt + output)`` without the prompt's part, and no delta ends inside a
character. Stop strings are ``stop.py``'s business.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

from engine.text.token_table import TokenTable
from engine.text.tokenizer import Tokenizer

_LONGEST_CHARACTER_BYTES = 4
#: Tokens of context behind which a decoder's choice (of a space, of a merge) cannot reach.
_CONTEXT_TOKENS = 6
#: A text that still ends in U+FFFD after this many tokens is not an unfinished character.
_MAX_HELD_TOKENS = 16


class IncrementalDetokenizer(Protocol):
    """The text of one sequence; owned by whoever owns the sequence."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        ...

    def finish(self) -> str:
        """The text of what was held back: nothing, or U+FFFD for an unfinished character."""
        ...


def make_detokenizer(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
) -> IncrementalDetokenizer:
    """The fastest detokenizer that is exact for the tokenizer."""
    table = tokenizer.table(skip_special_tokens)
    if table is not None:
        return TableDetokenizer(table, prompt_token_ids)
    return WindowDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens)


class TableDetokenizer:
    """For tokenizers whose text is a concatenation of bytes: a look-up and, now and then, a UTF-8 decode.

    The bytes of an unfinished character wait in ``_held`` (at most three), those that end the
    prompt included.
    """

    def __init__(self, table: TokenTable, prompt_token_ids: Sequence[int]) -> None:
        self._texts = table.texts
        self._pieces = table.pieces
        self._errors = table.errors
        tail = _last_bytes(table, prompt_token_ids)
        self._held = tail[utf_8_decode(tail, table.errors, False)[1] :]
        self._at_start = table.strips_space and not tail

    def push(self, token_ids: Sequence[int]) -> str:
        """See ``IncrementalDetokenizer``. One whole-character token, the usual case, touches no bytes."""
        if len(token_ids) == 1 and not self._held and not self._at_start:
            text = self._texts[token_ids[0]]
            if text is not None:
                return text
        pieces = self._pieces
        return self._decode(b"".join([pieces[token_id] for token_id in token_ids]), final=False)

    def finish(self) -> str:
        """See ``IncrementalDetokenizer``."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, *, final: bool) -> str:
        data = self._held + data
        text, used = utf_8_decode(data, self._errors, final)
        self._held = data[used:]
        if self._at_start and data:
            self._at_start = False
            return text[1:] if text.startswith(" ") else text
        return text


def _last_bytes(table: TokenTable, token_ids: Sequence[int]) -> bytes:
    """Enough bytes of the end of a text to know in which state it leaves a UTF-8 decoder."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = table.pieces[token_id] + tail
        if len(tail) >= _LONGEST_CHARACTER_BYTES:
            break
    return tail


class WindowDetokenizer:
    """For any other tokenizer: decodes a window of tokens with and without the newest ones.

    The window starts at the tokens of the previous delta, so whatever a decoder does at the start
    of a text happens to both sides and cancels out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = self._context(prompt_token_ids)
        #: How many tokens of the window have been emitted, and their text there.
        self._num_emitted = len(self._window)
        self._emitted = self._decode(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        """See ``IncrementalDetokenizer``."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """See ``IncrementalDetokenizer``."""
        return self._decode(self._window)[len(self._emitted) :]

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        overdue = len(self._window) - self._num_emitted >= _MAX_HELD_TOKENS
        if len(text) <= len(self._emitted) or (text.endswith("\ufffd") and not overdue):
            return ""
        delta = text[len(self._emitted) :]
        del self._window[: self._num_emitted]
        self._num_emitted = len(self._window)
        self._emitted = self._decode(self._window)
        return delta

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)

    def _context(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The prompt's last tokens, as many as it takes to have a visible one among them."""
        size = _CONTEXT_TOKENS
        while size < len(prompt_token_ids) and not self._decode(list(prompt_token_ids[-size:])):
            size *= 2
        return list(prompt_token_ids[-size:])
