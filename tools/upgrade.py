"""Old code on new tables, and the other way round: an earlier commit is tried beside the code that is here.

python tools/upgrade.py COMMIT

It needs the history of the repository. The source of the commit is unpacked into a temporary folder; runs are begun by
one code and finished by the other, on a SQLite file and on a private Postgres:

* tables of the new code: what the old code begins, the new one finishes, and the other way round. This is a deploy
  under way, and what `compatible_from` promises;
* tables of the old code: the new code migrates them and finishes what is there.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STORY = ROOT / "tools" / "upgrade_story.py"
HERE = ROOT / "src"
sys.path.insert(0, str(ROOT))

LONGEST = 90.0
"""Seconds for one part of the story."""


class Trial(NamedTuple):
    """Who makes the tables, who begins the runs, and who finishes them."""

    title: str
    tables: Path
    begins: Path
    finishes: Path


class Broken(Exception):
    """A part of the story failed."""


def trials(old: Path) -> list[Trial]:
    """All of them, the promised ones first."""
    return [
        Trial("new tables: begun by the old code, finished by the new", HERE, old, HERE),
        Trial("new tables: begun by the new code, finished by the old", HERE, HERE, old),
        Trial("old tables: begun by the old code, migrated and finished by the new", old, old, HERE),
    ]


def unpack(commit: str, folder: Path) -> Path:
    """The source of a commit, beside the one that is here."""
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if done.returncode:
        sys.exit(f"there is no commit {commit!r} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later have it
        archive.extractall(folder)
    return folder / "src"


def part(code: Path, what: str, url: str, *rest: str) -> str:
    """One part of the story, told by one code."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    done = subprocess.run(
        [sys.executable, str(STORY), what, url, *rest], env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise Broken(f"{'the new' if code == HERE else 'the old'} code could not {what}: {last}")
    return done.stdout


def attempt(trial: Trial, url: str) -> str | None:
    """What went wrong, if anything."""
    try:
        part(trial.tables, "migrate", url)
        ids = part(trial.begins, "begin", url)
        part(trial.finishes, "finish", url, ids)
    except (Broken, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, Callable[[int], str]]]:
    """Where each trial finds an empty database of its own."""
    from tests.support.postgres import PrivatePostgres

    with PrivatePostgres() as server:
        yield {
            "SQLite": lambda number: f"sqlite:///{folder}/trial{number}.db",
            "Postgres": lambda number: server.create_database(f"trial{number}"),
        }


def main(commit: str) -> int:
    """Try everything, and say what came of each; the exit code counts what failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = unpack(commit, folder)
        with databases(folder) as places:
            for database, place in places.items():
                for number, trial in enumerate(trials(old)):
                    problem = attempt(trial, place(number))
                    failed += problem is not None
                    print(f"{database}, {trial.title}: {problem or 'as expected'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else "usage: python tools/upgrade.py COMMIT")
