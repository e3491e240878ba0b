"""Limits and hang-ups on real sockets: headers, bodies, time, connections, readers, leavers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.entrypoints.openai.limits import HttpLimits
from tests.entrypoints.openai.fakes import FakeClient, Script
from tests.entrypoints.openai.running import RunningServer, read_all, request_bytes

GOOD = json.dumps({"prompt": "hi", "max_tokens": 4}).encode()
URL = "/v1/completions"
ENDLESS = Script(texts=["x" * 10] * 1_000_000, delay_s=0.005)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error_of(answer: bytes) -> dict[str, str]:
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]


def read_one(connection: socket.socket) -> bytes:
    """One answer with a content-length; the connection stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def until(condition: Callable[[], bool], seconds: float = 3) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Headers


@pytest.mark.parametrize("piece", [1 << 20, 1000])
def test_headers_over_the_limit_are_refused_whatever_the_pieces(piece: int) -> None:
    with RunningServer(FakeClient()) as server, server.connect() as connection:
        data = request_bytes(URL, GOOD, "x-long: " + "a" * 20_000)
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])
            time.sleep(0.001)
        answer = read_all(connection)
        assert status_of(answer) == 431 and "16384 bytes" in error_of(answer)["message"]


def test_an_endless_header_is_cut_off_and_does_not_stay_in_memory() -> None:
    def resident_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    with RunningServer(FakeClient()) as server, server.connect() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nx: ")
        before, began, piece = resident_mib(), time.monotonic(), b"a" * 65536
        with pytest.raises(OSError):
            while time.monotonic() - began < 5:
                connection.sendall(piece)
        assert time.monotonic() - began < 3 and resident_mib() - before < 20


def test_the_url_counts_as_header() -> None:
    with RunningServer(FakeClient()) as server:
        assert status_of(server.raw(request_bytes("/" + "a" * 20_000, b"", method="GET"))) == 431


def test_too_many_headers() -> None:
    with RunningServer(FakeClient()) as server:
        ok = [f"x-{i}: 1" for i in range(96)]
        assert status_of(server.raw(request_bytes(URL, GOOD, *ok))) == 200
        assert status_of(server.raw(request_bytes(URL, GOOD, *ok, "x-1: 1", "x-2: 1"))) == 431


def test_trailers_and_chunk_extensions_count_too() -> None:
    head = f"POST {URL} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(GOOD), GOOD)
    with RunningServer(FakeClient()) as server:
        trailers = b"0\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(500)) + b"\r\n"
        assert status_of(server.raw(head.encode() + chunk + trailers)) in (0, 431)
        assert not server.client.requests
        with server.connect() as connection:
            connection.sendall(head.encode() + b"5;")
            with pytest.raises(OSError):
                for _ in range(1000):
                    connection.sendall(b"e" * 1000)
                    time.sleep(0.001)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"CONNECT evil:443 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_400_in_our_shape(data: bytes) -> None:
    with RunningServer(FakeClient()) as server:
        answer = server.raw(data)
        assert status_of(answer) == 400 and error_of(answer)["code"] == "invalid_http"


# Time


def test_slow_headers_end_the_connection() -> None:
    with RunningServer(FakeClient(), HttpLimits(header_timeout_s=0.3)) as server:
        with server.connect() as silent:
            assert read_all(silent) == b""
        with server.connect() as slow:
            slow.sendall(b"POST / HT")
            answer = read_all(slow)
            assert status_of(answer) == 408 and error_of(answer)["code"] == "timeout"


def test_a_connection_between_requests_is_not_safe_from_the_timer() -> None:
    with RunningServer(FakeClient(), HttpLimits(header_timeout_s=0.3)) as server, server.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n")
        assert b'"live"' in read_one(connection)
        connection.sendall(b"\r\n\r\nGET /he")
        assert status_of(read_all(connection)) == 408


def test_slow_bodies_are_answered_408() -> None:
    with RunningServer(FakeClient(), HttpLimits(body_timeout_s=0.3)) as server, server.connect() as connection:
        connection.sendall(request_bytes(URL, GOOD)[:-3])
        began = time.monotonic()
        answer = read_all(connection)
        assert status_of(answer) == 408 and time.monotonic() - began < 2


def test_idle_connections_are_closed() -> None:
    with RunningServer(FakeClient(), HttpLimits(keep_alive_s=1)) as server, server.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n")
        assert b'"live"' in read_one(connection)
        began = time.monotonic()
        assert connection.recv(1) == b"" and 0.5 < time.monotonic() - began < 3


# Bodies


def test_a_body_over_the_limit_is_refused_and_the_answer_arrives() -> None:
    with RunningServer(FakeClient(), HttpLimits(max_body_bytes=1000)) as server:
        for size in (1001, 30 << 20):
            answer = server.raw(request_bytes(URL, b" " * size))
            assert status_of(answer) == 413 and error_of(answer)["code"] == "body_too_large"
        with server.connect() as connection:
            connection.sendall(request_bytes(URL, b" " * 30_000_000).replace(b"connection: close\r\n", b""))
            assert status_of(read_all(connection)) == 413
        chunks = b"".join(b"100\r\n" + b" " * 256 + b"\r\n" for _ in range(10)) + b"0\r\n\r\n"
        head = request_bytes(URL, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        assert status_of(server.raw(head + chunks)) == 413
        assert status_of(server.raw(request_bytes(URL, GOOD.ljust(1000)))) == 200


@pytest.mark.parametrize(
    "header",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "multipart/form-data"],
)
def test_another_media_type_is_415(header: str) -> None:
    with RunningServer(FakeClient()) as server:
        data = request_bytes(URL, GOOD).replace(b"application/json", header.encode())
        assert status_of(server.raw(data)) == 415


