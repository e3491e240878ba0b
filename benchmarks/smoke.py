"""Both engines in a minute: ``python -m benchmarks.smoke``, or ``make bench-smoke``.

The same 8 chats at once, greedy, with a fixed number of output tokens. Engines take turns, each
time in a process of its own, so that a machine that slows down or is shared slows both. It is a
first look, not a verdict: few prompts, few rounds, a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.provenance import ROOT, provenance
from benchmarks.smoke_child import QUESTIONS, ChildReport
from benchmarks.stream_stats import Spread, ms_per_token, output_tokens_per_s, overlap, spread, ttft_ms
from engine.config import EngineArgs
from engine.select import VARIABLE

ENGINES = ("v0", "v1")
#: With fewer measurements of an engine than this, their range means nothing.
ENOUGH = 4
RESULTS = ROOT / "benchmarks" / "results"

#: One figure of an engine -> its spread over all batches of all rounds.
Summary = dict[str, Spread]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and saves if asked to; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.smoke", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default=EngineArgs().model, help="as --model of the server")
    parser.add_argument("--rounds", type=_count, default=2, help="times that each engine is started")
    parser.add_argument("--batches", type=_count, default=2, help="measurements a start")
    parser.add_argument("--max-tokens", type=_count, default=64, help="output tokens of each chat")
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results/")
    arguments = parser.parse_args(argv)
    print(f"{len(QUESTIONS)} concurrent chats of {arguments.max_tokens} output tokens, greedy, {arguments.model}")
    try:
        reports = _run_rounds(arguments)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    summaries = {engine: summarise(reports[engine]) for engine in ENGINES}
    print("\n" + table(summaries) + "\n\n" + comparison(summaries) + "\n" + agreement(reports))
    if arguments.save:
        print(f"Saved {_save(reports, summaries, arguments).relative_to(ROOT)}")
    return 0


def summarise(reports: Sequence[ChildReport]) -> Summary:
    """The figures of one engine. A batch's latencies are the medians of its streams."""
    batches = [batch for report in reports for batch in report.batches]
    gaps = [[gap for stream in batch if (gap := ms_per_token(stream)) is not None] for batch in batches]
    summary = {
        "output_tokens_per_s": spread([output_tokens_per_s(batch) for batch in batches]),
        "ttft_ms": spread([median(map(ttft_ms, batch)) for batch in batches]),
        "start_s": spread([report.start_s for report in reports]),
    }
    if all(gaps):
        summary["ms_per_token"] = spread([median(gap) for gap in gaps])
    return summary


def table(summaries: dict[str, Summary]) -> str:
    """One line an engine: medians, and for throughput the smallest and largest."""
    lines = ["engine   output tok/s (min - max)   TTFT ms   ms/token   start s"]
    for engine, summary in summaries.items():
        speed = summary["output_tokens_per_s"]
        speeds = f"{speed.median:.0f} ({speed.low:.0f} - {speed.high:.0f})"
        gap = f"{summary['ms_per_token'].median:.1f}" if "ms_per_token" in summary else "-"
        lines.append(
            f"{engine.upper():<6} {speeds:>26} {summary['ttft_ms'].median:>9.0f} {gap:>10}"
            f" {summary['start_s'].median:>9.1f}"
        )
    return "\n".join(lines)


def comparison(summaries: dict[str, Summary]) -> str:
    """The ratio of throughputs, and whether the measurements tell the engines apart at all."""
    v0, v1 = (summaries[engine]["output_tokens_per_s"] for engine in ENGINES)
    ratio = f"V1/V0: {v1.median / v0.median:.2f} x output tokens per second"
    if min(v0.count, v1.count) < ENOUGH:
        return f"{ratio}; fewer than {ENOUGH} measurements of each say no more than that."
    if overlap(v0, v1):
        return f"{ratio}; the ranges overlap, so this run shows no difference."
    return f"{ratio}; the ranges do not overlap."


def agreement(reports: dict[str, list[ChildReport]]) -> str:
    """In how many chats both engines generated the same tokens."""
    pairs = zip(reports["v0"][0].token_ids, reports["v1"][0].token_ids, strict=True)
    same = sum(v0 == v1 for v0, v1 in pairs)
    return f"Same tokens from both engines in {same} of {len(QUESTIONS)} chats."


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _run_rounds(arguments: argparse.Namespace) -> dict[str, list[ChildReport]]:
    """V0, V1, V0, V1 ...; a line for each as it ends."""
    reports: dict[str, list[ChildReport]] = {engine: [] for engine in ENGINES}
    for number in range(1, arguments.rounds + 1):
        for engine in ENGINES:
            report = _run_child(engine, arguments)
            reports[engine].append(report)
            speeds = ", ".join(f"{output_tokens_per_s(batch):.0f}" for batch in report.batches)
            print(f"round {number} of {arguments.rounds}, {engine.upper()}: {speeds} tok/s", flush=True)
    return reports


def _run_child(engine: str, arguments: argparse.Namespace) -> ChildReport:
    command = [sys.executable, "-m", "benchmarks.smoke_child", "--model", arguments.model]
    command += ["--batches", str(arguments.batches), "--max-tokens", str(arguments.max_tokens)]
    environment = {**os.environ, VARIABLE: "1" if engine == "v1" else "0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=ChildReport)


def _save(reports: dict[str, list[ChildReport]], summaries: dict[str, Summary], arguments: argparse.Namespace) -> Path:
    """Writes the result, its raw measurements included, and returns the path."""
    options = {name: value for name, value in vars(arguments).items() if name != "save"}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    result: dict[str, Any] = {
        **provenance(f"python -m benchmarks.smoke {flags} --save"),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "workload": {"concurrent_chats": len(QUESTIONS), **options},
        "summary": {e: {name: asdict(value) for name, value in s.items()} for e, s in summaries.items()},
        "comparison": comparison(summaries),
        "agreement": agreement(reports),
        "reports": msgspec.to_builtins(reports),
    }
    path = RESULTS / f"smoke-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
