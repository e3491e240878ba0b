"""Tokenizers from GGUF metadata: pre-tokenizers by name, SentencePiece scores, broken files."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.text.gguf_tokenizer import PRE_TOKENIZERS, build_gguf_tokenizer
from engine.text.tokenizer import Tokenizer
from tests.text import toys


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<bos>", "<eos>", "<tool>", *toys.ALPHABET, "ab", "abc"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def cuts(pre: str, text: str) -> list[str]:
    """Where a pre-tokenizer cuts a text."""
    core = build_gguf_tokenizer(byte_level_metadata(pre=pre)).core
    assert core.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in core.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "don't 1234\n\nHI  x", ["don", "'t", " 1234", "\n", "\n", "HI", " ", " x"]),
        ("smollm", "a  12\n\n3", ["a", "  ", "1", "2", "\n\n", "3"]),
        ("llama-bpe", "DON'T 12345!\n\nx  y", ["DON", "'T", " ", "123", "45", "!\n\n", "x", " ", " y"]),
        ("qwen2", "DON'T 123!\n\nx  y", ["DON", "'T", " ", "1", "2", "3", "!\n\n", "x", " ", " y"]),
        ("tekken", "HelloWorld a/\n12", ["Hello", "World", " a", "/\n", "1", "2"]),
        ("default", "a=b 1234", ["a", "=", "b", " ", "123", "4"]),
    ],
)
def test_pre_tokenizers_cut_as_published(pre: str, text: str, expected: list[str]) -> None:
    assert cuts(pre, text) == expected


def test_added_tokens_and_bos_eos() -> None:
    built = build_gguf_tokenizer(byte_level_metadata(add_bos_token=True, add_eos_token=True, eot_token_id=2))
    tokenizer = Tokenizer(built.core, built.bos_token_id, built.eos_token_ids)
    middle = tokenizer.encode("x<tool>", add_special_tokens=False)
    assert tokenizer.encode("x<tool>") == [0, *middle, 1]
    assert middle[-1] == 2
    assert tokenizer.special_token_ids == {0, 1}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1, 2))


@pytest.mark.parametrize(
    ("pre", "adds"), [("gpt-2", False), ("smollm", False), ("qwen2", False), ("llama-bpe", True), ("tekken", True)]
)
def test_bos_where_the_file_does_not_say(pre: str, adds: bool) -> None:
    assert (build_gguf_tokenizer(byte_level_metadata(pre=pre)).core.encode("x").ids[0] == 0) is adds
    explicit = build_gguf_tokenizer(byte_level_metadata(pre=pre, add_bos_token=not adds)).core
    assert (explicit.encode("x").ids[0] == 0) is not adds


def test_whole_words_win_over_merges_where_the_model_says_so() -> None:
    """ "abc" is a token that no merge makes."""
    assert build_gguf_tokenizer(byte_level_metadata(pre="gpt-2")).core.encode("abc").tokens == ["ab", "c"]
    assert build_gguf_tokenizer(byte_level_metadata(pre="llama-bpe")).core.encode("abc").tokens == ["<bos>", "abc"]


def test_qwen_composes_characters() -> None:
    core = build_gguf_tokenizer(byte_level_metadata(pre="qwen2")).core
    assert core.encode("e\u0301").ids == core.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "supported are 'gpt2'"),
        ({"model": None}, "tokenizer model is None"),
        ({"pre": "brand-new"}, "supported are default, gpt-2, smollm"),
        ({"pre": 3}, "pre-tokenizer is 3"),
        ({"tokens": None}, "has no tokenizer"),
        ({"tokens": []}, "has no tokenizer"),
        ({"tokens": [1, 2]}, "has no tokenizer"),
        ({"tokens": ["a"] * 5, "token_type": [1] * 5}, "the same token twice"),
        ({"token_type": [1]}, "token_type does not fit"),
        ({"merges": None}, "no merges"),
        ({"merges": ["a z z"]}, "do not fit"),
        ({"merges": ["lonely"]}, "do not fit"),
        ({"merges": [5]}, "do not fit"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"add_bos_token": "yes"}, "must be true or false"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
        ({"model": "llama"}, "scores do not fit"),
    ],
)
def test_unusable_metadata_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build_gguf_tokenizer(byte_level_metadata(**changes))


def test_names_of_pre_tokenizers_cover_the_model_zoo() -> None:
    assert {"smollm", "llama-bpe", "qwen2", "tekken", "default"} <= set(PRE_TOKENIZERS)


def test_sentencepiece_prefix_fallback_and_control_tokens() -> None:
    tokenizer = toys.sentencepiece()
    assert tokenizer.core.encode("hello").tokens == ["<s>", "▁hello"]
    assert tokenizer.core.encode("a你", add_special_tokens=False).tokens == ["▁", "a", "<0xE4>", "<0xBD>", "<0xA0>"]
    assert tokenizer.core.encode("a</s>a<extra>", add_special_tokens=False).tokens == [
        "▁",
        "a",
        "</s>",
        "▁",
        "a",
        "<extra>",
    ]
    assert tokenizer.decode(tokenizer.encode("hello a 你")) == "hello a 你"
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_sentencepiece_without_space_prefix() -> None:
    core = build_gguf_tokenizer(toys.sentencepiece_metadata(add_space_prefix=False, add_bos_token=False)).core
    assert core.encode("hello").tokens == ["he", "llo"]
    assert Tokenizer(core).decode(core.encode(" a").ids) == " a"


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Tokenizer]:
    """A real SentencePiece model, and ours from the metadata that llama.cpp's converter would write."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*toys.SAMPLES * 3, *toys.__doc__.split(), Path(__file__).read_text("utf-8")]),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(theirs.get_piece_size())
    kinds = [6 if theirs.is_byte(i) else 2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 1 for i in ids]
    built = build_gguf_tokenizer(
        toys.sentencepiece_metadata(
            tokens=[theirs.id_to_piece(i) for i in ids], token_type=kinds, scores=[theirs.get_score(i) for i in ids]
        )
    )
    return theirs, Tokenizer(built.core, built.bos_token_id, built.eos_token_ids)


def test_equals_sentencepiece_on_samples(trained: tuple[Any, Tokenizer]) -> None:
    theirs, ours = trained
    for text in toys.SAMPLES:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)
        assert ours.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))


@settings(max_examples=200, deadline=None)
@given(text=toys.TEXTS)
def test_equals_sentencepiece(trained: tuple[Any, Tokenizer], text: str) -> None:
    theirs, ours = trained
    if "\x00" not in text:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(3, 699), max_size=20))
def test_decodes_as_sentencepiece(trained: tuple[Any, Tokenizer], ids: list[int]) -> None:
    """Random byte tokens are mostly invalid UTF-8: one U+FFFD for each bad byte.

    Of a leading space in the form of a byte token, ours drops one as ``tokenizers`` does.
    """
    theirs, ours = trained
    ids = [i for i in ids if theirs.id_to_piece(i) != "<0x20>"]
    assert ours.decode(ids) == theirs.decode(ids)
