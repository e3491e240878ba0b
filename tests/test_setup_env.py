"""scripts/setup_env.py: the parts that decide what is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version_py(version: str, cuda: str) -> str:
    return f"from typing import Optional\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"


@pytest.mark.parametrize(
    ("version", "cuda", "used"),
    [
        ("2.11.0+cu130", "'13.0'", True),
        ("2.13.0+cu130", "'13.0'", True),
        ("3.0.0", "'13.2'", True),
        ("2.10.1+cu128", "'12.8'", False),
        ("2.13.0+cpu", "None", False),
    ],
)
def test_a_host_torch_is_used_if_it_has_cuda_and_is_new_enough(
    setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, cuda: str, used: bool
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "version.py").write_text(version_py(version, cuda))
    found = SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: found)
    assert setup_env.host_site_with_cuda_torch() == (tmp_path if used else None)


def test_a_step_runs_once_for_the_same_inputs(
    setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_env, "STAMPS", tmp_path / "stamps")
    source, runs = tmp_path / "a.lock", []
    source.write_text("1")
    for _ in range(2):
        setup_env.step("x", [source], lambda: runs.append(1))
    assert len(runs) == 1
    source.write_text("2")
    setup_env.step("x", [source], lambda: runs.append(1))
    assert len(runs) == 2


def test_a_failed_step_leaves_no_stamp(setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "STAMPS", tmp_path / "stamps")

    def fail() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        setup_env.step("x", ["1"], fail)
    assert not (tmp_path / "stamps" / "x").exists()


def test_locks_pin_every_package_by_hash_and_name_no_host() -> None:
    for name in ("runtime", "dev", "model"):
        text = (ROOT / "requirements" / f"{name}.lock").read_text()
        assert "://" not in text
        packages = [line for line in text.splitlines() if line[:1].isalnum()]
        assert packages and all("==" in line and line.endswith("\\") for line in packages)
        assert not any(line.startswith(("torch==", "nvidia")) for line in packages)
