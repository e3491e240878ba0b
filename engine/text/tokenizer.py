"""``Tokenizer``: text to token ids and back, around the ``tokenizers`` package. Torch-free.

Owns loading from a Hugging Face directory (``tokenizer.json``; never Python code from a model) and
the facts about special tokens. ``gguf_tokenizer.py`` builds one from GGUF metadata, ``detokenizer.py``
decodes step by step, ``chat_encoding.py`` encodes chats.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tokenizers

from engine.config import ModelSource
from engine.errors import ModelError, RequestError
from engine.loader.fields import read_json_object
from engine.loader.gguf_file import GgufFile
from engine.loader.source import model_file
from engine.text.gguf_tokenizer import build_gguf_tokenizer
from engine.text.token_table import TokenTable, make_table

_MAX_TOKENIZER_BYTES = 256 << 20
_MAX_CONFIG_BYTES = 16 << 20
_MAX_ID = (1 << 32) - 1


class Tokenizer:
    """A tokenizer and its special tokens. Safe to use from several threads; calls release the GIL.

    Attributes:
        core: the ``tokenizers`` object.
        bos_token_id: the token that begins a text, if the model has one.
        eos_token_ids: the tokens that end one.
        special_token_ids: control tokens; ``skip_special_tokens`` hides them.
        vocab_size: number of tokens, added ones included. A model may have more rows than that.
    """

    def __init__(
        self, core: tokenizers.Tokenizer, bos_token_id: int | None = None, eos_token_ids: Sequence[int] = ()
    ) -> None:
        self.core = core
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        added = core.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = core.get_vocab_size(with_added_tokens=True)
        self._table = make_table(core)
        self._skipping_table = self._table.without(self.special_token_ids) if self._table else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens spelled out in it become those tokens, as everywhere in the field.

        Raises:
            RequestError: the text has half a surrogate pair, which no encoding of text allows.
        """
        try:
            return self.core.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise RequestError("The text has a lone surrogate code point; send valid Unicode.") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD, ids without a token nothing.

        Equals the ``tokenizers`` package, save that in SentencePiece models an invalid byte token spoils only
        itself, as in SentencePiece, and not the whole run of byte tokens around it.

        Raises:
            RequestError: an id is negative or has more than 32 bits.
        """
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) <= _MAX_ID):
            raise RequestError(f"Token ids run from 0 to {_MAX_ID}.", param="tokens")
        table = self.table(skip_special_tokens)
        if table is None:
            return self.core.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return table.decode(token_ids)

    def token_text(self, token_id: int) -> str:
        """The text one token adds in the middle of a sequence; U+FFFD stands for parts of characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds in the middle of a sequence; special tokens are spelled out."""
        if self._table is None:
            return self.core.decode([token_id], skip_special_tokens=False).encode("utf-8")
        return self._table.pieces[token_id]

    def table(self, skip_special_tokens: bool) -> TokenTable | None:
        """Bytes of all tokens; ``None`` if this tokenizer's text is not a concatenation of its tokens' bytes."""
        return self._skipping_table if skip_special_tokens else self._table


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a model.

    Raises:
        ModelError: there is none, it is malformed, or of a kind that is not supported.
    """
    if source.kind == "gguf":
        built = build_gguf_tokenizer(GgufFile(source.path).metadata)
        return Tokenizer(built.core, built.bos_token_id, built.eos_token_ids)
    return _load_huggingface(source)


def _load_huggingface(source: ModelSource) -> Tokenizer:
    path = model_file(source, "tokenizer.json")
    if path is None:
        raise ModelError(
            "The model directory has no tokenizer.json. Add it (transformers' save_pretrained writes one), "
            "or start with --skip-tokenizer-init to send and receive token ids."
        )
    try:
        if os.path.getsize(path) > _MAX_TOKENIZER_BYTES:
            raise ModelError(f"tokenizer.json is larger than {_MAX_TOKENIZER_BYTES >> 20} MiB; it is not a tokenizer.")
        core = tokenizers.Tokenizer.from_file(path)
    except ModelError:
        raise
    except Exception:  # The package raises bare Exception, whatever is wrong.
        raise ModelError(
            "tokenizer.json is malformed, or newer than the installed tokenizers package; download it again."
        ) from None
    core.no_padding()
    core.no_truncation()
    special = read_special_tokens(source)
    bos, eos = special.get("bos_token"), special.get("eos_token")
    bos_id = core.token_to_id(bos) if bos is not None else None
    eos_ids = [core.token_to_id(eos)] if eos is not None else []
    eos_ids += _generation_eos_ids(source)
    return Tokenizer(core, bos_id, tuple(dict.fromkeys(i for i in eos_ids if i is not None)))


def read_special_tokens(source: ModelSource) -> dict[str, str]:
    """``bos_token``, ``eos_token`` ... -> text, as ``tokenizer_config.json`` or ``special_tokens_map.json`` has it."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_side_file(source, name).items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
    return found


def read_side_file(source: ModelSource, name: str) -> dict[str, Any]:
    """The object in a small JSON file of a model directory; empty if there is no such file.

    Raises:
        ModelError: there is one and it cannot be read.
    """
    path = model_file(source, name)
    return {} if path is None else read_json_object(path, _MAX_CONFIG_BYTES)


def _generation_eos_ids(source: ModelSource) -> list[int]:
    """Chat models list all their turn-ending tokens here (Llama 3: three of them)."""
    value = read_side_file(source, "generation_config.json").get("eos_token_id")
    return [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]
