"""engine/v0/core/scheduler.py: who takes part in a step, in which order, and who has to leave."""

import pytest

from engine.config import EngineConfig
from engine.v0.core.budget import SchedulingBudget
from engine.v0.core.sequence import SequenceStatus
from engine.v0.llm_engine.llm_engine import LLMEngine
from tests.v0.helpers import (
    HashExecutor,
    expected_tokens,
    greedy,
    make_config,
    make_engine,
    request,
    run_to_end,
    token_ids,
    with_max_model_len,
)


def engine_with(config: EngineConfig, **prompts: int) -> tuple[LLMEngine, HashExecutor]:
    """An engine with waiting requests named by keyword, each with a prompt of that many tokens."""
    engine, executor = make_engine(config)
    for name, length in prompts.items():
        engine.add_request(request(name, range(3, 3 + length), greedy(12, ignore_eos=True)))
    return engine, executor


def batch(engine: LLMEngine, executor: HashExecutor) -> list[tuple[str, int]]:
    """Steps once; the (request, tokens) of the batch it ran."""
    engine.step()
    engine.scheduler.check_invariants()
    return [(group.request_id, group.token_chunk_size) for group in executor.batches[-1]]


def queues(engine: LLMEngine) -> tuple[list[str], list[str]]:
    scheduler = engine.scheduler
    return [group.request_id for group in scheduler.running], [group.request_id for group in scheduler.waiting]


# -- prefill first ------------------------------------------------------------------------------------


def test_prefills_go_before_decodes_and_never_with_them() -> None:
    engine, executor = engine_with(make_config(), a=5, b=7)
    assert batch(engine, executor) == [("a", 5), ("b", 7)]
    assert batch(engine, executor) == [("a", 1), ("b", 1)]
    engine.add_request(request("c", [9] * 6, greedy(4)))
    assert batch(engine, executor) == [("c", 6)]
    assert batch(engine, executor) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_prompt_that_does_not_fit_the_token_budget_waits_whole_and_is_not_overtaken() -> None:
    config = with_max_model_len(make_config(max_num_batched_tokens=32), 32)
    engine, executor = make_engine(config)
    for name, length in (("a", 20), ("b", 15), ("c", 2)):
        engine.add_request(request(name, range(length), greedy(4)))
    assert batch(engine, executor) == [("a", 20)]
    assert batch(engine, executor) == [("b", 15), ("c", 2)]


def test_no_more_sequences_run_than_max_num_seqs() -> None:
    engine, executor = engine_with(make_config(max_num_seqs=2), a=3, b=3, c=3)
    assert batch(engine, executor) == [("a", 3), ("b", 3)]
    assert batch(engine, executor) == [("a", 1), ("b", 1)]
    assert queues(engine) == (["a", "b"], ["c"])


def test_admission_leaves_the_watermark() -> None:
    # 100 blocks of 1 token, 1 of them the watermark.
    engine, executor = engine_with(make_config(num_blocks=100, block_size=1), a=87, b=12)
    assert batch(engine, executor) == [("a", 87), ("b", 12)]
    engine, executor = engine_with(make_config(num_blocks=100, block_size=1), a=87, b=13)
    assert batch(engine, executor) == [("a", 87)]


# -- chunked prefill ----------------------------------------------------------------------------------


def test_chunked_prefill_fills_the_budget_behind_the_decodes() -> None:
    engine, executor = engine_with(make_config(chunked=True, max_num_batched_tokens=10), a=4, b=13, c=3)
    assert batch(engine, executor) == [("a", 4), ("b", 6)]
    assert batch(engine, executor) == [("b", 7), ("c", 2), ("a", 1)]
    assert batch(engine, executor) == [("c", 1), ("a", 1), ("b", 1)]
    assert batch(engine, executor) == [("a", 1), ("b", 1), ("c", 1)]


def test_only_the_last_chunk_samples() -> None:
    engine, executor = engine_with(make_config(chunked=True, max_num_batched_tokens=8), a=20)
    sampled = []
    for _ in range(4):
        outputs = engine.step()
        sampled.append((executor.batches[-1][0].do_sample, len(outputs)))
    assert sampled == [(False, 0), (False, 0), (True, 1), (True, 1)]


