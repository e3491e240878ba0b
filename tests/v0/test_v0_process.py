"""``V0Client`` and its engine process, with a real child and a tiny dummy model."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.api import GenerateRequest, RequestOutput
from engine.api.outputs import merge
from engine.errors import EngineDeadError, ModelError, OverloadedError, RequestError, StartupError
from engine.v0.executor.uniproc import UniprocExecutor
from engine.v0.llm_engine.client import V0Client
from engine.v0.llm_engine.llm_engine import LLMEngine
from engine.v0.llm_engine.messages import AbortRequest, AddRequest, GetStats
from tests.v0.helpers import greedy, make_config, request, run_to_end, token_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = greedy(200, ignore_eos=True)
#: Room for all that the tests below run at once.
CONFIG = make_config(num_blocks=1024, block_size=16, max_num_seqs=64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[V0Client]:
    it = V0Client(CONFIG)
    await it.start()
    yield it
    await it.close()


async def collect(client: V0Client, item: GenerateRequest) -> RequestOutput:
    total = RequestOutput(item.request_id, [], [], finished=False)
    async for output in client.generate(item):
        assert not total.finished
        assert output.prompt_token_ids == item.prompt_token_ids
        merge(total, output)
    assert total.finished
    return total


async def wait_idle(client: V0Client) -> None:
    deadline = time.monotonic() + 5
    while (stats := await client.stats()).num_running + stats.num_waiting:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert stats.kv_blocks_free == stats.kv_blocks_total


async def test_streams_carry_the_same_tokens_as_the_engine_in_this_process(client: V0Client) -> None:
    requests = [request(f"s{i}", range(3 + i, 20 + i), greedy(30, ignore_eos=True)) for i in range(20)]
    engine = LLMEngine(CONFIG, UniprocExecutor(CONFIG), tokenizer=None)
    for item in requests:
        engine.add_request(item)
    here = run_to_end(engine)
    there = await asyncio.gather(*(collect(client, item) for item in requests))
    assert [output.outputs[0].token_ids for output in there] == [token_ids(here[item.request_id]) for item in requests]
    await wait_idle(client)


async def test_leaving_and_aborting_free_everything(client: V0Client) -> None:
    aborted = (await client.stats()).requests_aborted
    stream = client.generate(request("left", [5], LONG))
    await anext(stream)
    await stream.aclose()
    cancelled = asyncio.create_task(collect(client, request("cancelled", [6], LONG)))
    await asyncio.sleep(0.02)
    cancelled.cancel()
    asked = asyncio.create_task(collect(client, request("asked", [7], LONG)))
    await asyncio.sleep(0.02)
    await client.abort("asked")
    await client.abort("nobody")
    assert (await asked).outputs[0].finish_reason == "abort"
    await wait_idle(client)
    assert (await client.stats()).requests_aborted == aborted + 3
    assert client._streams == {} and client._stats_calls == {}


async def test_a_bad_request_is_its_own_error(client: V0Client) -> None:
    pid = client.engine_pid
    good = asyncio.create_task(collect(client, request("good", [5], greedy(20, ignore_eos=True))))
    for prompt in ([], [128], [5] * 300):
        with pytest.raises(RequestError):
            await collect(client, request("bad", prompt, greedy(4)))
    assert len((await good).outputs[0].token_ids) == 20
    assert client.engine_pid == pid and not client.dead


async def test_the_engine_does_not_rely_on_the_clients_checks(
    client: V0Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_checked", AddRequest)
    with pytest.raises(RequestError, match="vocabulary") as caught:
        await collect(client, request("bad", [10**6], greedy(4)))
    assert caught.value.param == "prompt"
    assert client._streams == {}


async def test_only_a_reader_who_leaves_sends_an_abort(client: V0Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    send = client._link.send

    async def record(message: AddRequest | AbortRequest | GetStats) -> None:
        sent.append(message)
        await send(message)

    monkeypatch.setattr(client._link, "send", record)
    await collect(client, request("whole", [5], greedy(2)))
    monkeypatch.setattr(client, "_checked", AddRequest)
    with pytest.raises(RequestError):
        await collect(client, request("refused", [], greedy(2)))
    assert [type(message) for message in sent] == [AddRequest, AddRequest]


async def test_a_message_that_cannot_be_handled_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    it = V0Client(CONFIG)
    await it.start()
    monkeypatch.setattr(it, "_deliver", lambda output: 1 / 0)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(collect(it, request("r", [5], LONG)), 2)
    assert it.dead
    await it.close()


async def test_an_id_in_use_is_refused(client: V0Client) -> None:
    stream = client.generate(request("twice", [5], LONG))
    await anext(stream)
    with pytest.raises(RequestError, match="in use"):
        await collect(client, request("twice", [6], LONG))
    assert not (await anext(stream)).finished
    await stream.aclose()


async def test_one_request_too_many_is_overload() -> None:
    it = V0Client(make_config(max_num_seqs=1, max_num_waiting=1))
    await it.start()
    try:
        streams = [it.generate(request(str(i), [5 + i], LONG)) for i in range(3)]
        first, second = (asyncio.ensure_future(anext(stream)) for stream in streams[:2])
        await first
        with pytest.raises(OverloadedError, match="try again"):
            await anext(streams[2])
        await streams[0].aclose()
        await second
        await streams[1].aclose()
    finally:
        await it.close()


async def test_kill_9_ends_every_stream_once_and_soon() -> None:
    it = V0Client(CONFIG)
    await it.start()
    streams = [asyncio.create_task(collect(it, request(str(i), [5 + i], LONG))) for i in range(8)]
    await asyncio.sleep(0.1)
    assert it.engine_pid is not None
    os.kill(it.engine_pid, signal.SIGKILL)
    killed = time.monotonic()
    errors = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 2)
    assert time.monotonic() - killed < 1
    assert [type(error) for error in errors] == [EngineDeadError] * 8
    assert it.dead and "SIGKILL" in await asyncio.wait_for(it.wait_dead(), 1)
    with pytest.raises(EngineDeadError):
        await collect(it, request("late", [5], LONG))
    with pytest.raises(EngineDeadError):
        await it.stats()
    await it.close()
    await it.close()


async def test_close_ends_open_streams() -> None:
    it = V0Client(CONFIG)
    await it.start()
    stream = asyncio.create_task(collect(it, request("open", [5], LONG)))
    await asyncio.sleep(0.05)
    await it.close()
    with pytest.raises(EngineDeadError, match="closed"):
        await asyncio.wait_for(stream, 1)


async def test_a_model_that_cannot_be_loaded_is_one_clear_error() -> None:
    source = dataclasses.replace(CONFIG.model.source, files=("/nowhere/model.safetensors",))
    model = dataclasses.replace(CONFIG.model, load_format="safetensors", source=source)
    it = V0Client(dataclasses.replace(CONFIG, model=model))
    with pytest.raises((StartupError, ModelError)) as caught:
        await it.start()
    assert "\n" not in str(caught.value)
    await it.close()
