"""64 concurrent streams, 20 of which hang up half way."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.support.server import Server
from tests.support.texts import passage

STREAMS, LEAVERS, TOKENS = 64, 20, 64


async def one(client: httpx.AsyncClient, number: int) -> str:
    """Reads a stream; every third of the first sixty leaves half way. Returns its finish reason."""
    body = {
        "prompt": passage(number, 40 + number),
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    leaves = number % 3 == 0 and number < 3 * LEAVERS
    events = 0
    last = ""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            events += 1
            if leaves and events == TOKENS // 4:
                return "left"
            if line == "data: [DONE]":
                return last
            if '"finish_reason":"' in line:
                last = line.split('"finish_reason":"')[1].split('"')[0]
    return "cut"


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_64_streams_20_hang_up(engine: str) -> None:
    with Server(engine) as server:
        limits = httpx.Limits(max_connections=STREAMS)

        async def run() -> list[str]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
                return await asyncio.gather(*(one(client, number) for number in range(STREAMS)))

        outcomes = asyncio.run(run())
        assert outcomes.count("length") == STREAMS - LEAVERS
        assert outcomes.count("left") == LEAVERS
        deadline = time.monotonic() + 3
        while server.metric("engine_num_requests_running") or server.metric("engine_num_requests_waiting"):
            assert time.monotonic() < deadline, "the streams that hung up are still running"
            time.sleep(0.05)
        assert server.metric("engine_slots_used") == 0
        assert server.metric("engine_kv_cache_blocks_free") == server.metric("engine_kv_cache_blocks")
        assert server.metric("engine_requests_aborted_total") == LEAVERS
