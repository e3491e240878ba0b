"""engine/api/mailbox.py: one unread item, nothing lost, the error last."""

import asyncio

import pytest

from engine.api import CompletionOutput, Logprob, RequestOutput
from engine.api.mailbox import Mailbox
from engine.errors import EngineDeadError, RequestError


def delta(tokens: list[int], text: str, finished: bool = False) -> RequestOutput:
    reason = "length" if finished else None
    logprobs = [{token: Logprob(-1.0, 1)} for token in tokens]
    output = CompletionOutput(0, text, tokens, logprobs=logprobs, finish_reason=reason)
    return RequestOutput("r", [9], [output], finished)


def test_unread_deltas_are_merged_in_order() -> None:
    async def run() -> None:
        box = Mailbox()
        box.put(delta([1], "a"))
        box.put(delta([2, 3], "bc"))
        box.put(delta([4], "d", finished=True))
        got = await box.get()
        (output,) = got.outputs
        assert (output.text, output.token_ids, output.finish_reason) == ("abcd", [1, 2, 3, 4], "length")
        assert [list(position) for position in output.logprobs or []] == [[1], [2], [3], [4]]
        assert got.finished and got.prompt_token_ids == [9]

    asyncio.run(run())


def test_a_waiting_reader_gets_each_delta_once() -> None:
    async def run() -> None:
        box = Mailbox()
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        box.put(delta([1], "a"))
        assert (await reader).outputs[0].token_ids == [1]
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        assert not reader.done()
        box.put(delta([2], "b"))
        box.put(delta([3], "c"))  # before the woken reader runs
        assert (await reader).outputs[0].token_ids == [2, 3]

    asyncio.run(run())


def test_the_error_comes_after_what_is_unread() -> None:
    async def run() -> None:
        box = Mailbox()
        box.put(delta([1], "a"))
        box.fail(EngineDeadError())
        box.fail(RequestError("too late to matter"))
        assert (await box.get()).outputs[0].text == "a"
        with pytest.raises(EngineDeadError):
            await box.get()

    asyncio.run(run())


def test_the_error_wakes_a_waiting_reader() -> None:
    async def run() -> None:
        box = Mailbox()
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        box.fail(EngineDeadError())
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(reader, 1)

    asyncio.run(run())


def test_a_cancelled_reader_loses_nothing() -> None:
    async def run() -> None:
        box = Mailbox()
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        reader.cancel()
        box.put(delta([1], "a"))
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert (await box.get()).outputs[0].token_ids == [1]

    asyncio.run(run())
