"""What every ``EngineClient`` must do, on both engines with the real default model in fp32.

Expected tokens come from transformers, through arithmetic written out here, never from the
engine under test.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from engine.api import GenerateRequest, RequestOutput, SamplingParams
from engine.errors import RequestError
from tests.support.live import LiveEngine
from tests.support.reference import all_logits, greedy, next_logits
from tests.support.texts import passage

PROMPT = "The capital of France is"


def test_deltas_add_up_and_one_item_is_terminal(live: LiveEngine) -> None:
    request = live.request(PROMPT, temperature=0.0, max_tokens=12, ignore_eos=True)

    async def items() -> list[RequestOutput]:
        return [item async for item in live.client.generate(request)]

    got = live.run(items())
    assert [item.finished for item in got] == [False] * (len(got) - 1) + [True]
    tokens = [token for item in got for token in item.outputs[0].token_ids]
    assert tokens == greedy(request.prompt_token_ids, 12)
    assert "".join(item.outputs[0].text for item in got) == live.tokenizer.decode(tokens)
    assert got[-1].outputs[0].finish_reason == "length"
    live.wait_idle()


def test_a_seed_decides_whatever_the_company(live: LiveEngine) -> None:
    def ask(seed: int) -> GenerateRequest:
        return live.request(PROMPT, temperature=1.5, seed=seed, max_tokens=16, ignore_eos=True)

    (alone,) = live.tokens(ask(7))
    crowd = live.tokens(*(ask(seed) for seed in (1, 2, 7, 3)))
    assert crowd[2] == alone
    assert len({tuple(tokens) for tokens in crowd}) == 4


def test_unseeded_requests_differ(live: LiveEngine) -> None:
    many = live.tokens(*(live.request(PROMPT, temperature=2.0, max_tokens=8) for _ in range(4)))
    assert len({tuple(tokens) for tokens in many}) > 1


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_narrowest_sampling_is_greedy(live: LiveEngine, params: dict) -> None:
    (tokens,) = live.tokens(live.request(PROMPT, temperature=1.0, max_tokens=8, ignore_eos=True, **params))
    assert tokens == greedy(live.tokenizer.encode(PROMPT), 8)


def test_top_k_keeps_within_the_k_most_likely(live: LiveEngine) -> None:
    requests = [live.request(PROMPT, temperature=5.0, top_k=3, seed=s, max_tokens=1) for s in range(24)]
    best = set(next_logits(live.tokenizer.encode(PROMPT)).topk(3).indices.tolist())
    seen = {tokens[0] for tokens in live.tokens(*requests)}
    assert seen <= best and len(seen) > 1


@torch.inference_mode()
def naive_penalised(prompt: list[int], steps: int, params: SamplingParams) -> list[int]:
    """Greedy decoding with penalties, by their definitions (OpenAI's and CTRL's, arXiv 1909.05858)."""
    output: list[int] = []
    for _ in range(steps):
        logits = next_logits(prompt + output)
        for token in set(prompt + output):
            value = logits[token]
            logits[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        for token in set(output):
            logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.3}, {"frequency_penalty": 1.2}, {"presence_penalty": 1.5, "repetition_penalty": 0.9}],
    ids=lambda p: "-".join(p),
)
def test_penalties_are_exact_and_in_time(live: LiveEngine, params: dict) -> None:
    request = live.request(PROMPT, temperature=0.0, max_tokens=20, ignore_eos=True, **params)
    plain = live.request(PROMPT, temperature=0.0, max_tokens=20, ignore_eos=True)
    penalised, untouched = live.tokens(request, plain)
    assert penalised == naive_penalised(request.prompt_token_ids, 20, request.params)
    assert untouched == greedy(plain.prompt_token_ids, 20)
    assert penalised != untouched


CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_eos_ends_a_stream_and_is_not_shown(live: LiveEngine) -> None:
    (output,) = live.generate(live.request(CHAT, temperature=0.0, max_tokens=64))
    answer = output.outputs[0]
    assert "Paris" in answer.text
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert answer.token_ids[-1] in live.tokenizer.eos_token_ids
    assert "<|im_end|>" not in answer.text


def test_min_tokens_bans_the_end_until_then(live: LiveEngine) -> None:
    (short,) = live.tokens(live.request(CHAT, temperature=0.0, max_tokens=64))
    (longer,) = live.tokens(live.request(CHAT, temperature=0.0, max_tokens=64, min_tokens=len(short) + 4))
    assert len(longer) >= len(short) + 4
    assert longer[: len(short) - 1] == short[:-1]
    assert not set(longer[: len(short) + 3]) & set(live.tokenizer.eos_token_ids)


def test_ignore_eos_goes_on(live: LiveEngine) -> None:
    (tokens,) = live.tokens(live.request(CHAT, temperature=0.0, max_tokens=40, ignore_eos=True))
    assert len(tokens) == 40


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens_ends_the_text(live: LiveEngine, include: bool) -> None:
    (whole,) = live.generate(live.request(CHAT, temperature=0.0, max_tokens=64))
    text = whole.outputs[0].text
    stop = text[5:12]
    (cut,) = live.generate(
        live.request(CHAT, temperature=0.0, max_tokens=64, stop=["@@@", stop], include_stop_str_in_output=include)
    )
    output = cut.outputs[0]
    end = text.index(stop) + (len(stop) if include else 0)
    assert output.text == text[:end]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    decoded = live.tokenizer.decode(output.token_ids)
    assert stop in decoded and stop not in live.tokenizer.decode(output.token_ids[:-1])
    live.wait_idle()


def test_a_stop_token_id_ends_and_is_named(live: LiveEngine) -> None:
    (plain,) = live.tokens(live.request(CHAT, temperature=0.0, max_tokens=64))
    stop = plain[3]
    (output,) = live.generate(live.request(CHAT, temperature=0.0, max_tokens=64, stop_token_ids=[stop]))
    assert output.outputs[0].token_ids == plain[: plain.index(stop) + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_max_tokens_of_none_fills_the_context(live: LiveEngine) -> None:
    prompt = live.tokenizer.encode(passage(1, 600))[: live.limits.max_model_len - 5]
    (output,) = live.generate(live.request(prompt, temperature=0.0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 5
    assert output.outputs[0].finish_reason == "length"


def test_logprobs_are_the_models_own(live: LiveEngine) -> None:
    request = live.request(PROMPT, temperature=0.7, seed=3, max_tokens=6, logprobs=4, ignore_eos=True)
    bare = live.request(PROMPT, temperature=0.0, max_tokens=6, logprobs=0, ignore_eos=True)
    output, greedy_output = (result.outputs[0] for result in live.generate(request, bare))
    ids = request.prompt_token_ids + output.token_ids
    logits = all_logits(ids)[len(request.prompt_token_ids) - 1 :]
    assert output.logprobs is not None and len(output.logprobs) == 6
    for position, token in enumerate(output.token_ids):
        truth = torch.log_softmax(logits[position], -1)
        entry = output.logprobs[position]
        assert next(iter(entry)) == token
        assert set(entry) == {token} | set(truth.topk(4).indices.tolist())
        for candidate, logprob in entry.items():
            assert logprob.logprob == pytest.approx(float(truth[candidate]), abs=1e-3)
            assert logprob.rank == int((truth > truth[candidate]).sum()) + 1
            assert logprob.decoded_token == live.tokenizer.token_text(candidate)
    assert greedy_output.logprobs is not None
    assert all(len(entry) == 1 for entry in greedy_output.logprobs)


def test_abort_ends_the_stream_and_frees_everything(live: LiveEngine) -> None:
    request = live.request(PROMPT, temperature=0.0, max_tokens=400, ignore_eos=True)

    async def abort_after(n: int) -> list[RequestOutput]:
        items = []
        async for item in live.client.generate(request):
            items.append(item)
            if len(items) == n:
                await live.client.abort(request.request_id)
        return items

    items = live.run(abort_after(5))
    assert items[-1].finished and items[-1].outputs[0].finish_reason == "abort"
    assert sum(len(item.outputs[0].token_ids) for item in items) < 400
    live.wait_idle()


def test_leaving_a_stream_aborts_it(live: LiveEngine) -> None:
    before = live.stats().requests_aborted

    async def leave() -> None:
        stream = live.client.generate(live.request(PROMPT, temperature=0.0, max_tokens=400, ignore_eos=True))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    live.run(leave())
    assert live.wait_idle().requests_aborted == before + 1


def test_aborts_at_every_age_leave_nothing(live: LiveEngine) -> None:
    """Queued, in prefill, decoding, about to finish: the delay picks the place."""

    async def one(delay_ms: int) -> None:
        prompt = live.tokenizer.encode(passage(delay_ms, 300))
        task = asyncio.create_task(live.collect(live.request(prompt, max_tokens=30, ignore_eos=True)))
        await asyncio.sleep(delay_ms / 1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def many() -> None:
        await asyncio.gather(*(one(7 * i) for i in range(48)))

    live.run(many())
    live.wait_idle(5)


def test_an_unknown_abort_is_ignored(live: LiveEngine) -> None:
    live.run(live.client.abort("no-such-request"))
    assert live.tokens(live.request(PROMPT, temperature=0.0, max_tokens=2))


@pytest.mark.parametrize(
    ("prompt", "params"),
    [([10**6], {}), ([-1], {}), ([], {}), ([1] * 600, {}), ([1], {"stop_token_ids": (60_000,)})],
    ids=["id too large", "negative id", "empty", "too long", "stop id too large"],
)
def test_the_engine_checks_again_and_the_others_go_on(live: LiveEngine, prompt: list[int], params: dict) -> None:
    """The frontend checks first; the engine must not rely on that."""
    pid = live.client.engine_pid
    bad = GenerateRequest("bad", prompt, SamplingParams(max_tokens=4, **params), 0.0)
    good = live.request(PROMPT, temperature=0.0, max_tokens=8, ignore_eos=True)

    async def both() -> tuple[object, RequestOutput]:
        first, second = await asyncio.gather(live.collect(bad), live.collect(good), return_exceptions=True)
        assert isinstance(second, RequestOutput)
        return first, second

    error, output = live.run(both())
    assert isinstance(error, RequestError)
    assert output.outputs[0].token_ids == greedy(good.prompt_token_ids, 8)
    assert live.client.engine_pid == pid and not live.client.dead


def test_preemption_changes_no_token(cramped: LiveEngine) -> None:
    """Eight requests that together need several times the cache: each still gets its exact tokens."""
    prompts = [cramped.tokenizer.encode(passage(seed, 200))[: 20 + 9 * seed] for seed in range(8)]
    requests = [cramped.request(p, temperature=0.0, max_tokens=60, ignore_eos=True) for p in prompts]
    seeded = [cramped.request(p, temperature=1.0, seed=5, max_tokens=60, ignore_eos=True) for p in prompts[:2]]
    alone = [
        cramped.tokens(cramped.request(p, temperature=1.0, seed=5, max_tokens=60, ignore_eos=True))[0]
        for p in prompts[:2]
    ]
    before = cramped.stats().preemptions
    got = cramped.tokens(*requests, *seeded)
    assert got[:8] == [greedy(p, 60) for p in prompts]
    assert got[8:] == alone
    assert cramped.wait_idle().preemptions > before
