"""From process start to the first token, and the memory it takes: ``python -m benchmarks.cold_start``.

Starts a real server of each engine in turn, asks for one token, then for 32 concurrent streams,
and sums the resident memory of the process tree after each. ``--save`` writes the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, provenance

RESULT = ROOT / "benchmarks" / "results" / "cold_start.json"
STREAMS, TOKENS = 32, 128
PROMPT = "The capital of France is a city of " * 25  # about 200 tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {"v0": [], "v1": []}
    for _ in range(arguments.rounds):
        for engine, measured in rows.items():
            measured.append(measure(engine))
            print(engine, measured[-1], flush=True)
    summary = {
        engine: {key: statistics.median(row[key] for row in measured) for key in measured[0]}
        for engine, measured in rows.items()
    }
    print(json.dumps(summary, indent=1))
    if arguments.save:
        command = f"python -m benchmarks.cold_start --rounds {arguments.rounds} --save"
        RESULT.write_text(json.dumps({**provenance(command), "summary": summary, "rows": rows}, indent=1) + "\n")


def measure(engine: str) -> dict[str, float]:
    """One server's life; seconds and MiB."""
    started = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "engine.serve", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "ENGINE_V1": str(int(engine == "v1")), "ENGINE_LOG_LEVEL": "WARNING"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2]
        ready = time.perf_counter()
        complete(url, "Hello", 1)
        first_token = time.perf_counter()
        idle = resident_mib(server.pid)
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(lambda number: complete(url, f"{number} {PROMPT}", TOKENS), range(STREAMS)))
        return {
            "ready_s": ready - started,
            "first_token_s": first_token - started,
            "resident_mib": idle,
            f"resident_after_{STREAMS}_streams_mib": resident_mib(server.pid),
        }
    finally:
        server.terminate()
        server.wait(30)


def complete(url: str, prompt: str, max_tokens: int) -> Any:
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def resident_mib(pid: int) -> float:
    """Resident memory of a process and all its descendants."""
    total = 0.0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            total += int(line.split()[1]) / 1024
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        total += sum(resident_mib(int(child)) for child in task.read_text().split())
    return total


if __name__ == "__main__":
    main()
