"""Stop strings against a matcher that looks at every prefix of the whole text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stop import StopMatcher

FEW = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4)


def naive(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Length of the text up to the first complete stop string, and which it is."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def naive_hold(text: str, stops: list[str]) -> int:
    return max(n for n in range(len(text) + 1) for stop in stops if n < len(stop) and text.endswith(stop[:n]))


def chunked(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=1000, deadline=None)
@given(text=FEW, stops=STOPS, include=st.booleans(), data=st.data())
def test_cuts_where_the_naive_matcher_does(text: str, stops: list[str], include: bool, data: st.DataObject) -> None:
    expected = naive(text, stops)
    matcher = StopMatcher(stops, include)
    shown = "".join(matcher.push(chunk) for chunk in chunked(data, text)) + matcher.finish()
    if expected is None:
        assert (shown, matcher.matched) == (text, None)
    else:
        end, stop = expected
        assert (shown, matcher.matched) == (text[: end if include else end - len(stop)], stop)


@settings(max_examples=500, deadline=None)
@given(text=FEW, stops=STOPS, data=st.data())
def test_holds_back_exactly_what_may_become_a_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher = StopMatcher(stops, include_in_output=False)
    seen = shown = ""
    for chunk in chunked(data, text):
        seen += chunk
        shown += matcher.push(chunk)
        if matcher.matched is not None:
            break
        assert shown == seen[: len(seen) - naive_hold(seen, stops)]


@settings(max_examples=300, deadline=None)
@given(text=FEW, stops=STOPS, start=st.integers(0, 40))
def test_stop_strings_that_end_before_it_is_armed_are_text(text: str, stops: list[str], start: int) -> None:
    matcher = StopMatcher(stops, include_in_output=True)
    shown = "".join(matcher.push(char, armed=index >= start) for index, char in enumerate(text)) + matcher.finish()
    ends = [end for end in range(start + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert shown == (text[: ends[0]] if ends else text)
    assert (matcher.matched is None) == (not ends)


def test_several_unarmed_matches_in_one_piece() -> None:
    matcher = StopMatcher(["ab"], include_in_output=False)
    assert matcher.push("ababa", armed=False) == "abab"
    assert matcher.push("b") == ""
    assert matcher.matched == "ab"


def test_a_match_may_begin_inside_one_that_did_not_count() -> None:
    matcher = StopMatcher(["aba"], include_in_output=True)
    assert matcher.push("aba", armed=False) == "aba"
    assert matcher.push("bax") == "ba"


def test_first_end_wins_then_the_longest() -> None:
    matcher = StopMatcher(["abcdef", "cd", "bcd"], include_in_output=False)
    assert matcher.push("xabcdef") == "xa"
    assert matcher.matched == "bcd"


def test_included_stop_strings_need_no_holding_back() -> None:
    matcher = StopMatcher(["abc"], include_in_output=True)
    assert [matcher.push(char) for char in "xabcy"] == ["x", "a", "b", "c", ""]


@pytest.mark.parametrize("text", ["a" * 300_000, ("a" * 1023 + "c") * 300, "ab" * 150_000])
def test_linear_in_hostile_text(text: str) -> None:
    """The longest stop string allowed, always almost complete; quadratic work would take minutes."""
    matcher = StopMatcher(["a" * 1023 + "b", "ab" * 511 + "c"], include_in_output=False)
    begin = time.perf_counter()
    shown = "".join(matcher.push(text[i : i + 3]) for i in range(0, len(text), 3)) + matcher.finish()
    assert time.perf_counter() - begin < 10
    assert shown == text
