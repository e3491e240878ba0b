"""The import contract of the tree, read from the AST of every file.

Shared code imports neither engine; the engines do not import each other; ``engine/select.py``
alone knows both and alone reads ``ENGINE_V1``; nobody writes the environment; nobody pickles.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "engine").rglob("*.py"))

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {
    "send_pyobj",
    "recv_pyobj",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all modules ``path`` imports, at any depth of its code."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def side(path: Path) -> str:
    parts = path.relative_to(ROOT / "engine").parts
    return parts[0] if parts[0] in ("v0", "v1") else "shared"


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_who_may_import_whom(path: Path) -> None:
    own = side(path)
    for name in imports(path):
        for engine in ("v0", "v1"):
            if name == f"engine.{engine}" or name.startswith(f"engine.{engine}."):
                allowed = own == engine or path == ROOT / "engine" / "select.py"
                assert allowed, f"{ids(path)} ({own}) imports {name}"


def test_select_imports_the_engines_lazily() -> None:
    tree = parse(ROOT / "engine" / "select.py")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith(("engine.v0", "engine.v1"))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_only_select_reads_the_engine_variable(path: Path) -> None:
    if path.name == "select.py":
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "getenv"):
            arguments = [a.value for a in node.args if isinstance(a, ast.Constant)]
            assert "ENGINE_V1" not in arguments, f"{ids(path)} reads ENGINE_V1"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            assert node.slice.value != "ENGINE_V1", f"{ids(path)} reads ENGINE_V1"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_nobody_writes_the_environment(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            for target in targets:
                if isinstance(target, ast.Subscript):
                    assert "environ" not in ast.unparse(target.value), f"{ids(path)} writes the environment"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert not called.endswith(("os.putenv", "os.unsetenv")), ids(path)
            assert not ("environ" in called and called.endswith((".update", ".setdefault", ".pop"))), ids(path)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_no_pickle_and_no_code_from_data(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] not in FORBIDDEN_MODULES, f"{ids(path)} imports {name}"
        assert not name.startswith("multiprocessing"), f"{ids(path)} imports {name}, whose queues pickle"
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last = called.rsplit(".", 1)[-1]
        assert last not in FORBIDDEN_CALLS, f"{ids(path)} calls {called}"
        assert called not in ("torch.load", "eval", "exec"), f"{ids(path)} calls {called}"


API_PROCESS_MODULES = [
    "engine",
    "engine.api",
    "engine.cli",
    "engine.client",
    "engine.config.resolve",
    "engine.entrypoints.openai.app",
    "engine.entrypoints.openai.server",
    "engine.ipc.link",
    "engine.serve",
    "engine.v0.llm_engine.client",
    "engine.v1.llm_engine.client",
]


@pytest.mark.parametrize("module", API_PROCESS_MODULES)
def test_the_api_process_imports_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_twins_have_the_same_packages_and_their_counterparts_the_same_names() -> None:
    counterparts = {
        "core/scheduler.py",
        "executor/uniproc.py",
        "llm_engine/client.py",
        "llm_engine/engine_process.py",
        "llm_engine/messages.py",
        "llm_engine/output_processor.py",
        "worker/model_runner.py",
        "worker/worker.py",
    }
    for engine in ("v0", "v1"):
        root = ROOT / "engine" / engine
        assert {p.name for p in root.iterdir() if p.is_dir() and p.name != "__pycache__"} == {
            "core",
            "executor",
            "llm_engine",
            "worker",
        }
        for name in counterparts:
            assert (root / name).exists(), f"engine/{engine}/{name} is missing"


def test_files_stay_small() -> None:
    long = {ids(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 450}
    assert not long, f"find the part that wants its own name: {long}"
