"""Start-up: fast, small, and one clear line when it cannot be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.server import ROOT, Server


def fail_to_start(*flags: str, **environ: str) -> str:
    """Runs the server, expecting a refusal; returns its last line on stderr."""
    result = subprocess.run(
        [sys.executable, "-m", "engine.serve", *flags],
        cwd=ROOT,
        env={**os.environ, "ENGINE_LOG_LEVEL": "WARNING", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def rss_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024


@pytest.mark.parametrize("engine", ["v0", "v1"])
def test_first_token_within_5_s_and_1_2_gib(engine: str) -> None:
    with Server(engine) as server:
        status, answer = server.post("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 1})
        elapsed = time.monotonic() - server.started_at
        assert status == 200 and answer["usage"]["completion_tokens"] == 1
        assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text(), "the API process loads torch"
        used = rss_mib([server.pid, *server.children()])
        print(f"{engine}: first token after {elapsed:.2f} s, {used:.0f} MiB")
        assert used < 1.2 * 1024
        assert elapsed < 5


def test_a_wrong_path() -> None:
    line = fail_to_start("--model", "/no/such/dir")
    assert "/no/such/dir" in line


def test_an_unsupported_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}))
    line = fail_to_start("--model", str(tmp_path), "--load-format", "dummy")
    assert "MambaForCausalLM" in line and "LlamaForCausalLM" in line


@pytest.mark.parametrize("keep", [0, 3, 100, 1_000_000, 50_000_000])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    from engine.config.engine_args import DEFAULT_MODEL
    from engine.loader.source import find_model

    whole = Path(find_model(DEFAULT_MODEL, "auto", "").path)
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as source:
        cut.write_bytes(source.read(keep))
    assert "cut.gguf" in fail_to_start("--model", str(cut))


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        ([], {"ENGINE_V1": "yes"}, "ENGINE_V1 is 'yes'"),
        (["--tensor-parallel-size", "2"], {}, "--tensor-parallel-size"),
        (["--no-enable-chunked-prefill"], {"ENGINE_V1": "1"}, "ENGINE_V1=0"),
        (["--max-model-len", "9999999"], {}, "--max-model-len"),
        (["--num-kv-blocks", "3"], {}, "--kv-cache-memory-bytes"),
        (["--device", "cuda"], {}, "--device cpu"),
    ],
    ids=["bad ENGINE_V1", "absent feature", "refused on V1", "context", "cache", "no GPU"],
)
def test_what_cannot_work_is_refused_by_name(flags: list[str], environ: dict, text: str) -> None:
    if "cuda" in flags and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA device")
    assert text in fail_to_start(*flags, **environ)


def test_a_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert str(port) in fail_to_start("--port", str(port), ENGINE_V1="1")
