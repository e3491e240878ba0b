"""engine/v0/worker on a tiny random Llama: what a batch is made of changes no token."""

import itertools
import random

import msgspec
import pytest
import torch

from engine.api import RequestOutput, SamplingParams
from engine.config import EngineConfig
from engine.v0.core.sequence import SequenceData
from engine.v0.core.sequence_group import SequenceGroupMetadata
from engine.v0.executor.uniproc import UniprocExecutor
from engine.v0.llm_engine.llm_engine import LLMEngine
from engine.v0.worker.model_input import ModelInputBuilder
from engine.v0.worker.sampling_metadata import SamplingMetadataBuilder
from tests.v0.helpers import EOS, VOCAB, greedy, make_config, request, run_to_end, token_ids

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def metadata(
    request_id: str, tokens: list[int], *, computed: int, chunk: int, blocks: list[int], params: SamplingParams
) -> SequenceGroupMetadata:
    data = SequenceData(tokens)
    data.num_computed_tokens = computed
    return SequenceGroupMetadata(
        request_id=request_id,
        is_prompt=chunk > 1,
        seq_data={hash(request_id): data},
        block_tables={hash(request_id): blocks},
        params=params,
        token_chunk_size=chunk,
        do_sample=computed + chunk == len(tokens),
    )


def test_inputs_are_ragged_and_mapped_through_the_block_table() -> None:
    inputs = ModelInputBuilder(4, CPU).build(
        [
            metadata("chunk", list(range(10, 20)), computed=3, chunk=4, blocks=[7, 2, 9], params=greedy(1)),
            metadata("decode", list(range(30, 35)), computed=4, chunk=1, blocks=[5, 0], params=greedy(1)),
        ]
    )
    assert inputs.input_ids.tolist() == [13, 14, 15, 16, 34]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 4]
    attention = inputs.attention
    assert attention.query_start_loc.tolist() == [0, 4, 5]
    assert attention.seq_lens.tolist() == [7, 5]
    assert attention.slot_mapping.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 2 * 4 + 2, 0]
    assert attention.block_table[0].tolist() == [7, 2, 9] and attention.block_table[1, :2].tolist() == [5, 0]
    assert (attention.max_query_len, attention.max_seq_len) == (4, 7)
    assert inputs.input_ids.dtype == inputs.positions.dtype == attention.slot_mapping.dtype == torch.int64
    assert attention.seq_lens.dtype == attention.block_table.dtype == attention.query_start_loc.dtype == torch.int32


def sampling_of(*groups: SequenceGroupMetadata):  # type: ignore[no-untyped-def]
    return SamplingMetadataBuilder(VOCAB, (EOS,), 0, CPU).build(list(groups))


def test_unfinished_prompts_are_not_sampled() -> None:
    chunk = metadata("chunk", [1] * 9, computed=0, chunk=4, blocks=[0, 1, 2], params=greedy(1))
    decode = metadata("decode", [1] * 3, computed=2, chunk=1, blocks=[3], params=greedy(1))
    assert sampling_of(chunk) is None
    both = sampling_of(chunk, decode)
    assert both.selected_token_indices.tolist() == [4]
    assert [row.group_index for row in both.rows] == [1]


def test_filters_that_nobody_uses_are_off() -> None:
    plain = metadata("a", [1], computed=0, chunk=1, blocks=[0], params=SamplingParams())
    batch = sampling_of(plain).batch
    assert not batch.all_greedy
    assert batch.top_k is batch.top_p is batch.min_p is batch.penalties is batch.banned is batch.num_logprobs is None
    assert not batch.generators
    picky = SamplingParams(top_k=5, top_p=0.5, min_p=0.25, seed=3, logprobs=2)
    batch = sampling_of(plain, metadata("b", [1], computed=0, chunk=1, blocks=[1], params=picky)).batch
    assert batch.top_k.tolist() == [0, 5] and batch.top_p.tolist() == [1.0, 0.5] and batch.min_p.tolist() == [0, 0.25]
    assert list(batch.generators) == [1] and batch.num_logprobs == 2


