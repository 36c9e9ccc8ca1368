"""`signal`, `cancel`, `pause`, `resume`, and `retry --from-start`."""

from __future__ import annotations

from pathlib import Path

import pytest

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
