"""Hundreds of malformed bodies against a real server, while others stream.

Each gets an OpenAI-shaped 4xx; the streams beside them are byte-identical to a run without
them; the engine process is the same one afterwards, and idle.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tests.entrypoints.openai.malformed import Malformed, malformed_requests
from tests.support.server import Server
from tests.support.texts import passage

NEIGHBOURS = 4


def neighbour(server: Server, number: int) -> list[Any]:
    """One stream's tokens, bytes of text and end: everything but its id and time."""
    body = {
        "prompt": passage(number, 30),
        "max_tokens": 150,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": number,
        "logprobs": 1,
        "stream": True,
    }
    tokens: list[Any] = []
    text = ""
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = httpx.Response(200, content=line[6:]).json()["choices"][0]
                tokens += choice["logprobs"]["tokens"] if choice["logprobs"] else []
                text += choice["text"]
                finish = choice["finish_reason"]
    return [*tokens, text.encode(), finish]


def neighbours(server: Server, beside: Any = None) -> list[list[Any]]:
    """Runs all neighbour streams, and ``beside`` while they run."""
    results: list[list[Any]] = [[] for _ in range(NEIGHBOURS)]

    def work(number: int) -> None:
        results[number] = neighbour(server, number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(NEIGHBOURS)]
    for thread in threads:
        thread.start()
    if beside is not None:
        beside()
    for thread in threads:
        thread.join(120)
    return results


def refused(client: httpx.Client, case: Malformed) -> str | None:
    """What is wrong with the answer to a malformed request; ``None`` if nothing is."""
    answer = client.post(case.path, content=case.body, headers={"content-type": "application/json"})
    if not 400 <= answer.status_code < 500:
        return f"{case.name}: status {answer.status_code}"
    error = answer.json().get("error", {})
    if set(error) != {"message", "type", "param", "code"}:
        return f"{case.name}: not OpenAI's shape"
    if case.param is not None and error["param"] != case.param:
        return f"{case.name}: param {error['param']}"
    return None


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_malformed_bodies_harm_nobody(engine: str) -> None:
    with Server(engine, "--dtype", "float32", "--max-model-len", "1024") as server:
        limits = server.get("/v1/engine")["model_limits"]
        cases = list(malformed_requests(limits["vocab_size"], limits["max_model_len"]))
        assert len(cases) >= 300
        pids = server.children()
        undisturbed = neighbours(server)
        problems: list[str | None] = []

        def attack() -> None:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                problems.extend(refused(client, case) for case in cases)

        disturbed = neighbours(server, attack)
        assert [problem for problem in problems if problem] == []
        assert all(len(tokens) == 152 for tokens in undisturbed)
        assert disturbed == undisturbed
        assert server.children() == pids
        deadline = time.monotonic() + 2
        while server.metric("engine_num_requests_running"):
            assert time.monotonic() < deadline
        assert server.metric("engine_slots_used") == 0
