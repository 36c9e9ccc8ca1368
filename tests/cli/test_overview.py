"""`top`, `stats` and `audit`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stepfast import DatabaseUnavailable, Stepfast
from stepfast.cli.command import Session
from stepfast.cli.top import Watch, screen, top
from stepfast.monitoring.audit import audited, new_entry
from stepfast.telemetry.gauges import Overview
from tests.cli.conftest import Shop, Verbs
from tests.support.nursery import nursery

pytestmark = pytest.mark.enough_on("sqlite")


def test_one_look_tells_of_runs_queues_workers_and_failures(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "no queues" in stepfast("top", "--once").stdout
    shop.start("refuse", "s3cret")
    shop.start("hold", queue="vip")
    shop.call(lambda app: app.drain(queues=["refuse"]))
    stepfast("queue", "pause", "vip")
    text = stepfast("top", "--once").stdout
    for word in ("1 ready", "0 running", "vip", "paused", "none", "1 failed", "ValueError", "answered in"):
        assert word in text, text
    assert "s3cret" not in text and "\x1b" not in text
    found = stepfast.json("top", "--once")
    (vip,) = [queue for queue in found["queues"] if queue["name"] == "vip"]
    assert (vip["ready"], vip["paused"], vip["workers"], vip["limited"]) == (1, True, 0, False)
    assert vip["oldest"] >= 0 and found["ended"] == {"failed": 1}
    assert found["failures"][0]["error_type"] == "ValueError"
    assert found["runs"] == {"running": 0, "waiting": 0, "paused": 0, "compensating": 0}


async def test_a_database_that_does_not_answer_is_told_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [DatabaseUnavailable("no route to db.example"), TimeoutError()]

    async def fail(store: object) -> Overview:
        raise answers.pop(0)

    monkeypatch.setattr(sys.modules[Watch.__module__], "look", fail)
    async with Stepfast("sqlite://") as app:
        watch = Watch(app)
        for said in ("no route to db.example", "no answer within 5 s"):
            console = Console(file=io.StringIO(), width=200, record=True)
            console.print(await screen(watch))
            assert f"the database does not answer: {said}" in console.export_text()


async def test_a_look_that_never_ends_is_given_up_and_left_by_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = sys.modules[Watch.__module__]
    url = f"sqlite:///{tmp_path}/top.db"
    async with Stepfast(url) as app:
        watch = Watch(app)
        overview, begun = (await watch.look()).overview, asyncio.Event()

        async def seen(*_: object) -> Overview:
            return overview

        async def hang(*_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Stepfast, "stats", hang)
        monkeypatch.setattr(module, "look", seen)
        monkeypatch.setattr(module, "_STATS_EVERY", 0.0)
        monkeypatch.setattr(module, "_PATIENCE", 0.2)
        async with asyncio.timeout(20):
            assert (await watch.look()).stats == watch._stats  # those of before
        monkeypatch.setattr(module, "look", hang)
        monkeypatch.setattr(module, "_PATIENCE", 20.0)
        begun.clear()
        live = asyncio.create_task(top(Session(url, json=True), 60.0))
        await begun.wait()
        live.cancel()
        await live


def test_looks_that_come_too_often_are_refused(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "at least 0.5 s, so that the database is not asked too often" in stepfast.error(
        "top", "--interval", "0.1", code=2
    )


def test_on_a_terminal_it_is_live_until_ctrl_c_which_is_no_failure(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    shop.start("hold", queue="vip")
    ours, theirs = pty.openpty()
    process = nursery().start(["-m", "stepfast", "top", "--interval", "0.5"], [theirs] * 3, folder=shop.folder)
    os.close(theirs)
    screen = b""
    try:
        while screen.count(b"vip") < 2:  # it was drawn, and drawn again
            screen += _read(ours)
        process.send_signal(signal.SIGINT)
        while chunk := _read(ours):
            screen += chunk
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert screen.count(b"\x1b[?1049h") == screen.count(b"\x1b[?1049l") == 1, "the terminal is as it was"
    assert b"Traceback" not in screen


@pytest.mark.thorough
def test_a_pipe_gets_a_line_of_json_for_each_look(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    command = [sys.executable, "-m", "stepfast", "top", "--json", "--interval", "0.5"]
    with subprocess.Popen(command, cwd=shop.folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert looks[0].keys() == looks[1].keys() and looks[0]["at"] < looks[1]["at"]


def _read(terminal: int) -> bytes:
    """What came next; nothing, when the other end is closed."""
    assert select.select([terminal], [], [], 60)[0], "nothing came"
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so at the end of a terminal
        return b""


# -- stats


def test_what_has_happened(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "nothing is under way" in stepfast("stats").stderr
    for _ in range(2):
        shop.start("refuse", "s3cret")
        shop.start("checkout", {"id": "o", "cents": 1})
    shop.start("hold", queue="vip")
    shop.call(lambda app: app.drain(queues=["refuse", "checkout"]))
    found = stepfast.json("stats", "--since", "2h")
    assert [(row["workflow"], row["queue"], row["status"], row["count"]) for row in found["runs"]] == [
        ("checkout", "checkout", "completed", 2), ("hold", "vip", "queued", 1), ("refuse", "refuse", "failed", 2),
    ]  # fmt: skip
    [failure] = found["failures"]
    assert (failure["error_type"], failure["count"], failure["per_hour"]) == ("ValueError", 2, 1.0)
    assert {row["step"] for row in found["steps"]} == {"add tax", "charge"}
    assert found["complete"] is True and found["since"] == 7200
    text = stepfast("stats").stdout
    assert "s3cret" not in text
    for word in ("vip", "queued", "failed within 1 h", "ValueError", "slowest steps", "add tax"):
        assert word in text, text
    assert "since must be more than 0 seconds" in stepfast.error("stats", "--since", "0", code=2)


# -- audit


def test_what_was_done(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "no action was carried out" in stepfast("audit").stderr

    async def pause(app: Stepfast) -> None:
        for queue in ("mail", "hold"):
            await audited(app, new_entry("ada", "queue.pause", queue, "192.0.2.7"), lambda: app.pause_queue(queue))  # noqa: B023

    shop.call(pause)
    newest, oldest = stepfast.json("audit")
    assert (newest["which"], oldest["which"], oldest["who"], oldest["outcome"]) == ("hold", "mail", "ada", "done")
    assert [line["which"] for line in stepfast.json("audit", "mail")] == ["mail"]
    assert [line["which"] for line in stepfast.json("audit", "--before", newest["id"])] == ["mail"]
    told = stepfast("audit", "--limit", "1")
    assert "queue.pause" in told.stdout and "192.0.2.7" in told.stdout
    assert f"--before {newest['id']}" in told.stderr
    assert "not a run id" in stepfast.error("audit", "--before", "x", code=2)
