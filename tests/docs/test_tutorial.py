"""The tutorial as a reader does it: run, kill, run again; wait and come back; start a run without the code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import file_blocks
from tests.support.nursery import nursery

pytestmark = pytest.mark.empty

LIMIT = 60


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.thorough), "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """On the embedded default; `make test-all` runs it on Postgres too."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the tutorial tells the reader to save."""
    for name in ("trip.py", "party.py", "trigger.py"):
        (tmp_path / name).write_text(file_blocks()[name][0].text)
    return tmp_path


class Python:
    """A process whose output is read."""

    def __init__(self, folder: Path, url: str, command: Sequence[str]) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("STEPFAST_")}
        readable, writable = os.pipe()
        with open(os.devnull, "rb") as nothing, open(writable, "wb"):
            self._process = nursery().start(
                command, [nothing.fileno(), writable, 2], folder=folder, environment={**kept, "STEPFAST_URL": url}
            )
        self._output = open(readable)  # noqa: SIM115 - closed by kill

    def read_until(self, words: str) -> list[str]:
        """The lines up to the one with these words."""
        lines: list[str] = []
        for line in self._output:
            lines.append(line.strip())
            if words in line:
                return lines
        raise AssertionError(f"{words!r} did not come: {lines}")

    def printed(self) -> str:
        """All the rest, until it ends by itself and well."""
        text = self._output.read()
        assert self._process.wait(LIMIT) == 0
        return text

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


@contextmanager
def python(folder: Path, url: str, *command: str) -> Iterator[Python]:
    process = Python(folder, url, command)
    try:
        yield process
    finally:
        process.kill()


def test_a_killed_trip_goes_on_where_it_was(folder: Path, url: str) -> None:
    with python(folder, url, "trip.py") as process:
        assert process.read_until("hotel") == ["booking a flight in Lisbon", "booking a hotel in Lisbon"]
        process.kill()
    with python(folder, url, "trip.py") as process:
        printed = process.printed()
    assert printed.splitlines() == [
        "booking a hotel in Lisbon",
        "booking a car in Lisbon",
        "['flight in Lisbon', 'hotel in Lisbon', 'car in Lisbon']",
    ]


def test_a_party_waits_while_no_process_is_alive(folder: Path, url: str) -> None:
    def run(*words: str) -> list[str]:
        with python(folder, url, "party.py", *words) as process:
            printed = process.printed()
        return [line.partition(" 0")[0] for line in printed.splitlines()]

    assert run() == ["inviting Ada", "waiting"]
    assert run() == ["waiting"]
    said = run("yes")
    until = time.monotonic() + LIMIT
    while said == ["waiting"]:  # for its sleep
        assert time.monotonic() < until
        said = run()
    assert said == ["completed", "Ada said yes"]


def test_a_trigger_needs_the_name_only(folder: Path, url: str) -> None:
    work = "import asyncio, trip; asyncio.run(trip.app.work())"
    started = "import trip; trip.app.sync.start(trip.trip, 'Rome', delay=3600); trip.app.sync.close()"
    with python(folder, url, "-c", started) as process:
        process.printed()
    with python(folder, url, "-c", work), python(folder, url, "trigger.py") as trigger:
        printed = trigger.printed()
    assert printed.strip() == "['flight in Porto', 'hotel in Porto', 'car in Porto']"
