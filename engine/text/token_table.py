"""``TokenTable``: token id -> bytes, for tokenizers whose text is a plain concatenation of bytes.

Owns the two decoders that are: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and SentencePiece BPE
with byte fallback (Llama 2, Mistral). With a table, decoding costs one dict look-up a token and is
incremental by nature. Tokenizers with any other decoder have no table (``detokenizer.py`` then
asks the ``tokenizers`` package).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers

#: SentencePiece's stand-in for a space.
META_SPACE = "\u2581"
#: SentencePiece gives one U+FFFD for each bad byte, byte-level BPE one for each maximal subpart.
_REPLACE_EACH_BYTE = "engine.text.replace_each_byte"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_REPLACE_EACH_BYTE, _replace_each_byte)


class _Bytes(dict[int, bytes]):
    """id -> the bytes it adds to the text; filled on demand, so that start-up pays for no table."""

    def __init__(self, spell: Callable[[int], bytes | None]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        data = self._spell(token_id)
        if data is None:  # Not stored: ids outside the vocabulary must not make the table grow.
            return b""
        self[token_id] = data
        return data


class _Texts(dict[int, "str | None"]):
    """id -> its text where its bytes are whole characters, else ``None``; filled on demand."""

    def __init__(self, pieces: _Bytes) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        data = self._pieces[token_id]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            self[token_id] = None
            return None
        if token_id in self._pieces:
            self[token_id] = text
        return text


class TokenTable:
    """Bytes and texts of all tokens; ids outside the vocabulary have neither.

    Attributes:
        pieces: id -> bytes.
        texts: id -> text, ``None`` where the bytes are no whole characters.
        errors: how bytes that are not UTF-8 become U+FFFD (a codec error handler's name).
        strips_space: one space at the very beginning of a text is dropped (SentencePiece put it there).
    """

    def __init__(self, spell: Callable[[int], bytes | None], errors: str, strips_space: bool) -> None:
        self.pieces = _Bytes(spell)
        self.texts = _Texts(self.pieces)
        self.errors = errors
        self.strips_space = strips_space

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of a whole sequence."""
        pieces = self.pieces
        text = b"".join([pieces[token_id] for token_id in token_ids]).decode("utf-8", self.errors)
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def without(self, hidden: frozenset[int]) -> TokenTable:
        """The same table with ``hidden`` ids adding nothing to the text."""
        pieces = self.pieces
        return TokenTable(
            lambda token_id: b"" if token_id in hidden else pieces[token_id] or None, self.errors, self.strips_space
        )


def make_table(core: tokenizers.Tokenizer) -> TokenTable | None:
    """The table of a tokenizer; ``None`` if its decoder is not a concatenation of bytes."""
    if core.decoder is None:
        return None
    decoder: dict[str, Any] = json.loads(core.decoder.__getstate__())
    if decoder["type"] == "ByteLevel":
        byte_of = _byte_level_alphabet()
        return TokenTable(lambda token_id: _spell_byte_level(core.id_to_token(token_id), byte_of), "replace", False)
    if decoder["type"] == "Sequence" and (strips := _sentencepiece_strip(decoder["decoders"])) is not None:
        return TokenTable(lambda token_id: _spell_sentencepiece(core.id_to_token(token_id)), _REPLACE_EACH_BYTE, strips)
    return None


def _spell_byte_level(token: str | None, byte_of: dict[str, int]) -> bytes | None:
    """Each character stands for a byte; a token with any other character stands for itself."""
    if token is None:
        return None
    try:
        return bytes([byte_of[char] for char in token])
    except KeyError:
        return token.encode("utf-8")


def _spell_sentencepiece(token: str | None) -> bytes | None:
    if token is None:
        return None
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(META_SPACE, " ").encode("utf-8")


def _sentencepiece_strip(steps: list[dict[str, Any]]) -> bool | None:
    """Whether the leading space is dropped; ``None`` if these are not SentencePiece's decoding steps."""
    replace = {"type": "Replace", "pattern": {"String": META_SPACE}, "content": " "}
    if steps[:3] != [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]:
        return None
    if steps[3:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
        return True
    return False if not steps[3:] else None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte: itself where it is visible Latin-1, else from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
