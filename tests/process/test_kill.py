"""Real processes are killed: nothing is orphaned, no stream hangs, SIGTERM cuts nobody off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.server import Server, wait_gone

LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 0}


def stream_events(server: Server, body: dict, started: threading.Event, events: list[str]) -> None:
    """Reads one stream to its end, or until the server is gone; keeps the ``data:`` payloads."""
    with (
        contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
        httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
                started.set()


def open_streams(server: Server, count: int, body: dict) -> list[tuple[threading.Thread, list[str]]]:
    """Starts streams and waits until each has produced something."""
    opened = []
    for _ in range(count):
        started, events = threading.Event(), []
        thread = threading.Thread(target=stream_events, args=(server, body, started, events), daemon=True)
        thread.start()
        opened.append((thread, events, started))
    for _, _, started in opened:
        assert started.wait(30)
    return [(thread, events) for thread, events, _ in opened]


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_kill_9_of_the_api_process_leaves_no_orphan(engine: str) -> None:
    with Server(engine) as server:
        open_streams(server, 4, LONG)
        children = server.children()
        assert children
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        for child in children:
            wait_gone(child, 1.0)


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_kill_9_of_the_engine_ends_every_stream_with_an_error(engine: str) -> None:
    with Server(engine) as server:
        streams = open_streams(server, 8, LONG)
        (engine_pid,) = server.children()
        killed = time.monotonic()
        os.kill(engine_pid, signal.SIGKILL)
        for thread, events in streams:
            thread.join(max(0.0, killed + 2 - time.monotonic()))
            assert not thread.is_alive(), "a stream was still open 2 s after the engine was killed"
            assert events[-1] == "[DONE]"
            error = json.loads(events[-2])["error"]
            assert error["type"] == "engine_dead_error"
        assert server.process.wait(5) == 1, "a server without an engine must exit, so that a supervisor can restart it"


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_sigterm_drains(engine: str) -> None:
    with Server(engine) as server:
        streams = open_streams(server, 4, {**LONG, "max_tokens": 200})
        server.process.send_signal(signal.SIGTERM)
        for thread, events in streams:
            thread.join(30)
            assert events[-1] == "[DONE]"
            last = json.loads(events[-2])["choices"][0]
            assert last["finish_reason"] == "length", "the stream was cut off"
        assert server.process.wait(5) == 0


def test_the_process_tree_listens_on_one_port_only() -> None:
    with Server("v1") as server:
        inodes = set()
        for pid in [server.pid, *server.children()]:
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(fd)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        listeners = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and columns[9] in inodes:
                    listeners.add(columns[1])
        assert listeners == {f"0100007F:{server.port:04X}"}
