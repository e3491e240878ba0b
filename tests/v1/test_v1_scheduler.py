"""engine/v1/core/scheduler.py: what each rule plans, with a fake executor."""

import msgspec
import pytest

from engine.errors import OverloadedError, RequestError
from engine.v1.core.request import FinishCause, Finished
from tests.v1.helpers import EOS, Driver, expected_tokens, make_config


def prompt(seed: int, length: int) -> list[int]:
    return expected_tokens([seed], length)


def test_a_prompt_is_computed_in_chunks_within_the_budget() -> None:
    driver = Driver(make_config(budget=16))
    driver.add(0, prompt(1, 40))
    for chunk in (16, 16, 8):
        assert driver.tokens[0] == []
        driver.step()
        assert driver.plan.uneven_tokens == [chunk]
    driver.run()
    assert driver.tokens[0] == expected_tokens(prompt(1, 40), 8)
    assert driver.finished[0] == Finished(0, FinishCause.LENGTH)


def test_decodes_and_chunks_share_a_step() -> None:
    driver = Driver(make_config(budget=8))
    driver.add(0, prompt(1, 4), max_tokens=20)
    driver.step()
    driver.add(1, prompt(2, 20))
    driver.step()
    assert (len(driver.tokens[0]), driver.plan.uneven_tokens) == (2, [7])
    driver.step()
    assert (len(driver.tokens[0]), driver.plan.uneven_tokens) == (3, [7])


def test_a_step_in_which_all_decode_is_a_constant_diff() -> None:
    sizes = []
    for slots in (1, 4, 64):
        driver = Driver(make_config(slots=slots, budget=512, blocks=1024))
        for handle in range(slots):
            driver.add(handle, prompt(handle, 5), max_tokens=40)
        driver.step()
        driver.step()  # five prompt tokens and two more: nobody needs a third block of four yet
        sizes.append(len(msgspec.msgpack.encode(driver.plan)))
        assert len(driver.tokens[0]) == 2
    assert len(set(sizes)) == 1 and sizes[0] <= 16


def test_first_come_first_served() -> None:
    driver = Driver(make_config(slots=2))
    for handle in range(5):
        driver.add(handle, prompt(handle, 3), max_tokens=2 + handle)
    driver.run()
    assert list(driver.finished) == [0, 1, 2, 3, 4]


def test_when_blocks_run_out_the_newest_is_preempted_and_loses_nothing() -> None:
    driver = Driver(make_config(slots=3, blocks=9, block_size=4, budget=64))
    for handle in range(3):
        driver.add(handle, prompt(handle, 4), max_tokens=20)
    driver.run()
    stats = driver.core.stats()
    assert stats.preemptions > 0
    for handle in range(3):
        assert driver.tokens[handle] == expected_tokens(prompt(handle, 4), 20)
    assert list(driver.finished) == [0, 1, 2], "the oldest always advances"
    assert stats.kv_blocks_free == stats.kv_blocks_total == 9


def test_after_an_admission_everyone_computes_at_least_a_block_before_a_preemption() -> None:
    driver = Driver(make_config(slots=8, blocks=16, block_size=4, budget=64))
    for handle in range(8):
        driver.add(handle, prompt(handle, 7), max_tokens=30)
    since_admission = 0
    while driver.core.has_work:
        before = driver.core.stats().preemptions
        driver.step()
        since_admission = 0 if driver.plan.new else since_admission + 1
        if driver.core.stats().preemptions > before:
            assert since_admission >= 4
    assert driver.core.stats().preemptions <= 8 * 30 // 4


def test_one_request_may_use_the_whole_cache_and_not_a_token_more() -> None:
    driver = Driver(make_config(blocks=8, block_size=4))
    driver.add(0, prompt(1, 20), max_tokens=12)
    driver.run()
    assert driver.tokens[0] == expected_tokens(prompt(1, 20), 12)
    with pytest.raises(RequestError, match="KV cache of 32 tokens"):
        driver.add(1, prompt(1, 20), max_tokens=13)
    assert not driver.core.has_work


