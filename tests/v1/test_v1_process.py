"""V1Client and a real engine process, with a tiny random model."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from engine.api import GenerateRequest, RequestOutput, SamplingParams
from engine.api.outputs import merge
from engine.config import EngineConfig
from engine.errors import EngineDeadError, OverloadedError, RequestError
from engine.v1.executor.uniproc import UniprocExecutor
from engine.v1.llm_engine.client import V1Client
from engine.v1.llm_engine.engine_core import EngineCore
from engine.v1.llm_engine.messages import AddRequest
from tests.v1.helpers import make_config

CONFIG = make_config(slots=8, budget=32, blocks=64, block_size=8)


Work = Callable[[V1Client], Awaitable[None]]


def with_client(work: Work, config: EngineConfig = CONFIG) -> None:
    """Runs ``work`` with an engine of its own."""

    async def run() -> None:
        client = V1Client(config)
        await client.start()
        try:
            await asyncio.wait_for(work(client), 60)
        finally:
            await client.close()
            assert client.dead

    asyncio.run(run())


@pytest.fixture(scope="module")
def with_shared_client() -> Iterator[Callable[[Work], None]]:
    """Runs work with one engine for all tests that leave it as they found it."""
    with asyncio.Runner() as runner:
        client = V1Client(CONFIG)
        runner.run(client.start())
        yield lambda work: runner.run(asyncio.wait_for(work(client), 60))
        runner.run(client.close())


Odd = Callable[[str], EngineConfig]


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Odd:
    """Makes the engine process ``tests/v1/odd_process.py``, with the behaviour that is asked for."""
    monkeypatch.setattr("engine.v1.llm_engine.client.ENGINE_MODULE", "tests.v1.odd_process")
    return lambda behaviour: replace(CONFIG, model=replace(CONFIG.model, served_name=behaviour))


def ask(name: str, prompt: list[int] | None = None, **params: object) -> GenerateRequest:
    params = {"temperature": 0.0, "max_tokens": 10, "ignore_eos": True, **params}
    return GenerateRequest(name, prompt or [5, 6, 7], SamplingParams(**params), time.time())


async def collect(client: V1Client, request: GenerateRequest) -> RequestOutput:
    total = RequestOutput(request.request_id, request.prompt_token_ids, [], False)
    async for delta in client.generate(request):
        assert not total.finished
        merge(total, delta)
    assert total.finished
    return total


async def until_idle(client: V1Client) -> None:
    for _ in range(200):
        stats = await client.stats()
        if not stats.slots_used and not stats.num_waiting:
            assert stats.kv_blocks_free == stats.kv_blocks_total
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still busy: {stats}")


def in_process(prompt: list[int], max_tokens: int) -> list[int]:
    core = EngineCore(CONFIG, UniprocExecutor(CONFIG))
    core.add(AddRequest(0, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)))
    tokens: list[int] = []
    while core.has_work:
        tokens += core.step().token_ids
    return tokens


def test_streams_carry_the_cores_tokens(with_shared_client: Callable[[Work], None]) -> None:
    async def work(client: V1Client) -> None:
        before = await client.stats()
        prompts = [[3 + i] * (1 + 4 * i) for i in range(12)]
        outputs = await asyncio.gather(*(collect(client, ask(f"r{i}", p)) for i, p in enumerate(prompts)))
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output.outputs[0].token_ids == in_process(prompt, 10)
            assert output.outputs[0].finish_reason == "length"
        stats = await client.stats()
        assert stats.generation_tokens - before.generation_tokens == 120
        assert stats.requests_finished - before.requests_finished == 12
        assert stats.prompt_tokens - before.prompt_tokens == sum(map(len, prompts))
        await until_idle(client)

    with_shared_client(work)


def test_leaving_or_aborting_frees_the_slot(odd: Odd) -> None:
    """On an engine that takes 2.5 s for these requests, so that none is over before it is left."""

    async def work(client: V1Client) -> None:
        before = await client.stats()
        left = client.generate(ask("left", max_tokens=50))
        await anext(left)
        await left.aclose()
        cancelled = asyncio.create_task(collect(client, ask("cancelled", max_tokens=50)))
        await asyncio.sleep(0)
        cancelled.cancel()
        aborted = client.generate(ask("aborted", max_tokens=50))
        await anext(aborted)
        await client.abort("aborted")
        await client.abort("no such request")
        *_, last = [item async for item in aborted]
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        await until_idle(client)
        assert (await client.stats()).requests_finished == before.requests_finished
        assert len((await collect(client, ask("next"))).outputs[0].token_ids) == 10

    with_client(work, odd("slow"))


def test_one_requests_fault_is_its_own(with_shared_client: Callable[[Work], None]) -> None:
    async def work(client: V1Client) -> None:
        running = asyncio.create_task(collect(client, ask("good", max_tokens=40)))
        with pytest.raises(RequestError, match="context length"):
            await collect(client, ask("long", [1] * 64))
        with pytest.raises(RequestError, match="tokenizer"):
            await collect(client, ask("stop", stop=("x",)))
        # What the client would have caught, the core catches too.
        limits = client._limits
        client._limits = msgspec.structs.replace(limits, vocab_size=1000)
        with pytest.raises(RequestError, match="outside the vocabulary"):
            await collect(client, ask("id", [500]))
        client._limits = limits
        assert (await running).outputs[0].token_ids == in_process([5, 6, 7], 40)

    with_shared_client(work)


def test_an_id_in_use_is_refused(with_shared_client: Callable[[Work], None]) -> None:
    async def work(client: V1Client) -> None:
        stream = client.generate(ask("same"))
        await anext(stream)
        with pytest.raises(RequestError, match="in use"):
            await collect(client, ask("same"))
        await stream.aclose()
        await collect(client, ask("same"))

    with_shared_client(work)


def test_too_many_waiting_are_told_to_come_back() -> None:
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, max_num_seqs=2, max_num_waiting=3))

    async def work(client: V1Client) -> None:
        results = await asyncio.gather(
            *(collect(client, ask(f"r{i}", max_tokens=40)) for i in range(12)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, OverloadedError)]
        served = [result for result in results if isinstance(result, RequestOutput)]
        assert refused and len(served) >= 5 and len(refused) + len(served) == 12

    with_client(work, config)


def test_killing_the_engine_ends_every_stream_at_once(odd: Odd) -> None:
    async def work(client: V1Client) -> None:
        tasks = [asyncio.create_task(collect(client, ask(f"r{i}", max_tokens=50))) for i in range(20)]
        await asyncio.sleep(0.2)  # eight run, twelve wait
        os.kill(client.engine_pid, signal.SIGSTOP)
        stats = asyncio.create_task(client.stats())
        await asyncio.sleep(0.05)
        started = time.monotonic()
        os.kill(client.engine_pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, stats, return_exceptions=True)
        assert time.monotonic() - started < 2.0
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert client.dead
        with pytest.raises(EngineDeadError):
            await collect(client, ask("late"))

    with_client(work, odd("slow"))


def test_a_failed_step_ends_the_process_and_the_streams(odd: Odd) -> None:
    async def work(client: V1Client) -> None:
        started = time.monotonic()
        with pytest.raises(EngineDeadError):
            await collect(client, ask("r", max_tokens=50))
        assert time.monotonic() - started < 2.0
        assert client.dead

    with_client(work, odd("fails at step 4"))


def test_closing_ends_open_streams(odd: Odd) -> None:
    async def work(client: V1Client) -> None:
        task = asyncio.create_task(collect(client, ask("r", max_tokens=60)))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(EngineDeadError):
            await task

    with_client(work, odd("slow"))
