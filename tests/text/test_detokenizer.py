"""Incremental detokenizing against decoding everything at once."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import TableDetokenizer, WindowDetokenizer, make_detokenizer
from engine.text.tokenizer import Tokenizer
from tests.text import toys

TABLES = [toys.byte_level, toys.sentencepiece, toys.default_tokenizer]
WINDOWS = [toys.word_piece, toys.metaspace]
#: Bytes, words and (in the toys, from 255 on) special and other added tokens, and ids without a token.
IDS = st.lists(st.one_of(st.integers(0, 290), st.integers(255, 266)), max_size=40)


def stream(
    tokenizer: Tokenizer, prompt: Sequence[int], chunks: Sequence[Sequence[int]], skip: bool = True
) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, prompt, skip)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


def singly(ids: Sequence[int]) -> list[list[int]]:
    return [[i] for i in ids]


@pytest.mark.parametrize("make", TABLES)
@settings(max_examples=200, deadline=None)
@given(ids=IDS, skip=st.booleans(), data=st.data())
def test_deltas_add_up_to_decode(
    make: Callable[[], Tokenizer], ids: list[int], skip: bool, data: st.DataObject
) -> None:
    """Any ids, most of them parts of characters, cut into prompt and chunks anywhere."""
    tokenizer = make()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    prompt_end = cuts[0] if cuts else 0
    chunks = [ids[a:b] for a, b in zip([prompt_end, *cuts[1:]], [*cuts[1:], len(ids)], strict=True)]
    deltas = stream(tokenizer, ids[:prompt_end], chunks, skip)
    whole, prompt = tokenizer.decode(ids, skip), tokenizer.decode(ids[:prompt_end], skip).rstrip("\ufffd")
    assert whole.endswith("".join(deltas))
    if not prompt_end:
        assert "".join(deltas) == whole
    assert whole[: len(whole) - len("".join(deltas))].startswith(prompt)


@pytest.mark.parametrize("make", TABLES)
@settings(max_examples=100, deadline=None)
@given(prompt=toys.TEXTS, output=toys.TEXTS)
def test_output_is_what_it_adds_to_the_prompt(make: Callable[[], Tokenizer], prompt: str, output: str) -> None:
    tokenizer = make()
    prompt_ids, output_ids = tokenizer.encode(prompt), tokenizer.encode(output, add_special_tokens=False)
    whole, known = tokenizer.decode(prompt_ids + output_ids), tokenizer.decode(prompt_ids)
    assert "".join(stream(tokenizer, prompt_ids, singly(output_ids))) == whole[len(known) :]


@pytest.mark.parametrize("make", TABLES)
@settings(max_examples=100, deadline=None)
@given(text=toys.TEXTS)
def test_valid_text_never_shows_a_replacement_character(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text)
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in delta for delta in stream(tokenizer, [], singly(ids)))


def test_characters_come_as_soon_as_they_are_whole() -> None:
    tokenizer = toys.byte_level()
    assert stream(tokenizer, [], singly(tokenizer.encode("a你"))) == ["a", "", "", "你", ""]


def test_unfinished_character_is_replaced_at_the_end() -> None:
    tokenizer = toys.byte_level()
    assert stream(tokenizer, [], [tokenizer.encode("a你")[:-1]]) == ["a", "\ufffd"]
    sentencepiece = toys.sentencepiece()
    cut = sentencepiece.encode("a你", add_special_tokens=False)[:-1]
    assert stream(sentencepiece, [], [cut]) == ["a", "\ufffd\ufffd"]


def test_output_may_finish_a_character_of_the_prompt() -> None:
    tokenizer = toys.byte_level()
    ids = tokenizer.encode("hello 你")
    assert stream(tokenizer, ids[:-1], [ids[-1:]]) == ["你", ""]


def test_sentencepiece_drops_the_first_space_of_a_text_only() -> None:
    tokenizer = toys.sentencepiece()
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert stream(tokenizer, [1], singly(ids * 2)) == ["hello", " hello", ""]
    assert stream(tokenizer, ids, singly(ids)) == [" hello", ""]


def test_byte_fallback_equals_tokenizers_on_whole_characters() -> None:
    tokenizer = toys.sentencepiece()
    ids = tokenizer.encode("a 你好 hello 👍🏽 é", add_special_tokens=False)
    assert tokenizer.decode(ids) == tokenizer.core.decode(ids)


@pytest.mark.parametrize("make", [toys.byte_level, toys.default_tokenizer])
@settings(max_examples=200, deadline=None)
@given(ids=IDS, skip=st.booleans())
def test_byte_level_table_equals_tokenizers(make: Callable[[], Tokenizer], ids: list[int], skip: bool) -> None:
    assert make().decode(ids, skip) == make().core.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("make", WINDOWS)
@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 9), max_size=20), cut=st.integers(0, 20), skip=st.booleans())
def test_window_adds_up_to_decode(make: Callable[[], Tokenizer], ids: list[int], cut: int, skip: bool) -> None:
    tokenizer = make()
    whole, prompt = tokenizer.decode(ids, skip), tokenizer.decode(ids[:cut], skip)
    assert "".join(stream(tokenizer, ids[:cut], singly(ids[cut:]), skip)) == whole[len(prompt) :]


@settings(max_examples=100, deadline=None)
@given(text=toys.TEXTS)
def test_window_equals_table(text: str) -> None:
    """The general way and the fast way agree wherever both apply."""
    tokenizer = toys.byte_level()
    ids = tokenizer.encode(text)
    window = WindowDetokenizer(tokenizer, ids[:3], True)
    fast = make_detokenizer(tokenizer, ids[:3], True)
    assert isinstance(fast, TableDetokenizer)
    if "\ufffd" not in tokenizer.decode(ids[:3]):
        assert window.push(ids[3:]) + window.finish() == fast.push(ids[3:]) + fast.finish()


def test_window_looks_past_special_tokens_at_the_end_of_the_prompt() -> None:
    """A prompt that ends in hidden tokens only must not make the next word look like the first."""
    tokenizer = toys.word_piece()
    hidden = toys.token_id(tokenizer, "[SEP]")
    assert stream(tokenizer, [4] + [hidden] * 20, [[5]]) == [" are", ""]


def test_window_lets_go_of_text_that_will_never_be_whole() -> None:
    tokenizer = toys.byte_level()
    half = tokenizer.encode("你")[0]
    window = WindowDetokenizer(tokenizer, [], True)
    assert len(window.push([half] * 100)) > 80
    assert len(window._window) < 40