def test_compressed_bodies_are_415() -> None:
    with RunningServer(FakeClient()) as server:
        assert status_of(server.raw(request_bytes(URL, GOOD, "content-encoding: gzip"))) == 415


def test_chunked_bodies_and_expect_continue_work() -> None:
    head = f"POST {URL} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-type: application/json\r\n"
    with RunningServer(FakeClient()) as server:
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD) + b"0\r\n\r\n"
        assert status_of(server.raw(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunks)) == 200
        with server.connect() as connection:
            connection.sendall(f"{head}expect: 100-continue\r\ncontent-length: {len(GOOD)}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(GOOD)
            assert status_of(read_all(connection)) == 200


def test_an_upgrade_is_ignored_or_refused_but_never_hung_on() -> None:
    """Java's client asks for HTTP/2 by default; ``curl --http2`` does too."""

    def upgrading(data: bytes) -> bytes:
        return data.replace(b"connection: close", b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c")

    with RunningServer(FakeClient()) as server:
        get = upgrading(b"GET /health/live HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")
        assert status_of(server.raw(get)) == 200
        answer = server.raw(upgrading(request_bytes(URL, GOOD)))
        assert status_of(answer) == 400 and "Upgrade" in error_of(answer)["message"]


# Connections


def test_one_connection_too_many_gets_503() -> None:
    with RunningServer(FakeClient(), HttpLimits(max_connections=2)) as server:
        with server.connect() as first, server.connect() as second, server.connect() as third:
            answer = read_all(third)
            assert status_of(answer) == 503 and b"retry-after" in answer
            for connection in (first, second):
                connection.sendall(request_bytes("/health/live", b"", method="GET"))
                assert status_of(read_all(connection)) == 200
        until(lambda: status_of(server.raw(request_bytes("/health/live", b"", method="GET"))) == 200)


def test_one_request_too_many_gets_503() -> None:
    with RunningServer(FakeClient(ENDLESS), HttpLimits(max_concurrent_requests=1)) as server:
        with server.connect() as connection:
            connection.sendall(request_bytes(URL, GOOD))
            until(lambda: server.lifecycle.in_flight == 1)
            answer = server.raw(request_bytes(URL, GOOD))
            assert status_of(answer) == 503 and error_of(answer)["code"] == "too_many_requests"
            assert b"retry-after" in answer
        until(lambda: server.lifecycle.in_flight == 0)


def test_a_second_request_before_the_first_answer_is_declined() -> None:
    script = Script(texts=["x"] * 20, delay_s=0.01)
    with RunningServer(FakeClient(script)) as server, server.connect() as connection:
        one = request_bytes(URL, GOOD).replace(b"connection: close\r\n", b"")
        connection.sendall(one + one * 50)
        answer = read_all(connection)
        assert answer.count(b"HTTP/1.1 ") == 1 and status_of(answer) == 200
        assert len(server.client.requests) == 1


def test_requests_one_after_another_share_a_connection() -> None:
    with RunningServer(FakeClient()) as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(request_bytes(URL, GOOD).replace(b"connection: close\r\n", b""))
            assert status_of(read_one(connection)) == 200


# Readers and leavers


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["hi", ["a", "b", "c"]])
def test_hanging_up_aborts_the_request(stream: bool, prompt: str | list[str]) -> None:
    body = json.dumps({"prompt": prompt, "stream": stream}).encode()
    with RunningServer(FakeClient(ENDLESS)) as server:
        connection = server.connect()
        connection.sendall(request_bytes(URL, body))
        expected = len(prompt) if isinstance(prompt, list) else 1
        until(lambda: len(server.client.running) == expected and server.client.num_deltas > 3)
        connection.close()
        until(lambda: not server.client.running, 1)
        assert len(server.client.aborted) == expected
        until(lambda: server.lifecycle.in_flight == 0, 1)


def test_hanging_up_before_the_first_token_aborts_the_request() -> None:
    with RunningServer(FakeClient(Script(texts=["x"], delay_s=60))) as server:
        connection = server.connect()
        connection.sendall(request_bytes(URL, json.dumps({"prompt": "a", "stream": True}).encode()))
        until(lambda: len(server.client.running) == 1)
        connection.close()
        until(lambda: len(server.client.aborted) == 1, 1)


def test_hanging_up_within_the_body_reaches_no_engine() -> None:
    with RunningServer(FakeClient()) as server:
        connection = server.connect()
        connection.sendall(request_bytes(URL, GOOD)[:-3])
        until(lambda: server.lifecycle.in_flight == 1)
        connection.close()
        until(lambda: server.lifecycle.in_flight == 0, 1)
        assert not server.client.requests


def test_a_slow_reader_holds_the_engine_back_and_is_cut_off() -> None:
    client = FakeClient(Script(texts=["x" * 1000] * 1_000_000))
    with RunningServer(client, HttpLimits(write_timeout_s=0.5)) as server:
        with server.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request_bytes(URL, json.dumps({"prompt": "a", "stream": True}).encode()))
            seen = [-1]

            def stuck() -> bool:
                seen.append(client.num_deltas)
                time.sleep(0.05)
                return seen[-1] == seen[-2] > 0

            until(stuck)
            assert seen[-1] < 20_000
            until(lambda: not client.running, 3)
        assert len(client.aborted) == 1


def test_a_failed_stream_is_never_a_clean_end_without_done() -> None:
    """The chunked body ends properly only behind ``[DONE]``."""
    client = FakeClient(Script(error=KeyError(), fail_at=2))
    with RunningServer(client) as server:
        answer = server.raw(request_bytes(URL, json.dumps({"prompt": "a", "stream": True}).encode()))
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and answer.count(b"[DONE]") == 1
