"""Tokenizers small enough to see through, the default model's, and transformers' as the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine.config import ModelSource
from engine.config.engine_args import DEFAULT_MODEL
from engine.loader.source import find_model
from engine.text.chat_template import ChatTemplate, load_chat_template
from engine.text.gguf_tokenizer import build_gguf_tokenizer
from engine.text.tokenizer import Tokenizer, load_tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOT, SYS, TOOL = "<|eot|>", "<|sys|>", "<tool é call>"


def byte_level_core(*, merges: list[tuple[str, str]] | None = None) -> tokenizers.Tokenizer:
    """256 single bytes, a few merges, two special tokens and one that is added but not special."""
    merges = (
        merges if merges is not None else [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "hell"), ("Ã", "©"), ("ð", "Ł")]
    )
    vocab = {char: i for i, char in enumerate(ALPHABET)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    core = tokenizers.Tokenizer(models.BPE(vocab, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([EOT, SYS])
    core.add_tokens([AddedToken(TOOL, normalized=False, special=False)])
    return core


@cache
def byte_level() -> Tokenizer:
    core = byte_level_core()
    return Tokenizer(core, core.token_to_id(SYS), [i for i in [core.token_to_id(EOT)] if i is not None])


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary as GGUF has it: control tokens, 256 bytes, then pieces by score."""
    pieces = ["▁", "a", "b", "e", "l", "o", "h", "▁h", "he", "ll", "▁he", "llo", "▁hello", "ab", "aba", "é"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces, "<extra>"]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@cache
def sentencepiece() -> Tokenizer:
    built = build_gguf_tokenizer(sentencepiece_metadata())
    return Tokenizer(built.core, built.bos_token_id, built.eos_token_ids)


@cache
def word_piece() -> Tokenizer:
    """A decoder that is no concatenation: ``##`` glues, everything else is spaced."""
    words = ["[UNK]", "un", "##aff", "##able", "we", "are", "the", "##s", "[SEP]"]
    core = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece(cleanup=False)
    core.add_special_tokens(["[SEP]"])
    return Tokenizer(core)


@cache
def metaspace() -> Tokenizer:
    """A decoder that drops the first space of whatever it is given."""
    vocab = {piece: i for i, piece in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b", "ab", "▁ab"])}
    core = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b")], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    core.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(core)


@cache
def default_source() -> ModelSource:
    return find_model(DEFAULT_MODEL, "auto", "")


@cache
def default_tokenizer() -> Tokenizer:
    return load_tokenizer(default_source())


@cache
def default_template() -> ChatTemplate:
    template = load_chat_template(default_source())
    assert template is not None
    return template


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token by its name in the vocabulary."""
    found = tokenizer.core.token_to_id(token)
    assert found is not None
    return found


@cache
def reference_tokenizer() -> Any:
    """transformers' tokenizer of the default model, from the same GGUF file.

    Its GGUF converter knows one pre-tokenizer for all "gpt2" models and drops what "smollm" adds: every
    digit stands alone (``Digits`` before ``ByteLevel`` in SmolLM2's tokenizer.json). Put back here.
    """
    from transformers import AutoTokenizer

    path = Path(default_source().path)
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return reference


SAMPLES = [
    "",
    " ",
    "Hello, world!",
    "  leading, trailing  ",
    "a\n\n1. one\n\n  2. two\n\t3",
    "12345 3.14159 1,000,000 ² ½ Ⅷ ١٢٣ ७",
    "I'm you've WE'LL don't 'tis",
    "def f(x):\n    return {'a': x ** 2}  # comment\n\n\n",
    "\r\n\r\n \t \u00a0 \u2003 \u3000 \u200b",
    "你好，世界！これは日本語のテキストです。한국어 텍스트",  # noqa: RUF001
    "Ünïcödé e\u0301 a\u0308\u0323 \u0301\u0302",
    "👨‍👩‍👧‍👦 🇫🇷 👍🏽 ❤️ 🤷🏾‍♀️",
    "مرحبا بالعالم שלום עולם नमस्ते ไทย",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>",
    "<|im_start |> <|im_end| > <|IM_END|>",
    "\x00\x01\x7f\x80\x9f\ufeff\ufffd\uffff\U0010ffff",
    "supercalifragilisticexpialidocious" * 5,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "((((((((((]]]]]]]]]]]]]]]]]]]]========--------________",
]

_CHARACTERS = st.characters(codec="utf-8")
_FRAGMENTS = st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "1",
        "23",
        "the",
        " a",
        "don't",
        "é",
        "e\u0301",
        "你",
        "👍🏽",
        "<|im_end|>",
        "<|",
        "|>",
        "_",
        "{",
        ".",
    ]
)
#: Any Unicode, and pieces whose neighbourhood matters to pre-tokenizers.
TEXTS = st.one_of(
    st.text(_CHARACTERS, max_size=60),
    st.lists(st.one_of(_FRAGMENTS, st.text(_CHARACTERS, max_size=3)), max_size=25).map("".join),
)
