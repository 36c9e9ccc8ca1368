"""`signal`, `cancel`, `pause`, `resume`, `retry`, `reschedule`, `prune` and `delete`, by id or by a filter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stepfast import Stepfast, bulk
from stepfast.cli.command import Choice, Session
from stepfast.cli.run_commands import pause, resume
from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import Processes

pytestmark = pytest.mark.enough_on("sqlite")


NOBODY = "0197a1b2-0000-7000-8000-000000000000"


def status(stepfast: Verbs, run_id: str) -> str:
    return str(stepfast.json("show", run_id)["status"])


# -- signal


def test_a_signal_lets_a_run_go_on(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval")
    assert stepfast("signal", run_id, "approved", "true").stdout.split() == [run_id]
    shop.drain("harbour")
    assert stepfast.json("result", run_id)["output"] == "yes"


def test_the_value_of_a_signal_may_come_from_stdin_or_be_left_out(stepfast: Verbs, shop: Shop) -> None:
    piped, bare = shop.started("saga", "wait"), shop.started("saga", "wait")
    stepfast("signal", piped, "sail", "-", input='{"wind": 7}')
    told = stepfast.json("signal", bare, "sail")
    assert told == {"id": bare, "signal": "sail", "sent": True}
    shop.drain("harbour")
    assert stepfast.json("result", piped)["output"] == "{'wind': 7}"
    assert stepfast.json("result", bare)["output"] == "None"


def test_a_value_that_is_no_json_is_refused(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval")
    assert "the value is not JSON" in stepfast.error("signal", run_id, "approved", "yes", code=2)


def test_a_signal_to_nobody_or_to_a_run_that_has_ended_is_refused(stepfast: Verbs, shop: Shop) -> None:
    ended = shop.started("nothing", module="shop")
    assert f"there is no run {NOBODY}" in stepfast.error("signal", NOBODY, "approved", code=3)
    assert f"run {ended} is completed" in stepfast.error("signal", ended, "approved", code=1)


# -- publish


def test_an_event_is_published_and_listed(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("moored")
    assert stepfast("publish", "ship.moored", "7", "--key", "elbe", "--id", "e").stdout == "e\n"
    assert "not seen yet" in stepfast("events").stdout
    shop.drain("harbour")
    assert stepfast.json("result", run_id)["output"] == "7"
    stepfast("publish", "ship.lost")
    [told] = stepfast.json("events", "ship.moored", "--key", "elbe")
    assert (told["id"], told["data"], told["taken_by"], told["matched"]) == ("e", 7, [run_id], True)
    assert len(stepfast.json("events", "-n", "1")) == 1


# -- ask


def test_a_question_is_asked_and_asked_again(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("counter")
    assert "waits for question 'next'" in stepfast("show", run_id).stdout
    late = stepfast.error("ask", run_id, "next", "7", "--id", "a", "--timeout", "0.01", code=4)
    assert "has not answered question 'next'" in late
    shop.drain("harbour")
    assert stepfast("ask", run_id, "next", "7", "--id", "a").stdout == "8\n"
    told = stepfast.json("ask", run_id, "next", "7", "--id", "a")
    assert told == {"id": run_id, "question": "next", "answer": 8}
    assert "had ended (completed)" in stepfast.error("ask", run_id, "next", "1", code=1)


# -- complete, fail, beat


def test_a_callback_is_completed_by_its_token(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("parcel")
    token = stepfast.json("show", run_id)["values"]["token"]
    why = stepfast("show", run_id).stdout
    assert "It waits for callback 'arrived', at the latest until" in why and "stepfast complete TOKEN JSON" in why
    assert "no callback has this token" in stepfast.error("complete", token[::-1], "5", code=3)
    assert "callback 'arrived' does not fit" in stepfast.error("complete", token, '"x"', code=2)
    assert stepfast("beat", "-", input=f"{token}\n").stdout == "open\n"
    assert stepfast("complete", token, "5").stdout == "completed\n"
    assert stepfast.json("complete", token, "5") == {"state": "completed"}
    assert "has been completed already" in stepfast.error("fail", token, "lost", code=1)
    assert "not both" in stepfast.error("complete", "-", "-", code=2)
    shop.drain("harbour")
    assert stepfast("result", run_id).stdout == "5\n"
    other = shop.started("parcel")
    token = stepfast.json("show", other)["values"]["token"]
    assert stepfast("fail", token, "lost").stdout == "failed\n"
    shop.drain("harbour")
    assert "callback 'arrived' failed: lost" in stepfast.error("result", other, code=1)


# -- cancel


def test_cancel_ends_runs_that_wait_and_runs_in_line(stepfast: Verbs, shop: Shop) -> None:
    waits, ready = shop.started("approval"), shop.start("nothing")
    assert stepfast("cancel", waits, ready).stdout.split() == [waits, ready]
    assert {status(stepfast, run_id) for run_id in (waits, ready)} == {"cancelled"}


def test_cancel_goes_on_with_the_others_when_one_is_refused(stepfast: Verbs, shop: Shop) -> None:
    ended = shop.started("nothing", module="shop")
    waits = shop.started("approval")
    answer = stepfast("cancel", ended, waits, code=1)
    assert answer.stdout.split() == [waits]
    assert f"run {ended} is completed; it cannot be cancelled any more" in answer.stderr
    told = stepfast.json("cancel", waits, NOBODY, code=3)
    assert told == [
        {"id": waits, "cancelled": True, "error": None, "status": "cancelled"},
        {"id": NOBODY, "cancelled": False, "error": f"there is no run {NOBODY} (it may have been pruned)"},
    ]


def test_cancel_of_a_run_in_hand_says_that_it_acts_later(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("hold")
    worker = spawn("worker", "shop:app")
    worker.hear("holding")
    answer = stepfast("cancel", run_id)
    assert answer.stdout.split() == [run_id]
    assert f"run {run_id} is running: it will be ended after the step that is being executed" in answer.stderr
    assert "It was asked to cancel" in stepfast.json("show", run_id)["why"]
    Path("release").touch()


def test_a_cancelled_saga_is_undone(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("saga", "wait")
    assert stepfast.json("cancel", run_id)[0]["status"] == "compensating"
    shop.drain("harbour")
    assert status(stepfast, run_id) == "compensated"


# -- pause and resume


def test_a_paused_run_takes_its_signal_when_it_is_resumed(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval")
    assert stepfast("pause", run_id).stdout.split() == [run_id]
    stepfast("signal", run_id, "approved", "true")
    shop.drain("harbour")
    assert status(stepfast, run_id) == "paused"
    assert stepfast("resume", run_id).stdout.split() == [run_id]
    shop.drain("harbour")
    assert status(stepfast, run_id) == "completed"


def test_resume_makes_a_check_due_at_once(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("tide")
    Path("high").touch()
    shop.drain("harbour")
    assert status(stepfast, run_id) == "waiting"
    stepfast("resume", run_id)
    shop.drain("harbour")
    assert stepfast.json("result", run_id)["output"] is True


def test_a_run_is_made_due(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing", delay=3600)
    assert stepfast("reschedule", run_id, "--delay", "2h", "--priority", "4").stdout.split() == [run_id]
    told = stepfast.json("show", run_id)
    assert (told["status"], told["ready"], told["priority"]) == ("queued", False, 4)
    assert told["due_at"] > told["read_at"]
    assert stepfast.json("reschedule", "--workflow", "nothing", "--yes")["rescheduled"] == 1
    assert stepfast.json("show", run_id)["ready"]
    assert stepfast.json("reschedule", "--workflow", "nothing", "--yes")["found"] == 0


@pytest.mark.parametrize(("verb", "word"), [("pause", "paused"), ("resume", "resumed"), ("reschedule", "rescheduled")])
def test_what_does_not_fit_the_state_of_a_run_is_refused(stepfast: Verbs, shop: Shop, verb: str, word: str) -> None:
    ended = shop.started("nothing", module="shop")
    told = stepfast.json(verb, ended, code=1)
    assert told == [{"id": ended, word: False, "error": told[0]["error"]}]
    assert "is completed; only a" in told[0]["error"]
    assert "is not a run id" in stepfast.error(verb, "7", code=3)


def test_paused_runs_are_found_by_their_status(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval")
    shop.started("nap")
    stepfast("pause", run_id)
    assert [run["id"] for run in stepfast.json("runs", "--status", "paused")] == [run_id]


def test_show_tells_since_when_a_run_is_paused(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("approval")
    assert stepfast.json("show", run_id)["paused_at"] is None
    stepfast("pause", run_id)
    run = stepfast.json("show", run_id)
    assert run["created_at"] < run["paused_at"] <= run["read_at"]
    assert any(line.split()[:1] == ["paused"] for line in stepfast("show", run_id).stdout.splitlines())
    stepfast("resume", run_id)
    assert stepfast.json("show", run_id)["paused_at"] is None


# -- retry --from-start


def test_a_run_that_was_undone_is_started_anew(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("saga", "fail")
    assert "`stepfast retry --from-start` starts" in stepfast.error("retry", run_id, code=1)
    anew = stepfast("retry", "--from-start", run_id).stdout.strip()
    found = stepfast.json("show", anew)
    assert (found["origin"], found["input"], found["status"]) == (run_id, "fail", "queued")
    assert f"origin    {run_id}" in stepfast("show", anew).stdout
    assert status(stepfast, run_id) == "compensated"


def test_starting_anew_for_scripts_names_the_new_run(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("refuse", "no luck", module="shop")
    [told] = stepfast.json("retry", "--from-start", run_id)
    assert told == {"id": run_id, "retried": True, "error": None, "run": told["run"]}
    assert stepfast.json("show", told["run"])["origin"] == run_id
    ready = shop.start("nothing")
    assert "only a run that has ended can be retried from its start" in stepfast.error(
        "retry", "--from-start", ready, code=1
    )


# -- runs chosen by a filter; counted, confirmed, done in batches, safe to repeat


def statuses(stepfast: Verbs, *filters: str) -> list[str]:
    return [run["status"] for run in stepfast.json("runs", *filters)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_PAGE", 3)
    monkeypatch.setattr(bulk, "_BATCH", 2)


def started_many(shop: Shop, name: str, number: int, module: str = "shop", **options: Any) -> list[str]:
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
    assert stepfast("retry", "--since", "1h", "--yes").stderr.strip() == "no run matches"


def test_pause_resume_and_cancel_by_what_runs_have_in_common(stepfast: Verbs, shop: Shop) -> None:
    started_many(shop, "nothing", 3, tags=["a"])
    other = started_many(shop, "nothing", 1, tags=["b"])
    dag = shop.start("order", {"cents": 1}, module="fulfil", tags=["a"])
    assert stepfast.json("pause", "--tag", "a", "--yes") == {"found": 4, "paused": 4, "refused": []}
    assert statuses(stepfast, "--status", "paused") == ["paused"] * 4
    assert stepfast.json("resume", "--older-than", "0", "--yes")["resumed"] == 4
    assert stepfast.json("cancel", "--tag", "a", "--yes")["cancelled"] == 4
    assert stepfast.json("show", dag)["status"] != "queued"
    assert [run["id"] for run in stepfast.json("runs", "--status", "queued")] == other
    assert stepfast.json("cancel", "--tag", "a", "--yes")["found"] <= 1, "a second time there is nothing left to do"


def test_a_signal_goes_to_those_that_wait_for_it(stepfast: Verbs, shop: Shop) -> None:
    waits = started_many(shop, "approval", 3, "harbour")
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
    ids = started_many(shop, "nothing", 5)
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
    started_many(shop, "nothing", 6)
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


# -- prune and delete


def test_prune_counts_asks_archives_and_removes(stepfast: Verbs, shop: Shop) -> None:
    ended = [shop.started("nothing", module="shop") for _ in range(2)]
    waits = shop.started("approval")
    assert stepfast("prune", "--older-than", "0", "--dry-run").stderr.strip() == (
        "would remove 2 runs that ended longer than 0 ms ago"
    )
    asked = stepfast.error("prune", "--older-than", "0", code=2)
    assert "Remove 2 runs" in asked and "give --yes" in asked
    assert len(stepfast.json("runs")) == 3
    assert stepfast.json("prune", "--older-than", "30d", "--yes") == {"found": 0, "removed": 0, "archive": None}
    told = stepfast.json("prune", "--older-than", "0s", "--archive", "old.jsonl", "--status", "completed")
    assert told == {"found": 2, "removed": 2, "archive": "old.jsonl"}
    assert [json.loads(line)["id"] for line in Path("old.jsonl").read_text().splitlines()] == ended
    assert [run["id"] for run in stepfast.json("runs")] == [waits]
    assert "may have been pruned" in stepfast.error("show", ended[0], code=3)
    assert "there is nothing to remove" in stepfast("prune", "--older-than", "0").stderr


def test_prune_refuses_what_it_cannot_do(stepfast: Verbs, shop: Shop) -> None:
    shop.started("nothing", module="shop")
    assert "cannot be written" in stepfast.error("prune", "--older-than", "0", "--archive", "no/x", "--yes", code=2)
    assert "only runs that have ended" in stepfast.error("prune", "--older-than", "0", "--status", "running", code=2)
    assert "--older-than" in stepfast("prune", code=2).stderr
    assert len(stepfast.json("runs")) == 1


def test_delete_removes_what_has_ended(stepfast: Verbs, shop: Shop) -> None:
    ended, waits = shop.started("nothing", module="shop"), shop.started("approval")
    answer = stepfast("delete", ended[:-2], waits, code=1)
    assert answer.stdout.split() == [ended]
    assert f"run {waits} is waiting; only a run that has ended can be deleted" in answer.stderr
    assert stepfast.json("delete", ended, code=3)[0]["deleted"] is False


# -- going back to a step


def test_a_run_is_forked_and_rewound_from_a_step(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("saga", "fail")
    assert "was undone, with its step" in stepfast.error("fork", run_id, "--before", "1", code=1)
    assert "is not recorded in run" in stepfast.error("rewind", run_id, "--before", "nothing", code=1)
    fork = stepfast("fork", run_id, "--before", "0", "--input", '"fine"').stdout.strip()
    found = stepfast.json("show", fork)
    assert (found["origin"], found["input"], found["status"], found["steps"]) == (run_id, "fine", "queued", [])
    shop.drain("harbour")
    assert status(stepfast, fork) == "waiting"
    assert "only a run that has ended can be rewound" in stepfast.error("rewind", fork, "--before", "reserve", code=1)
    stepfast("signal", fork, "sail", '"off"')
    shop.drain("harbour")
    assert stepfast.json("rewind", fork, "--before", "sail") == {"id": fork, "status": "queued"}
    assert [step["name"] for step in stepfast.json("show", fork)["steps"]] == ["reserve", "reserve"]
