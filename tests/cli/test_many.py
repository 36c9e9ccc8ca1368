"""Runs chosen by what they have in common: counted, confirmed, done in batches, safe to repeat."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from stepfast import bulk
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
def test_an_interrupt_says_how_far_it_came_and_leaves_the_rest(stepfast: Verbs, shop: Shop) -> None:
    started(shop, "nothing", 6)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "four\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted: 4 runs cancelled. Call it again for the rest" in said
    assert sorted(statuses(stepfast)) == ["cancelled"] * 4 + ["queued"] * 2
