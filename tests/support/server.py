"""A real server for tests: ``python -m engine.serve`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Server:
    """A served model; use as a context manager. ``engine`` is "v0" or "v1"."""

    def __init__(self, engine: str, *flags: str) -> None:
        self.engine = engine
        self.started_at = time.monotonic()
        self.log = Path(os.environ.get("PYTEST_TMP", "/tmp")) / f"engine-test-{os.getpid()}-{time.time_ns()}.log"
        self._log_file = self.log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.serve", "--port", "0", *flags],
            cwd=ROOT,
            env={**os.environ, "ENGINE_V1": "1" if engine == "v1" else "0"},
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = READY.search(line)
            if found:
                self.port = int(found[1])
                break
        else:
            raise AssertionError(f"the server ended ({self.process.wait()}):\n{self.log.read_text()}")
        self.ready_s = time.monotonic() - self.started_at
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log_file.close()
        self.log.unlink(missing_ok=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """Pids of all descendants that are alive."""
        found, todo = [], [self.pid]
        while todo:
            parent = todo.pop()
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                kids = [int(pid) for pid in task.read_text().split()]
                found += kids
                todo += kids
        return found

    def get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=30) as answer:
            body = answer.read().decode()
        return json.loads(body) if answer.headers["content-type"].startswith("application/json") else body

    def post(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, Any]:
        """Status and decoded JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str) -> float:
        """The sum of all samples of one metric."""
        lines = [line for line in self.get("/metrics").splitlines() if re.match(rf"{name}(\{{|\s)", line)]
        assert lines, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def wait_gone(pid: int, deadline_s: float) -> float:
    """Waits for the end of a process; returns how long it took."""
    start = time.monotonic()
    while not gone(pid):
        assert time.monotonic() - start < deadline_s, f"process {pid} is still alive after {deadline_s} s"
        time.sleep(0.005)
    return time.monotonic() - start