def test_the_waiting_queue_is_bounded() -> None:
    driver = Driver(make_config(slots=2, waiting=3))
    for handle in range(5):
        driver.add(handle, prompt(handle, 3))
    with pytest.raises(OverloadedError, match="3 requests are waiting"):
        driver.add(5, prompt(5, 3))
    driver.run()
    assert len(driver.finished) == 5


@pytest.mark.parametrize(
    ("params", "cause", "stop_token_id"),
    [
        ({"ignore_eos": False}, FinishCause.STOP, None),
        ({"ignore_eos": False, "stop_token_ids": (EOS,)}, FinishCause.STOP, None),
        ({"stop_token_ids": (7, EOS)}, FinishCause.STOP, EOS),
        ({"stop_token_ids": (7,)}, FinishCause.LENGTH, None),
        ({"stop_token_ids": (EOS,), "max_tokens": 3}, FinishCause.STOP, EOS),
        ({"stop_token_ids": (EOS,), "min_tokens": 3}, FinishCause.STOP, EOS),
        ({"stop_token_ids": (EOS,), "min_tokens": 4}, FinishCause.LENGTH, None),
    ],
)
def test_the_stop_rule(params: dict, cause: FinishCause, stop_token_id: int | None) -> None:
    start = next(p for p in ([a, b] for a in range(128) for b in range(128)) if ends_at_third_token(p))
    driver = Driver(make_config(slots=2))
    driver.add(0, start, **{"max_tokens": 5, **params})
    driver.add(1, start, max_tokens=5)  # a neighbour with another rule
    driver.run()
    assert driver.finished[0] == Finished(0, cause, stop_token_id)
    count = 3 if cause is FinishCause.STOP else 5
    assert driver.tokens[0] == expected_tokens(start, count), "the ending token is part of the output"
    assert driver.tokens[1] == expected_tokens(start, 5)


def ends_at_third_token(start: list[int]) -> bool:
    tokens = expected_tokens(start, 5)
    return tokens[2] == EOS and EOS not in tokens[:2] + tokens[3:] and 7 not in tokens


def test_a_slot_forgets_the_stop_ids_of_its_last_request() -> None:
    driver = Driver(make_config(slots=1))
    wanted = expected_tokens([1], 8)
    unused = next(token for token in range(128) if token not in wanted)
    driver.add(0, [9], max_tokens=1, stop_token_ids=(unused, *wanted))
    driver.add(1, [1], stop_token_ids=(unused,))
    driver.add(2, [1])
    driver.run()
    assert driver.tokens[1] == driver.tokens[2] == wanted


def test_a_preempted_request_is_not_admitted_in_the_same_step() -> None:
    driver = Driver(make_config(slots=6, blocks=12, block_size=2, budget=64))
    for handle in range(6):
        driver.add(handle, prompt(handle, 3), max_tokens=20)
    while driver.core.has_work:
        before = driver.core.stats().preemptions
        driver.step()
        assert driver.core.stats().preemptions == before or not driver.plan.new
    assert driver.core.stats().preemptions > 3


def test_logits_that_are_no_numbers_end_only_their_request() -> None:
    driver = Driver(make_config(slots=2))
    driver.executor.poison = expected_tokens([1], 3)[-1]
    assert driver.executor.poison not in expected_tokens([1], 2) + expected_tokens([2], 8)
    driver.add(0, [1])
    driver.add(1, [2])
    driver.run()
    assert driver.finished[0] == Finished(0, FinishCause.ERROR)
    assert driver.tokens[0] == expected_tokens([1], 3)
    assert driver.tokens[1] == expected_tokens([2], 8)


def test_abort_wherever_the_request_is() -> None:
    driver = Driver(make_config(slots=2, budget=4))
    for handle in range(4):
        driver.add(handle, prompt(handle, 6))
    driver.step()  # 0 runs in part, the others wait
    outputs = driver.core.abort([0, 2, 2, 77])
    assert outputs is not None
    assert [f.handle for f in outputs.finished] == [0, 2]
    assert driver.core.abort([0]) is None
    driver.core.scheduler.check_invariants()
    driver.run()
    assert sorted(driver.finished) == [1, 3]
    assert not driver.executor.held_slots, "an idle engine holds nothing, and neither does its worker"
    assert driver.core.stats().requests_aborted == 2
