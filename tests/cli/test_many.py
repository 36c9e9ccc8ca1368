"""Runs chosen by what they have in common: counted, confirmed, done in batches, safe to repeat."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from stepfast import Stepfast, bulk
from stepfast.cli.command import Choice, Session
from stepfast.cli.run_commands import pause, resume
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def statuses(stepfast: Verbs, *filters: str) -> list[str]:
    return [run["status"] for run in stepfast.json("runs", *filters)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_PAGE", 3)
    monkeypatch.setattr(bulk, "_BATCH", 2)


def started(shop: Shop, name: str, number: int, module: str = "shop", **options: Any) -> list[str]:
    runs = shop.call(lambda app: app.start_many(name, [None] * number, **options), module)
    return [run.id for run in runs]


def test_retry_counts_asks_and_queues_all_that_failed(stepfast: Verbs, shop: Shop) -> None:
    shop.call(lambda app: app.start_many("refuse", ["no"] * 5, tags=["night"]))
    shop.drain()
    assert stepfast("retry", "--tag", "night", "--dry-run").stderr.strip() == "would retry 5 runs"
    asked = stepfast.error("retry", "--workflow", "refuse", code=2)
    assert "Retry 5 runs?" in asked and "give --yes" in asked
    assert statuses(stepfast) == ["failed"] * 5
    assert stepfast("retry", "-w", "refuse", "--limit", "3", "--yes").stderr.strip() == "3 runs retried"
    assert stepfast.json("retry", "--reason", "code", "--yes") == {"found": 2, "retried": 2, "refused": []}
    assert statuses(stepfast) == ["queued"] * 5
    assert stepfast("retry", "--since", "1h", "--yes").stderr.strip() == "no run is like that"


def test_pause_resume_and_cancel_by_what_runs_have_in_common(stepfast: Verbs, shop: Shop) -> None:
    started(shop, "nothing", 3, tags=["a"])
    other = started(shop, "nothing", 1, tags=["b"])
    dag = shop.start("order", {"cents": 1}, module="fulfil", tags=["a"])
    assert stepfast.json("pause", "--tag", "a", "--yes") == {"found": 4, "paused": 4, "refused": []}
    assert statuses(stepfast, "--status", "paused") == ["paused"] * 4
    assert stepfast.json("resume", "--older-than", "0", "--yes")["resumed"] == 4
    assert stepfast.json("cancel", "--tag", "a", "--yes")["cancelled"] == 4
    assert stepfast.json("show", dag)["status"] != "queued"
    assert [run["id"] for run in stepfast.json("runs", "--status", "queued")] == other
    assert stepfast.json("cancel", "--tag", "a", "--yes")["found"] <= 1, "a second time there is nothing left to do"


def test_a_signal_goes_to_those_that_wait_for_it(stepfast: Verbs, shop: Shop) -> None:
    waits = started(shop, "approval", 3, "harbour")
    shop.drain("harbour")
    assert stepfast.json("signal", "--workflow", "approval", "other", "true", "--yes")["found"] == 0
    told = stepfast.json("signal", "--workflow", "approval", "approved", "true", "--yes")
    assert told == {"found": 3, "signalled": 3, "refused": []}
    shop.drain("harbour")
    assert {stepfast.json("result", run_id)["output"] for run_id in waits} == {"yes"}


def test_what_is_refused_is_told(stepfast: Verbs, shop: Shop) -> None:
    done = shop.started("nothing", module="shop")
    answer = stepfast("cancel", "--status", "completed", "--yes", code=1)
    assert answer.stderr.splitlines()[-2:] == ["0 runs cancelled, 1 refused:", f"  run {done} is completed"]


WRONG = (
    (("cancel",), "which runs?"),
    (("cancel", "0197a1b2", "--status", "queued"), "not both"),
    (("cancel", "0197a1b2", "--dry-run"), "not with ids"),
    (("cancel", "--status", "sleeping"), "there is no status 'sleeping'"),
    (("retry", "--reason", "lost"), "there is no reason 'lost'; there are code"),
    (("retry", "--status", "failed", "--from-start"), "--from-start takes ids"),
    (("signal", "approved"), "which runs?"),
    (("signal", "--tag", "a", "one", "2", "3"), "chosen runs are not named"),
)


def test_wrong_usage_is_refused_before_anything_is_done(stepfast: Verbs, shop: Shop) -> None:
    shop.start("nothing")
    for arguments, why in WRONG:
        assert why in stepfast.error(*arguments, code=2)
    assert statuses(stepfast) == ["queued"]


@contextlib.contextmanager
def nobody_reads() -> Iterator[None]:
    """As after ``2>&1 | head -1``: whatever is written meets a closed pipe."""
    with contextlib.ExitStack() as stack:
        closed = []
        for _ in range(2):
            reader, writer = os.pipe()
            os.close(reader)
            closed.append(stack.enter_context(open(writer, "w", buffering=1)))
        stack.enter_context(contextlib.redirect_stdout(closed[0]))
        stack.enter_context(contextlib.redirect_stderr(closed[1]))
        yield


def test_a_reader_that_goes_away_does_not_stop_the_work(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.cli.command._NEWS_EVERY", 0.0)
    ids = started(shop, "nothing", 5)
    session = Session(shop.url)
    with nobody_reads(), pytest.raises(typer.Exit) as left:
        asyncio.run(pause(session, Choice(), ids))
    assert left.value.exit_code == 0
    assert {info.status for info in shop.call(lambda app: app.runs())} == {"paused"}
    with nobody_reads(), pytest.raises(typer.Exit) as left:
        asyncio.run(resume(session, Choice(workflow="nothing", yes=True)))
    assert left.value.exit_code == 0
    assert {info.status for info in shop.call(lambda app: app.runs())} == {"queued"}


async def test_an_interrupt_is_told_to_scripts_too(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Stepfast(sqlite_url) as app:

        @app.task
        async def nothing() -> None: ...

        await app.start_many("nothing", [None] * 5)
    batch, halfway = bulk.Bulk._batch, asyncio.Event()

    async def held(self: bulk.Bulk, ids: Any) -> None:
        await batch(self, ids)
        halfway.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bulk.Bulk, "_batch", held)
    monkeypatch.setattr(bulk, "_PATIENCE", 0.01)
    verb = asyncio.create_task(pause(Session(sqlite_url, json=True), Choice(workflow="nothing", yes=True)))
    await halfway.wait()
    verb.cancel()
    with pytest.raises(asyncio.CancelledError):
        await verb
    told = json.loads(capsys.readouterr().out)
    assert told == {"found": 5, "paused": 2, "refused": [], "interrupted": True}


SLOW = """
import asyncio, sys
from stepfast import bulk
from stepfast.cli import main

bulk._PAGE = 4; bulk._BATCH = 2
batch = bulk.Bulk._batch

async def slowly(self, ids):
    await batch(self, ids)
    if self.tally.done == 4:
        print("four", flush=True)
        await asyncio.sleep(60)

bulk.Bulk._batch = slowly
sys.argv = ["stepfast", "cancel", "--workflow", "nothing", "--yes"]
main()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_says_how_far_it_came_and_leaves_the_rest(
    stepfast: Verbs, shop: Shop, number: signal.Signals, code: int
) -> None:
    started(shop, "nothing", 6)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "four\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    assert "interrupted: 4 runs cancelled. Call it again for the rest" in said
    assert sorted(statuses(stepfast)) == ["cancelled"] * 4 + ["queued"] * 2
