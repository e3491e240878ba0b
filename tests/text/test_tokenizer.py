"""Tokenizers: the default model against transformers, Hugging Face directories, errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ModelSource
from engine.errors import ModelError, RequestError
from engine.text.tokenizer import load_tokenizer
from tests.text import toys


def directory(path: Path) -> ModelSource:
    return ModelSource(kind="huggingface", path=str(path), files=())


@pytest.mark.parametrize("text", toys.SAMPLES)
def test_default_model_samples_equal_transformers(text: str) -> None:
    ours, reference = toys.default_tokenizer(), toys.reference_tokenizer()
    ids = reference.encode(text)
    assert ours.encode(text) == ids
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(toys.TEXTS)
def test_default_model_encodes_as_transformers(text: str) -> None:
    assert toys.default_tokenizer().encode(text) == toys.reference_tokenizer().encode(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 49160), max_size=30), st.booleans())
def test_default_model_decodes_as_transformers(ids: list[int], skip: bool) -> None:
    """Random ids cut characters to pieces; those past 49151 are no tokens."""
    assert toys.default_tokenizer().decode(ids, skip) == toys.reference_tokenizer().backend_tokenizer.decode(ids, skip)


def test_default_model_facts() -> None:
    tokenizer = toys.default_tokenizer()
    assert tokenizer.vocab_size == 49152
    assert tokenizer.special_token_ids == frozenset(range(17))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.encode("hi") == tokenizer.encode("hi", add_special_tokens=False)


def test_digits_stand_alone_even_behind_white_space() -> None:
    """As SmolLM2 was trained; transformers' own GGUF tokenizer cuts the line breaks in two here."""
    tokenizer = toys.default_tokenizer()
    assert [tokenizer.token_text(i) for i in tokenizer.encode("\n\n12")] == ["\n\n", "1", "2"]


def test_token_text_shows_special_tokens_and_parts_of_characters() -> None:
    tokenizer = toys.byte_level()
    special, part = tokenizer.encode(toys.EOT)[0], tokenizer.encode("你")[0]
    assert tokenizer.token_text(special) == toys.EOT
    assert tokenizer.token_text(part) == "\ufffd"
    assert tokenizer.token_bytes(part) == "你".encode()[:1]
    assert tokenizer.token_text(10**6) == ""
    assert toys.sentencepiece().token_text(toys.token_id(toys.sentencepiece(), "▁he")) == " he"
    assert toys.word_piece().token_text(1) == "un"


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        toys.byte_level().encode("a\ud800b")


@pytest.mark.parametrize("token_id", [-1, 1 << 32])
def test_ids_no_tokenizer_can_have_are_refused(token_id: int) -> None:
    for tokenizer in (toys.byte_level(), toys.word_piece()):
        with pytest.raises(RequestError, match="Token ids run from"):
            tokenizer.decode([0, token_id])


def test_huggingface_directory(tmp_path: Path) -> None:
    core = toys.byte_level_core()
    core.enable_truncation(2)
    core.enable_padding(length=9)
    core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": toys.SYS, "eos_token": toys.SYS}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": toys.EOT}, "bos_token": None}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, core.token_to_id(toys.EOT)]}))
    tokenizer = load_tokenizer(directory(tmp_path))
    assert tokenizer.decode(tokenizer.encode("hello é hello")) == "hello é hello"
    assert tokenizer.bos_token_id == core.token_to_id(toys.SYS)
    assert tokenizer.eos_token_ids == (core.token_to_id(toys.EOT), 7)
    assert tokenizer.special_token_ids == {core.token_to_id(toys.EOT), core.token_to_id(toys.SYS)}


@pytest.mark.parametrize(
    ("content", "words"), [(None, "has no tokenizer.json"), ("{}", "malformed"), ("[" * 9999, "malformed")]
)
def test_huggingface_directory_without_a_usable_tokenizer(tmp_path: Path, content: str | None, words: str) -> None:
    (tmp_path / "tokenizer.py").write_text("raise SystemExit")
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=words):
        load_tokenizer(directory(tmp_path))


def test_text_package_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, engine.text.chat_encoding, engine.text.output_text\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
