"""engine/api: every field has its bound, and a value past it is a RequestError naming the field."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import CompletionOutput, Logprob, ModelLimits, RequestOutput, SamplingParams
from engine.api.outputs import merge
from engine.api.request import check_request
from engine.errors import RequestError

LIMITS = ModelLimits(vocab_size=100, max_model_len=50, kv_capacity_tokens=40)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0.0, 0, 100.0], [-0.1, 100.1, math.nan, math.inf, "1", True]),
        ("top_p", [1.0, 0.01], [0.0, -1.0, 1.01, math.nan]),
        ("top_k", [-1, 0, 5], [-2, 1.5, 1 << 40]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, -math.inf]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 100.0], [0.0, -1.0, 101.0]),
        ("seed", [None, 0, -5, (1 << 63) - 1], [1 << 63, 1.0]),
        ("max_tokens", [None, 1], [0, -1, 1 << 40]),
        ("min_tokens", [0, 16], [-1, 17]),
        ("logprobs", [None, 0, 20], [-1, 21]),
        ("stop", ["a", ["a", "b"], ()], [[""], ["x" * 1025], ["x"] * 17, [3]]),
        ("stop_token_ids", [[], [0, 5]], [[-1], [0.5], list(range(129))]),
    ],
)
def test_bounds(field: str, good: list, bad: list) -> None:
    for value in good:
        SamplingParams(**{field: value})
    for value in bad:
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{field: value})
        assert caught.value.param == field


def test_every_field_with_a_range_is_in_the_table_above() -> None:
    covered = test_bounds.pytestmark[0].args[1]
    unbounded = {"ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"}
    assert {f.name for f in msgspec.structs.fields(SamplingParams)} == {row[0] for row in covered} | unbounded


def test_stop_strings_without_detokenizing_are_refused() -> None:
    with pytest.raises(RequestError, match="stop_token_ids"):
        SamplingParams(stop="x", detokenize=False)


@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        stop=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
        seed=st.none() | st.integers(0, 9),
        max_tokens=st.none() | st.integers(20, 30),
        stop_token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    )
)
def test_params_survive_the_wire(params: SamplingParams) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_the_wire_checks_bounds_too() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"temperature": -1.0}), type=SamplingParams)


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ([100], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1] * 40, {"max_tokens": 1}, "prompt"),
        ([1] * 39, {"max_tokens": 2}, "max_tokens"),
        ([1] * 39, {"max_tokens": None, "min_tokens": 2}, "min_tokens"),
        ([1], {"stop_token_ids": (100,)}, "stop_token_ids"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(prompt: list[int], params: dict, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_request(prompt, SamplingParams(**params), LIMITS)
    assert caught.value.param == param


def test_max_tokens_defaults_to_the_room_left() -> None:
    assert check_request([1] * 30, SamplingParams(max_tokens=None), LIMITS).max_tokens == 10
    assert check_request([1] * 30, SamplingParams(max_tokens=10), LIMITS).max_tokens == 10


def test_merge_adds_deltas_up() -> None:
    total = RequestOutput("r", [1], [CompletionOutput(0, "a", [5], [{5: Logprob(-1.0, 1)}])], False)
    delta = CompletionOutput(0, "b", [6], [{6: Logprob(-2.0, 1)}], "stop", "x")
    merge(total, RequestOutput("r", [1], [delta], True, 3))
    (output,) = total.outputs
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("ab", [5, 6], "stop", "x")
    assert output.logprobs is not None and [list(p) for p in output.logprobs] == [[5], [6]]
    assert total.finished and total.num_cached_tokens == 3
