"""The smoke benchmark's arithmetic, its words, and how it starts its children."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks import provenance, smoke
from benchmarks.smoke_child import ChildReport
from benchmarks.stream_stats import Spread, Stream, ms_per_token, output_tokens_per_s, overlap, spread, ttft_ms

TWO_THEN_THREE = Stream(10.0, ((10.5, 2), (11.0, 1), (11.7, 2)))


def test_figures_of_a_stream() -> None:
    assert TWO_THEN_THREE.num_tokens == 5
    assert ttft_ms(TWO_THEN_THREE) == pytest.approx(500)
    # The two tokens of the first arrival cost no time after it: three tokens in 1.2 s.
    assert ms_per_token(TWO_THEN_THREE) == pytest.approx(400)
    assert ms_per_token(Stream(0.0, ((1.0, 4),))) is None


def test_throughput_runs_from_the_first_submission_to_the_last_token() -> None:
    late = Stream(12.0, ((13.0, 1), (20.0, 4)))
    assert output_tokens_per_s([late, TWO_THEN_THREE]) == pytest.approx(10 / (20 - 10))


def test_spread_and_overlap() -> None:
    assert spread([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 4)
    high, touching, around, below = Spread(4, 3, 5, 4), Spread(2, 1, 3, 4), Spread(2, 1, 9, 4), Spread(2, 1, 2.9, 4)
    assert overlap(touching, high) and overlap(around, high)
    assert not overlap(below, high) and not overlap(high, below)


def report(engine: str, speed: float, start_s: float = 1.0, token: int = 7) -> ChildReport:
    """One batch of 8 streams; together they make ``speed`` tokens a second for two seconds."""
    count = speed * 2 / 8
    stream = Stream(0.0, ((0.1, 1), (2.0, int(count) - 1)))
    return ChildReport(engine, start_s, [[stream] * 8], [[token]] * 8)


def test_the_table_and_the_verdict() -> None:
    reports = {
        "v0": [report("v0", 100, 2.0), report("v0", 120, 3.0)],
        "v1": [report("v1", 200, 1.0), report("v1", 240, token=8)],
    }
    summaries = {engine: smoke.summarise(reports[engine]) for engine in smoke.ENGINES}
    assert summaries["v0"]["output_tokens_per_s"] == Spread(110, 100, 120, 2)
    assert summaries["v0"]["ttft_ms"].median == pytest.approx(100)
    assert summaries["v0"]["ms_per_token"].high == pytest.approx(1900 / 24)
    lines = smoke.table(summaries).splitlines()
    assert lines[1].split() == ["V0", "110", "(100", "-", "120)", "100", "72.3", "2.5"]
    assert lines[2].split()[:2] == ["V1", "220"]
    assert smoke.comparison(summaries).startswith("V1/V0: 2.00 x") and "fewer than 4" in smoke.comparison(summaries)
    assert smoke.agreement(reports).startswith("Same tokens from both engines in 8 of 8")
    summaries["v0"]["output_tokens_per_s"] = Spread(110, 100, 120, 4)
    summaries["v1"]["output_tokens_per_s"] = Spread(115, 90, 119, 4)
    assert "no difference" in smoke.comparison(summaries)
    summaries["v1"]["output_tokens_per_s"] = Spread(125, 121, 129, 4)
    assert "do not overlap" in smoke.comparison(summaries)


def test_one_token_a_chat_has_no_time_between_tokens() -> None:
    lone = ChildReport("v0", 1.0, [[Stream(0.0, ((0.1, 1),))]], [[7]])
    assert "-" in smoke.table({"v0": smoke.summarise([lone])}).splitlines()[1].split()


def test_engines_take_turns_each_in_a_child_that_alone_sees_the_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen: list[str] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> object:
        assert command[:3] == [sys.executable, "-m", "benchmarks.smoke_child"] and "PATH" in env
        chosen.append(env["ENGINE_V1"])
        made = report(f"v{env['ENGINE_V1']}", 100)
        return SimpleNamespace(stdout=msgspec.json.encode(made))

    monkeypatch.setattr(smoke, "RESULTS", tmp_path)
    monkeypatch.setattr(smoke, "ROOT", tmp_path)
    monkeypatch.setattr(smoke, "provenance", lambda command: {"command": command})
    monkeypatch.setattr(smoke.subprocess, "run", run)
    monkeypatch.setenv("ENGINE_V1", "sideways")
    assert smoke.main(["--rounds", "2", "--save"]) == 0
    assert chosen == ["0", "1", "0", "1"]
    (saved,) = tmp_path.iterdir()
    result = json.loads(saved.read_text())
    assert result["summary"]["v0"]["output_tokens_per_s"] == {"median": 100.0, "low": 100.0, "high": 100.0, "count": 2}
    assert len(result["reports"]["v1"]) == 2 and result["command"].endswith("--max-tokens 64 --save")
    assert "V1/V0: 1.00 x" in capsys.readouterr().out


def test_a_child_that_fails_decides_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> object:
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(smoke.subprocess, "run", run)
    assert smoke.main([]) == 2


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.smoke", "--model", str(tmp_path / "nothing.gguf")]
    done = subprocess.run(command, cwd=provenance.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "nothing.gguf" in done.stderr and len(done.stderr.splitlines()) == 1


def test_provenance_names_machine_software_and_commit() -> None:
    facts = provenance.provenance("the command")
    assert facts["command"] == "the command"
    assert facts["hardware"]["cores"] >= 1 and facts["hardware"]["memory_gib"] > 0 and facts["hardware"]["cpu"]
    assert facts["software"]["python"] == sys.version.split()[0] and facts["software"]["torch"]
    assert facts["commit"] is None or len(facts["commit"]) == 40


def test_cpu_model() -> None:
    assert provenance._cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n") == "A CPU @ 2 GHz"
    assert provenance._cpu_model("processor\t: 0\n")
