"""A migration that is killed half way leaves nothing, or all of it; and the next one goes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database; on SQLite a folder for many."""
    return str(request.getfixturevalue("durable_url")) if request.param == "postgres" else f"sqlite:///{tmp_path}"


def kill_at(url: str, every: int, begun: bool) -> None:
    """SIGKILL before every so manyth statement, with no tables before, or a further migration."""
    command = [sys.executable, "-m", "tests.faults.migrating", url, str(every), str(int(begun))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"{url.partition(':')[0]}, {'upgraded' if begun else 'new'}: {done.stdout.strip()}")


@pytest.mark.thorough
@pytest.mark.parametrize("begun", [False, True])
def test_killed_here_and_there(url: str, begun: bool) -> None:
    kill_at(url, 41, begun)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("begun", [False, True])
def test_killed_at_every_statement(url: str, begun: bool) -> None:
    kill_at(url, 1, begun)
