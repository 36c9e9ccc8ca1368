"""The tutorials as a reader does them: run, kill, run again; and the graph of the second one."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from stepfast.cli import cli
from tests.docs.pages import ROOT, blocks, file_blocks
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


# -- the tutorial on graphs


PAGE = ROOT / "docs" / "tutorial-saga.md"
EXAMPLE = ROOT / "examples" / "order_fulfillment.py"
PYTHON = [block.text for block in blocks(PAGE) if block.language == "python"]
DRAWN, STANDING = (block.text for block in blocks(PAGE) if block.text.startswith("step "))


def test_the_tutorial_shows_the_example_piece_by_piece() -> None:
    text = EXAMPLE.read_text()
    for piece in PYTHON:
        assert piece in text
    assert re.sub(r"\s+", "", "".join(PYTHON)) == re.sub(r"\s+", "", text.split('"""', 2)[2])


def test_the_graph_is_drawn_as_the_tutorial_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    drawn = CliRunner().invoke(cli, ["graph", "order_fulfillment:app", "order-fulfillment"]).stdout
    assert untimed(drawn) == untimed(DRAWN)  # how wide the gaps are is rich's to say


def test_a_failed_order_is_shown_as_the_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    monkeypatch.setenv("STEPFAST_URL", url)
    run_id = asyncio.run(moon(loaded()))
    shown = CliRunner().invoke(cli, ["show", run_id, "--url", url]).stdout
    steps = shown.partition("\nSteps\n")[2].partition("\n\n")[0]
    assert untimed(steps) == untimed(STANDING)


def loaded() -> ModuleType:
    """The example, read anew: it looks into the environment when it is imported."""
    spec = importlib.util.spec_from_file_location("order_fulfillment_again", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def moon(example: ModuleType) -> str:
    """The second order, to its end."""
    async with example.app as app, app.worker():
        run = await app.start(example.fulfil, example.order(2, "samovar", 19900, "the moon"))
        await example.tell(run)
        return str(run.id)


def untimed(text: str) -> list[list[str]]:
    """The cells of a table, line by line, without times and gaps."""
    lines = re.sub(r"\d+(\.\d+)? m?s\b", "a while", text).strip().splitlines()
    return [re.split(r" {2,}", line) for line in lines]
