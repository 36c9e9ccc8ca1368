"""Copies of the package to measure: of commits and of folders, each in a temporary folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Checkout:
    """One copy: what was asked for, in short, and the folder that goes on PYTHONPATH."""

    label: str
    source: Path


@contextmanager
def checkouts(*wanted: str) -> Iterator[list[Checkout]]:
    """Check out each commit, or copy each folder, and remove the copies in the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepfast-pairs-")))
        yield [stack.enter_context(_checkout(name, folder / f"copy{number}")) for number, name in enumerate(wanted)]


@contextmanager
def _checkout(name: str, target: Path) -> Iterator[Checkout]:
    package = next((place for place in (Path(name, "src"), Path(name)) if (place / "stepfast").is_dir()), None)
    if package is not None:
        shutil.copytree(package / "stepfast", target / "stepfast", ignore=shutil.ignore_patterns("__pycache__"))
        yield Checkout(name, target)
        return
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--short", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(f"{name!r} is neither a commit of this repository nor a folder with src/stepfast") from None
    _git("worktree", "add", "--detach", "--quiet", str(target), commit)
    try:
        if not (target / "src" / "stepfast").is_dir():
            raise SystemExit(f"the commit {name!r} has no src/stepfast")
        yield Checkout(commit, target / "src")
    finally:
        _git("worktree", "remove", "--force", str(target))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