# -- preemption ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_the_newest_is_preempted_keeps_its_tokens_and_is_recomputed_with_them(chunked: bool) -> None:
    # 6 blocks of 4: both prompts take 2, and grow to 5 each.
    engine, executor = engine_with(make_config(chunked=chunked, num_blocks=6), a=8, b=8)
    while not engine.stats().preemptions:
        batch(engine, executor)
    assert queues(engine) == (["a"], ["b"])
    victim = engine.scheduler.waiting[0].seqs[0]
    assert victim.status is SequenceStatus.WAITING
    kept = list(victim.data.output_token_ids)
    assert kept and victim.data.num_computed_tokens == 0
    rest = run_to_end(engine)
    recomputed = next(group for groups in executor.batches for group in groups[::-1] if group.request_id == "b")
    assert recomputed.token_chunk_size == 8  # the first prefill; the second is longer by what it had generated
    prefills = [
        g.token_chunk_size for groups in executor.batches for g in groups if g.request_id == "b" and g.is_prompt
    ]
    assert prefills == [8, 8 + len(kept)]
    assert kept + token_ids(rest["b"]) == expected_tokens(range(3, 11), greedy(12, ignore_eos=True))


def test_victims_queue_in_order_of_arrival_before_newcomers() -> None:
    engine, executor = engine_with(make_config(num_blocks=12), a=16, b=8, c=8, d=8)
    seen = []
    while engine.has_work:
        batch(engine, executor)
        running, waiting = queues(engine)
        seen.append(running + waiting)
    assert engine.stats().preemptions >= 2
    assert all(order == sorted(order) for order in seen), "someone overtook"


def test_the_oldest_advances_in_every_decode() -> None:
    engine, executor = engine_with(make_config(num_blocks=8), a=8, b=8, c=8)
    while engine.has_work:
        before = engine.scheduler.running[0] if engine.scheduler.running else None
        batch(engine, executor)
        groups = executor.batches[-1]
        if before is not None and groups and not groups[0].is_prompt:
            assert groups[0].request_id == before.request_id


def test_a_step_that_preempts_admits_nobody() -> None:
    engine, executor = engine_with(make_config(chunked=True, num_blocks=6), a=8, b=8)
    while not engine.stats().preemptions:
        engine.add_request(request(f"x{len(executor.batches)}", [5], greedy(1)))
        running = {group.request_id for group in engine.scheduler.running}
        members = {name for name, _ in batch(engine, executor)}
    assert members < running


# -- ends ---------------------------------------------------------------------------------------------


def test_blocks_of_a_finished_group_are_free_for_the_next_step() -> None:
    engine, executor = make_engine(make_config(num_blocks=4))
    engine.add_request(request("a", [5] * 12, greedy(1)))
    engine.add_request(request("b", [6] * 12, greedy(1)))
    assert batch(engine, executor) == [("a", 12)]
    assert batch(engine, executor) == [("b", 12)]


def test_the_worker_hears_of_every_end_even_when_nothing_else_runs() -> None:
    engine, executor = engine_with(make_config(), a=3)
    run_to_end(engine)
    assert executor.live == set()
    assert executor.batches[-1] == []
    assert not engine.has_work


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort_frees_at_once(steps: int) -> None:
    engine, executor = engine_with(make_config(max_num_seqs=1), a=9, b=9)
    for _ in range(steps):
        batch(engine, executor)
    for name in ("b", "a"):
        output = engine.abort_request(name)
        assert output is not None and output.finished and output.outputs[0].finish_reason == "abort"
        engine.scheduler.check_invariants()
    assert engine.block_manager.num_free_blocks == 64
    assert engine.abort_request("a") is None
    run_to_end(engine)
    assert executor.live == set()


def test_a_group_that_could_never_fit_is_answered_and_holds_up_nobody() -> None:
    engine, executor = engine_with(make_config(num_blocks=4), a=3, b=3)
    engine.scheduler.waiting[0].seqs[0].data.token_ids.extend([7] * 30)
    (first, second) = engine.step()
    assert (second.request_id, second.finished, second.outputs[0].finish_reason) == ("a", True, "error")
    assert first.request_id == "b" and executor.batches[-1][0].request_id == "b"
    run_to_end(engine)
    assert engine.block_manager.num_free_blocks == 4


# -- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunked", "tokens"), [(False, 255), (True, 7)])
def test_limits_that_would_strand_a_request_are_a_bug_of_the_caller(chunked: bool, tokens: int) -> None:
    make_engine(make_config(chunked=chunked, max_num_batched_tokens=tokens + 1))
    with pytest.raises(AssertionError, match="a step must hold"):
        make_engine(make_config(chunked=chunked, max_num_batched_tokens=tokens))


def test_the_budget_counts_a_request_once() -> None:
    budget = SchedulingBudget(token_budget=10, max_num_seqs=2)
    for _ in range(2):
        budget.add_tokens("a", 6)
        budget.add_seqs("a", 1)
    assert budget.can_schedule(num_new_tokens=4, num_new_seqs=1)
    assert not budget.can_schedule(num_new_tokens=5, num_new_seqs=1)
    assert not budget.can_schedule(num_new_tokens=4, num_new_seqs=2)
