"""A sequence's text, token by token, against the same rules on the whole text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SamplingParams
from engine.text.output_text import OutputText, TextDelta
from engine.text.tokenizer import Tokenizer
from tests.text import toys


def run(
    tokenizer: Tokenizer | None, ids: list[int], params: SamplingParams, sizes: list[int]
) -> tuple[str, str | None, int]:
    """Pushes ``ids`` in pieces of ``sizes`` until a stop string or the end; text, stop, counted tokens."""
    output, text, count, start = OutputText(tokenizer, [], params), "", 0, 0
    for size in [*sizes, len(ids)]:
        piece = ids[start : start + size]
        start += size
        delta = output.push(piece, finished=start >= len(ids))
        text, count = text + delta.text, count + delta.num_tokens
        if delta.stop is not None or start >= len(ids):
            return text, delta.stop, count
    raise AssertionError("unreachable: the last piece is the rest")


def whole_characters(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of ``ids`` without an unfinished character at its end."""
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", "ignore") if ids else ""


def naive(tokenizer: Tokenizer, ids: list[int], params: SamplingParams) -> tuple[str, str | None, int]:
    """Looks at the text of every prefix of the tokens, for stop strings that end in its newest part."""
    before = ""
    for count in range(1, len(ids) + 1):
        text = whole_characters(tokenizer, ids[:count])
        for end in range(len(before) + 1, len(text) + 1):
            ending = [stop for stop in params.stop if text[:end].endswith(stop)]
            if ending and count > params.min_tokens:
                longest = max(ending, key=len)
                keep = end if params.include_stop_str_in_output else end - len(longest)
                return text[:keep], longest, count
        before = text
    return tokenizer.decode(ids), None, len(ids)


@settings(max_examples=500, deadline=None)
@given(
    text=st.text("helo é你", max_size=20),
    stops=st.lists(st.text("helo é你", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 6),
    include=st.booleans(),
    sizes=st.lists(st.integers(1, 4), max_size=30),
)
def test_equals_the_rules_on_the_whole_text(
    text: str, stops: list[str], min_tokens: int, include: bool, sizes: list[int]
) -> None:
    tokenizer = toys.byte_level()
    ids = tokenizer.encode(text)
    params = SamplingParams(stop=tuple(stops), min_tokens=min_tokens, include_stop_str_in_output=include)
    assert run(tokenizer, ids, params, sizes) == naive(tokenizer, ids, params)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 262), max_size=30), sizes=st.lists(st.integers(1, 5), max_size=30), skip=st.booleans()
)
def test_without_stop_strings_it_is_decode(ids: list[int], sizes: list[int], skip: bool) -> None:
    tokenizer = toys.byte_level()
    params = SamplingParams(skip_special_tokens=skip, ignore_eos=True)
    assert run(tokenizer, ids, params, sizes) == (tokenizer.decode(ids, skip), None, len(ids))


def test_stop_string_inside_a_piece_says_which_tokens_count() -> None:
    tokenizer = toys.byte_level()
    output = OutputText(tokenizer, [], SamplingParams(stop=("llo",)))
    ids = tokenizer.encode("hello")
    assert output.push([*ids, *ids], finished=False) == TextDelta("he", "llo", len(ids))
    assert output.push(ids, finished=True) == TextDelta("", None, 0)


def test_no_part_of_a_stop_string_is_shown() -> None:
    tokenizer = toys.byte_level()
    output = OutputText(tokenizer, [], SamplingParams(stop=("abc",)))
    texts = [output.push(tokenizer.encode(char), finished=False).text for char in "xabxabc"]
    assert texts == ["x", "", "", "abx", "", "", ""]


def test_finishing_shows_what_was_held_back() -> None:
    tokenizer = toys.byte_level()
    output = OutputText(tokenizer, [], SamplingParams(stop=("abc",)))
    assert output.push(tokenizer.encode("xab"), finished=False).text == "x"
    assert output.push([], finished=True) == TextDelta("ab", None, 0)
    both = OutputText(tokenizer, [], SamplingParams(stop=("abc",)))
    assert both.push([*tokenizer.encode("xab"), tokenizer.encode("你")[0]], finished=True).text == "xab\ufffd"
    cut = OutputText(tokenizer, [], SamplingParams())
    assert cut.push(tokenizer.encode("你")[:2], finished=True) == TextDelta("\ufffd", None, 2)


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_the_token_that_ended_the_sequence_is_not_shown(stop: tuple[str, ...]) -> None:
    tokenizer = toys.byte_level()
    (eot,) = tokenizer.eos_token_ids
    (word,) = tokenizer.encode("hell")
    for params, end, text in [
        (SamplingParams(stop=stop, skip_special_tokens=False), eot, "hell"),
        (SamplingParams(stop=stop, skip_special_tokens=False, ignore_eos=True), eot, "hell" + toys.EOT),
        (SamplingParams(stop=stop, skip_special_tokens=False, include_stop_str_in_output=True), eot, "hell" + toys.EOT),
        (SamplingParams(stop=stop, stop_token_ids=(word,)), word, "hell"),
        (SamplingParams(stop=stop, stop_token_ids=(word,), include_stop_str_in_output=True), word, "hellhell"),
        (SamplingParams(stop=stop), word, "hellhell"),
    ]:
        assert OutputText(tokenizer, [], params).push([word, end], finished=True) == TextDelta(text, None, 2)


def test_a_stop_token_in_the_middle_is_text() -> None:
    """Only the last token of a sequence ended it; before ``min_tokens`` the same id is a word like any other."""
    tokenizer = toys.byte_level()
    (word,) = tokenizer.encode("hell")
    output = OutputText(tokenizer, [], SamplingParams(stop_token_ids=(word,)))
    assert output.push([word], finished=False).text == "hell"


@pytest.mark.parametrize(
    ("tokenizer", "params"), [(None, SamplingParams()), (toys.byte_level(), SamplingParams(detokenize=False))]
)
def test_without_detokenizing_there_is_no_text(tokenizer: Tokenizer | None, params: SamplingParams) -> None:
    output = OutputText(tokenizer, [1], params)
    assert output.push([1, 2, 3], finished=False) == TextDelta("", None, 3)
    assert output.push([4], finished=True) == TextDelta("", None, 1)


def test_fast_enough_to_run_beside_an_engine() -> None:
    """Over a million tokens a second on an idle core; the bound leaves room for a busy one."""
    tokenizer = toys.default_tokenizer()
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog. 你好 " * 1500)
    output = OutputText(tokenizer, ids[:10], SamplingParams())
    begin = time.perf_counter()
    for token_id in ids:
        output.push([token_id], False)
    assert len(ids) / (time.perf_counter() - begin) > 150_000
