"""SIGTERM: what is open ends well, what is new is refused, and a second signal means now."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.entrypoints.openai.server import bind
from engine.errors import StartupError
from tests.entrypoints.openai.running import request_bytes

ROOT = Path(__file__).resolve().parents[3]


class Process:
    """A fake server in a process of its own."""

    def __init__(self, drain_s: float, num_deltas: int, delay_s: float) -> None:
        arguments = map(str, (drain_s, num_deltas, delay_s))
        command = [sys.executable, "-m", "tests.entrypoints.openai.fake_server", *arguments]
        self.popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())

    def open_stream(self, body: dict[str, object] | None = None) -> socket.socket:
        """Connects and waits for the first event."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        document = {"prompt": "hi", "stream": True, "max_tokens": 8, **(body or {})}
        connection.sendall(request_bytes("/v1/completions", json.dumps(document).encode()))
        return connection

    def get(self, path: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request_bytes(path, b"", method="GET"))
            return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.popen.kill()
        process.popen.wait()
        assert process.popen.stdout is not None
        process.popen.stdout.close()


def rest(connection: socket.socket) -> str:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_open_streams_finish_and_new_requests_are_refused(processes: list[Process]) -> None:
    server = Process(drain_s=20, num_deltas=20, delay_s=0.05)
    processes.append(server)
    stream = server.open_stream()
    stream.recv(1)
    server.popen.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert b" 200 " in server.get("/health/live").splitlines()[0]
    ready = server.get("/health/ready")
    assert b" 503 " in ready.splitlines()[0] and b'"draining"' in ready
    refused = rest(server.open_stream())
    assert " 503 " in refused.splitlines()[0] and "retry-after: 1" in refused and '"draining"' in refused
    text = rest(stream)
    assert '"finish_reason":"stop"' in text and text.count("data: [DONE]") == 1 and "error" not in text
    assert server.popen.wait(5) == 0


def test_the_deadline_ends_streams_by_an_error_event(processes: list[Process]) -> None:
    server = Process(drain_s=0.3, num_deltas=100_000, delay_s=0.02)
    processes.append(server)
    stream = server.open_stream()
    stream.recv(1)
    waiting = server.open_stream({"stream": False})
    time.sleep(0.1)
    began = time.monotonic()
    server.popen.send_signal(signal.SIGTERM)
    events = [line for line in rest(stream).splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]" and json.loads(events[-2][6:])["error"]["code"] == "draining"
    assert '"finish_reason":"' not in "".join(events)
    answer = rest(waiting)
    assert " 503 " in answer.splitlines()[0] and "retry-after" in answer
    assert server.popen.wait(5) == 0
    assert 0.3 <= time.monotonic() - began < 2.3


def test_a_second_signal_does_not_wait(processes: list[Process]) -> None:
    server = Process(drain_s=60, num_deltas=100_000, delay_s=0.02)
    processes.append(server)
    stream = server.open_stream()
    stream.recv(1)
    server.popen.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert server.popen.poll() is None
    began = time.monotonic()
    server.popen.send_signal(signal.SIGTERM)
    text = rest(stream)
    assert text.count("data: [DONE]") == 1 and '"error"' in text
    assert server.popen.wait(5) == 0 and time.monotonic() - began < 2


def test_a_reader_that_does_not_read_cannot_hold_up_the_end(processes: list[Process]) -> None:
    server = Process(drain_s=0.2, num_deltas=200_000, delay_s=0)
    processes.append(server)
    stream = server.open_stream({"return_token_ids": True})
    time.sleep(0.5)
    began = time.monotonic()
    server.popen.send_signal(signal.SIGTERM)
    server.popen.wait(8)
    assert time.monotonic() - began < 5
    stream.close()


def test_an_idle_server_ends_at_once(processes: list[Process]) -> None:
    server = Process(drain_s=60, num_deltas=1, delay_s=0)
    processes.append(server)
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(3) == 0
        assert idle.recv(1) == b""


def test_a_port_in_use_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartupError, match=rf"Port {port} is in use.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "\udcff"])
def test_an_address_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(StartupError, match=r"--host 127\.0\.0\.1"):
        bind(host, 0)


def test_ipv6_addresses_can_be_bound() -> None:
    with bind("::1", 0) as listener:
        assert listener.family == socket.AF_INET6
