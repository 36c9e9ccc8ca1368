"""``stepfast remote-worker`` as a real process, and ``stepfast migrate --transport``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepfast.cli import cli
from stepfast.remote import RemoteWorker, SqlTransport
from tests.cli.processes import Processes
from tests.remote.scene import result_of
from tests.remote.tables import Tables
from tests.support.engine import eventually
from tests.support.logs import logging_as_before

STEPS = """
import time
from pathlib import Path
from stepfast.remote import RemoteWorker

worker = RemoteWorker("postgresql://nobody@127.0.0.1:1/nothing", group="steps")
number = 7

@worker.handle("double")
def double(input):
    return input * 2

@worker.handle("hold")
def hold(input):
    print("holding", flush=True)
    Path("held").touch()
    time.sleep(60)
"""


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "steps.py").write_text(STEPS)
    processes = Processes(tmp_path)
    yield processes
    processes.end()


async def test_a_process_serves_until_it_is_told_and_gives_back_what_it_holds(
    postgres_url: str, spawn: Processes, tmp_path: Path
) -> None:
    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    url = postgres_url.replace("postgres@", "postgres:secret@")
    worker = spawn("remote-worker", "steps:worker", "--url", url, "--poll-interval", "20ms", "--concurrency", "3")
    await tables.put_task("run:0", "double", 21, group="steps")
    assert (await result_of(tables, "run:0"))["output"] == 42
    assert "secret" not in "".join(worker.hear("serves group 'steps'"))
    await tables.put_task("run:1", "hold", group="steps")
    await eventually((tmp_path / "held").exists)
    worker.send(signal.SIGTERM)
    worker.hear("waiting up to 30 s for 1 task;")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert await tables.fetch("SELECT step_id, claimed_by, attempt FROM [tasks]") == [("run:1", None, 1)]
    await tables.close()


@logging_as_before()
def test_what_is_no_remote_worker_is_refused(spawn: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = CliRunner().invoke(cli, ["remote-worker", "steps:number"])
    assert said.exit_code == 2 and "steps:number is not a remote worker, but an int" in said.stderr
    said = CliRunner().invoke(cli, ["remote-worker", "steps"])
    assert "write module:worker, as in steps:worker" in said.stderr
    said = CliRunner().invoke(cli, ["remote-worker", "steps:worker"])
    assert said.exit_code == 5 and "cannot be reached" in said.stderr


def test_the_tables_are_printed_and_made(url: str) -> None:
    printed = CliRunner().invoke(cli, ["migrate", "--transport", "--sql", "--prefix", "mine", "--url", url])
    assert printed.exit_code == 0 and "mine_transport_results" in printed.stdout
    made = CliRunner().invoke(cli, ["migrate", "--transport", "--prefix", "mine", "--url", url])
    assert made.exit_code == 0 and "made the tables of prefix 'mine'" in made.stderr
    again = CliRunner().invoke(cli, ["migrate", "--transport", "--prefix", "mine", "--url", url, "--json"])
    assert again.stdout == '{"made":false}\n'


@pytest.mark.parametrize(
    "arguments", [["--url", "sqlite:///x.db"], [], ["--url", "sqs://q"], ["--check"], ["--prefix", "a b"]]
)
def test_what_cannot_be_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    if arguments[:1] == ["--prefix"]:
        arguments = ["--url", "postgresql://u@h/d", *arguments]
    said = CliRunner().invoke(cli, ["migrate", "--transport", *arguments])
    assert said.exit_code == 2 and "Traceback" not in said.output


def test_a_worker_is_named_in_code_too() -> None:
    worker = RemoteWorker("mysql://u:p@h/d", group="a:b")
    assert worker.group == "a-b"