def test_penalties_count_prompt_and_output_apart() -> None:
    params = greedy(9, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    group = metadata("a", [3, 3, 4], computed=0, chunk=3, blocks=[0], params=params)
    (data,) = group.seq_data.values()
    for token in (4, 6, 6):
        data.append_token(token)
    group = msgspec.structs.replace(group, token_chunk_size=6, do_sample=True)
    plain = metadata("b", [1], computed=0, chunk=1, blocks=[1], params=greedy(1))
    penalties = sampling_of(plain, group).batch.penalties
    assert penalties.rows.tolist() == [1]
    assert penalties.prompt_mask[0].nonzero().flatten().tolist() == [3, 4]
    assert {i: n for i, n in enumerate(penalties.output_counts[0].tolist()) if n} == {4: 1, 6: 2}
    values = [penalties.repetition, penalties.presence, penalties.frequency]
    assert [value.tolist() for value in values] == [[1.5], [0.5], [0.25]]


@pytest.mark.parametrize(
    ("num_outputs", "ignore_eos", "banned"),
    [(0, False, {7, EOS}), (2, False, set()), (1, True, {7}), (1, False, {7, EOS})],
)
def test_ends_are_banned_until_min_tokens(num_outputs: int, ignore_eos: bool, banned: set[int]) -> None:
    params = greedy(9, min_tokens=2, stop_token_ids=[7], ignore_eos=ignore_eos)
    group = metadata("a", [3], computed=0, chunk=1, blocks=[0], params=params)
    (data,) = group.seq_data.values()
    for _ in range(num_outputs):
        data.append_token(5)
    pairs = sampling_of(group).batch.banned
    assert (set() if pairs is None else set(pairs.token_ids.tolist())) == banned


def test_a_seeded_generator_lives_until_its_request_is_dropped() -> None:
    builder = SamplingMetadataBuilder(VOCAB, (EOS,), 0, CPU)
    group = metadata("a", [3], computed=0, chunk=1, blocks=[0], params=SamplingParams(seed=1))
    first = builder.build([group]).batch.generators[0]
    assert builder.build([group]).batch.generators[0] is first
    builder.drop(["a"])
    assert builder._seeded == {}


# -- the whole worker ---------------------------------------------------------------------------------


def run(config: EngineConfig, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[RequestOutput]]:
    """All requests together, through the real worker."""
    executor = UniprocExecutor(config)
    engine = LLMEngine(config, executor, tokenizer=None)
    for index, (prompt, option) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(request(str(index), prompt, option))
    outputs = run_to_end(engine)
    assert executor._driver_worker._runner._sampling_builder._seeded == {}, "an idle worker holds a generator"
    stats = engine.stats()
    assert stats.kv_blocks_free == config.cache.num_blocks
    assert bool(stats.preemptions) == (len(prompts) > 1 and config.cache.num_blocks < 64)
    return [outputs[str(index)] for index in range(len(prompts))]


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 40))] for _ in range(count)]


CONFIGS = {
    "together": make_config(),
    "two at a time": make_config(max_num_seqs=2),
    "chunks": make_config(chunked=True, max_num_batched_tokens=9),
    "preempted": make_config(num_blocks=24),
    "chunks, preempted": make_config(chunked=True, num_blocks=24, max_num_batched_tokens=13),
    "large blocks": make_config(block_size=16),
}


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    return [token_ids(run(make_config(), [prompt], [greedy(24, ignore_eos=True)])[0]) for prompt in random_prompts(6)]


@pytest.mark.parametrize("name", CONFIGS)
def test_company_chunks_and_preemption_change_no_token(name: str, alone: list[list[int]]) -> None:
    prompts = random_prompts(6)
    together = run(CONFIGS[name], prompts, [greedy(24, ignore_eos=True)] * 6)
    assert [token_ids(outputs) for outputs in together] == alone
    assert len({tuple(tokens) for tokens in alone}) == 6, "a model that says the same to all proves nothing"


def test_a_seed_decides_through_company_and_preemption() -> None:
    prompts = random_prompts(6)
    params = [SamplingParams(max_tokens=24, seed=9, ignore_eos=True)] + [SamplingParams(max_tokens=24)] * 5
    (first, *_), (second, *_), (third,) = (
        run(make_config(), prompts, params),
        run(make_config(num_blocks=24), prompts, params),
        run(make_config(), prompts[:1], params[:1]),
    )
    assert token_ids(first) == token_ids(second) == token_ids(third)


def test_each_gets_the_logprobs_it_asked_for() -> None:
    prompts = random_prompts(3)
    params = [greedy(3, logprobs=k, ignore_eos=True) for k in (0, 5)] + [greedy(3, ignore_eos=True)]
    none, five, bare = ([o.outputs[0].logprobs for o in outputs] for outputs in run(make_config(), prompts, params))
    assert [len(entry) for (entry,) in none] == [1, 1, 1]
    assert [len(entry) for (entry,) in five] == [5, 5, 5], "the greedy token is one of the five"
    assert bare == [None, None, None]
    for (entry,) in five:
        assert [lp.rank for lp in entry.values()] == [1, 2, 3, 4, 5]
        values = [lp.logprob for lp in entry.values()]
        assert values == sorted(values, reverse=True)


def test_nan_logits_end_their_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    executor = UniprocExecutor(config)
    model = executor._driver_worker._runner._model
    compute, calls = model.compute_logits, itertools.count()

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        if next(calls) == 2:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(model, "compute_logits", broken)
    engine = LLMEngine(config, executor, tokenizer=None)
    for index, prompt in enumerate(random_prompts(3)):
        engine.add_request(request(str(index), prompt, greedy(6, ignore_eos=True)))
    outputs = run_to_end(engine)
    assert [outputs[name][-1].outputs[0].finish_reason for name in "012"] == ["length", "error", "length"]
    assert len(token_ids(outputs["1"])) == 2
