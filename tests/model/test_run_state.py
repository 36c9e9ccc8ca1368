"""Whatever happens to a run, in any order, its row makes sense, and something can move it on (rule 55)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import asdict, replace

from stepfast.model import status
from stepfast.model.graph import DagStep, Graph, RetriedStep, Settled
from stepfast.model.health import group_size, room_for_suspects
from stepfast.model.records import Transition
from stepfast.model.run_state import READ_COLUMNS, RunState, sooner, written
from stepfast.model.status import UNDONE_BY_CANCEL
from stepfast.model.transitions import operator
from stepfast.model.transitions.claim import claim
from stepfast.model.transitions.dag import BY_A_STEP, Countdown, Why, fallen, let_step, settle_dag, settled_at
from stepfast.model.transitions.finish import give_back, leave
from stepfast.model.transitions.operator import (
    Traces,
    cancel,
    end_open_step,
    goes_on_first,
    may_be_paused,
    may_be_retried,
    may_have_acted,
    pause,
    reopen,
    resume,
    retry,
    retry_dag,
    way_to_cancel,
)
from stepfast.model.transitions.recover import awake, due, end_late, let_begin, lose
from stepfast.model.transitions.signals import wake, wanted_mail
from stepfast.model.transitions.start import Debounce, put_off
from tests.model.walks import CAUSES, ERROR, LEAVING, MAX_LOSSES, UNDOING, WORKER, Life, lives, started, transition

NOW = 5_000_000


def flaws(run: RunState) -> list[str]:
    """What is wrong with a row, whatever it has been through."""
    found = {
        "ready and held": run.ready and run.held,
        "held and neither running nor compensating": run.held
        and run.status not in (status.RUNNING, status.COMPENSATING),
        "running, and no worker has it": run.status == status.RUNNING and not run.held and not run.is_dag,
        "held, and a timer goes": run.held and run.visible_at is not None,
        "ended, and when is not said": run.ended != (run.completed_at is not None),
        "ended, and still about to do something": run.ended
        and (run.ready, run.held, run.visible_at, run.waiting_for, run.asked, run.held_due)
        != (False, False, *[None] * 4),
        "paused, and since when is not said": (run.status == status.PAUSED) != (run.paused_at is not None),
        "undoing under another name": run.undoing
        and run.status not in (status.COMPENSATING, status.COMPENSATED, status.FAILED),
        "undoing, and a deadline": run.status == status.COMPENSATING and run.deadline_at is not None,
        "a wish slept over": run.asked is not None and not (run.held or run.ready),
        "nobody will ever move it": asleep_for_ever(run),
        "a deadline nobody looks at": misses_deadline(run),
        "fewer than no losses or attempts": min(run.losses, run.attempt, run.wakes, run.ends) < 0,
    }
    return [flaw for flaw, is_so in found.items() if is_so]


def asleep_for_ever(run: RunState) -> bool:
    moves = run.ended or run.held or run.ready or run.status == status.PAUSED
    return not moves and run.visible_at is None and run.waiting_for not in (status.WAITING_SIGNAL, status.WAITING_CHILD)


def misses_deadline(run: RunState) -> bool:
    rests = not (run.ended or run.held)
    return rests and run.deadline_at is not None and (run.visible_at is None or run.visible_at > run.deadline_at)


@given(lives)
def test_a_row_makes_sense_after_every_event(life: Life) -> None:
    for before, after, _ in life.moments:
        assert flaws(after) == [], before


@given(lives)
def test_counts_never_fall_and_identity_never_changes(life: Life) -> None:
    fixed = ("id", "queue", "workflow", "priority", "dag_id", "dag_step", "graph", "child", "deadline_ms")
    for before, after, _ in life.moments:
        assert after.wakes >= before.wakes and after.ends >= before.ends and after.claim >= before.claim
        assert {name: getattr(after, name) for name in fixed} == {name: getattr(before, name) for name in fixed}


@given(lives)
def test_what_has_ended_is_changed_by_operators_alone(life: Life) -> None:
    for before, after, _ in life.moments:
        if before.ended and after != before:
            undoes = after.status in (status.COMPENSATING, status.CANCELLED) and before.reason in UNDONE_BY_CANCEL
            assert undoes or (after.status == status.QUEUED and may_be_retried(before))


# -- claims --------------------------------------------------------------------------------------------------------


@given(lives)
def test_a_claim_has_a_number_that_nobody_had(life: Life) -> None:
    for run, now in life.standings():
        taken = claim(run, WORKER, "v2", now)
        assert (taken.claim, taken.worker, taken.version, taken.ready) == (run.claim + 1, WORKER, "v2", False)
        assert taken.attempt >= taken.first_attempt


# -- leaving -------------------------------------------------------------------------------------------------------


def departures(life: Life) -> Iterator[tuple[RunState, Transition, int]]:
    for run, now in life.held():
        for kind in set(UNDOING if run.undoing else LEAVING):
            yield run, transition(life.chance, run, now, kind), now


@given(lives)
def test_whoever_leaves_is_held_by_nobody_and_its_row_makes_sense(life: Life) -> None:
    for run, move, now in departures(life):
        after = leave(run, move, now)
        assert flaws(after) == [] and not after.held


@given(lives)
def test_nobody_sleeps_over_a_cancellation(life: Life) -> None:
    for run, move, now in departures(life):
        after = leave(replace(run, asked=status.ASK_CANCEL), move, now)
        if not (run.undoing or move.status == status.COMPENSATING or move.status in status.TERMINAL):
            assert (after.ready, after.asked) == (True, "cancel")


@given(lives, st.booleans())
def test_who_is_to_be_cancelled_has_another_attempt_only_to_come_to_a_record(life: Life, owes: bool) -> None:
    """It is counted then, as every attempt is: its failure would else be taken for that of the attempt before."""
    for run, move, now in departures(life):
        if move.status == status.QUEUED and not run.undoing:
            asked, said = replace(run, asked=status.ASK_CANCEL), replace(move, needs_new_record=owes)
            assert leave(asked, said, now).attempt == run.attempt + (move.next_attempt and owes)


@given(lives)
def test_what_came_since_the_look_is_not_slept_over(life: Life) -> None:
    for run, move, now in departures(life):
        if move.status == status.WAITING:
            woken = move.wakes != run.wakes or (move.awaits is not None and run.ends >= move.awaits)
            assert leave(replace(run, asked=None), move, now).ready == woken


@given(lives)
def test_an_end_is_an_end_whatever_was_asked(life: Life) -> None:
    for run, move, now in departures(life):
        if move.status in status.TERMINAL:
            after = leave(run, move, now)
            assert (after.status, after.completed_at, after.asked) == (move.status, now, None)
            if move.status == status.COMPLETED:
                assert (after.error, after.losses, after.output) == (None, 0, move.output)


@given(lives, st.sampled_from([None, status.REASON_CODE]))
def test_a_dag_run_that_fails_keeps_its_reason(life: Life, reason: str | None) -> None:
    """Also if its finisher is stopped: the next one has to know whether it was cancelled or failed."""
    for run, move, now in departures(life):
        dag = replace(run, failing=True, reason=status.REASON_CANCELLED, graph="g")
        assert leave(dag, replace(move, reason=reason), now).reason == (reason or status.REASON_CANCELLED)
        assert give_back(dag, False, now).reason == status.REASON_CANCELLED
        assert lose(replace(dag, losses=0), False, 5, ERROR, now).reason == status.REASON_CANCELLED


@given(lives)
def test_a_pause_remembers_when_the_run_was_due(life: Life) -> None:
    for run, move, now in departures(life):
        if move.status == status.WAITING and not run.undoing:
            asked = replace(run, asked=status.ASK_PAUSE, wakes=move.wakes or 0)
            held = leave(asked, replace(move, awaits=None), now)
            assert (held.status, held.held_due, held.waiting_for) == ("paused", move.due_at, move.waiting_for)


@given(lives, st.booleans())
def test_a_run_given_back_has_neither_an_attempt_nor_a_loss_more(life: Life, recorded: bool) -> None:
    for run, now in life.held():
        back = give_back(run, recorded, now)
        assert (back.ready, back.held, back.attempt, back.asked) == (True, False, run.attempt, run.asked)
        assert back.losses == (0 if recorded else run.losses)


@given(lives, st.booleans())
def test_losses_count_since_the_last_record_and_end_as_a_dead_letter(life: Life, recorded: bool) -> None:
    for run, now in life.held():
        after = lose(run, recorded, MAX_LOSSES, ERROR, now)
        assert after.losses == (1 if recorded else run.losses + 1)
        dead = after.losses >= MAX_LOSSES
        assert (after.status == status.FAILED, after.ready) == (dead, not dead)
        assert (after.reason, after.undoing) == (status.REASON_LOST if dead else run.reason, run.undoing)


# -- operators -----------------------------------------------------------------------------------------------------


@given(lives, st.booleans())
def test_a_cancellation_ends_undoes_or_marks(life: Life, undoable: bool) -> None:
    for run, now in life.standings():
        way = way_to_cancel(run, undoable)
        over = run.ended and not (run.status == status.FAILED and run.reason in UNDONE_BY_CANCEL)
        assert (way == "refused") == (run.undoing or over)
        if way != "refused":
            after = cancel(run, Traces(undoable), now)
            assert after.wakes == run.wakes + 1
            assert (way == "end") == (after.status == status.CANCELLED)
            assert (way == "undo") == (after.undoing and after.ready)
            assert (way in ("mark", "first")) == (after.asked == status.ASK_CANCEL)


def test_a_step_of_a_dag_run_is_not_cancelled_by_itself_and_a_dag_run_that_goes_on_fails() -> None:
    dag = RunState("1", status.RUNNING, graph="g")
    assert way_to_cancel(dag) == "fail"
    assert way_to_cancel(replace(dag, worker=WORKER)) == "mark"
    assert way_to_cancel(replace(dag, status=status.FAILED, reason=status.REASON_LOST)) == "undo"
    assert way_to_cancel(replace(dag, dag_id="2", dag_step="a")) == "refused"


@given(lives)
def test_a_pause_that_is_taken_back_changes_nothing_but_the_place(life: Life) -> None:
    """Not the time either: a resume never shortens a sleep."""
    for run, now in life.standings():
        if may_be_paused(run) and run.status != status.PAUSED and due(run, now) == "no":
            held = pause(run, now)
            assert held is not None and held.wakes == run.wakes
            again = resume(held, now)
            assert again is not None and again.wakes == run.wakes + 1
            reached = run.awaits is not None and run.ends >= run.awaits  # and it was gathering some more
            if run.waiting_for != status.WAITING_CHECK and not reached:
                assert (again.ready, again.status, again.waiting_for) == (run.ready, run.status, run.waiting_for)
                assert (again.visible_at, again.awaits, again.asked) == (run.visible_at, run.awaits, None)


@given(lives, st.integers(0, 500))
def test_who_is_due_while_held_is_ready_when_it_goes_on(life: Life, later: int) -> None:
    for run, now in life.standings():
        if run.status == status.PAUSED:
            after = resume(run, now + later)
            assert after is not None
            was_due = run.held_due is not None and run.held_due <= now + later
            free = run.waiting_for in (None, status.WAITING_CHECK) and run.held_due is None
            assert after.ready or not (was_due or free)


@given(lives)
def test_nothing_happens_to_what_is_not_held_up(life: Life) -> None:
    for run, now in life.standings():
        if run.asked != status.ASK_PAUSE and (run.status != status.PAUSED and run.waiting_for != status.WAITING_CHECK):
            assert resume(run, now) is None


@given(lives)
def test_a_retry_begins_a_new_budget(life: Life) -> None:
    for run, now in life.standings():
        if may_be_retried(run):
            again = retry(run, now)
            assert flaws(again) == []
            assert (again.attempt, again.first_attempt, again.claim) == (
                run.attempt + 1,
                run.attempt + 1,
                run.claim + 1,
            )
            assert (again.losses, again.error, again.output, again.reason, again.expires_at) == (0, *[None] * 4)
            assert again.deadline_at == (None if run.deadline_ms is None else now + run.deadline_ms)


# -- mail and time -------------------------------------------------------------------------------------------------


@given(lives, st.integers(0, 3), st.integers(0, 3))
def test_mail_is_counted_and_wakes_who_waits_for_it(life: Life, signals: int, ends: int) -> None:
    for run, now in life.standings():
        after = wake(run, signals, ends, now)
        assert (after.wakes, after.ends) == (run.wakes + signals, run.ends + ends)
        reached = run.awaits is not None and run.ends + ends >= run.awaits
        undo_waits = run.status == status.COMPENSATING and not run.held and not run.ready and reached
        if run.status != status.WAITING and not undo_waits:
            assert (after.place, after.status, after.visible_at) == (run.place, run.status, run.visible_at)
        else:
            assert after.ready == bool(signals or (reached and run.linger_ms == 0))
            assert not reached or after.ready or sooner(after.visible_at, now + run.linger_ms) == after.visible_at
        if run.status == status.PAUSED and run.waiting_for is not None and (signals or reached):
            goes_on = resume(after, now)
            assert goes_on is not None and goes_on.ready


def test_a_step_that_waits_for_others_only_counts_its_mail() -> None:
    step = RunState("1", status.WAITING, waiting_for=status.WAITING_STEPS, dag_id="2", graph="g")
    assert wake(step, 2, 0, NOW) == replace(step, wakes=2)


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        ("completed", set()), ("compensated", set()), ("failed", {"signal"}), ("cancelled", {"signal"}),
        ("waiting", {"signal", "child", "remote", "callback", "event"}),
        ("running", {"signal", "child", "remote", "callback", "event"}),
    ],
)  # fmt: skip
def test_who_can_be_retried_keeps_its_signals(state: str, kinds: set[str]) -> None:
    assert wanted_mail(RunState("1", state)) == kinds


@given(lives, st.booleans(), st.integers(0, 500))
def test_a_timer_makes_ready_or_ends(life: Life, undoable: bool, later: int) -> None:
    for run, then in life.standings():
        now = then + later
        what = due(run, now)
        if what == "ready":
            assert awake(run, now).ready and awake(run, now).visible_at == run.late_at
        elif what != "no":
            after = end_late(run, undoable, CAUSES, now)
            assert (after.reason, after.undoing) == (what, undoable and what == "deadline")
            assert after.ready == after.undoing
            assert after.error == (CAUSES.deadline if what == "deadline" else CAUSES.expired)


@given(st.randoms(use_true_random=False))
def test_a_step_of_a_run_that_has_begun_does_not_expire(chance: Random) -> None:
    run = started(chance)
    spared = let_begin(run, NOW, 1)
    assert spared.ready and spared.expires_at is None and spared.visible_at == run.deadline_at
    assert spared.place == (run.place or NOW * 1000 + 1)


# -- dag runs ------------------------------------------------------------------------------------------------------

DIAMOND = Graph([DagStep("a"), DagStep("b", ("a",)), DagStep("c", ("a",)), DagStep("d", ("b", "c"))])


def blocked(graph: Graph, name: str) -> RunState:
    pending = len(graph.dependencies(name))
    return RunState(
        name, status.WAITING, waiting_for=status.WAITING_STEPS, pending=pending, dag_id="dag", dag_step=name, graph="g"
    )  # fmt: skip


def count_down(graph: Graph, steps: dict[str, RunState], *ends: tuple[str, str]) -> tuple[list[RunState], int]:
    countdown = Countdown([Settled("dag", name, outcome, graph) for name, outcome in ends])
    while countdown.unfinished:
        missing = countdown.missing
        countdown.learn(missing, [steps[name] for _, name in missing if name in steps])
        countdown.count()
    dag = RunState("dag", status.RUNNING, graph="g", pending=len(graph.dag_steps), ready_at=NOW)
    return countdown.moved({"dag": dag}, NOW), countdown.skipped["dag"]


def test_the_end_of_a_step_releases_those_that_waited_for_it_alone() -> None:
    steps = {name: blocked(DIAMOND, name) for name in "bcd"}
    moved, skipped = count_down(DIAMOND, steps, ("a", "completed"))
    assert {step.dag_step: (step.status, step.ready, step.ready_at) for step in moved} == {
        "b": ("queued", True, NOW + 1), "c": ("queued", True, NOW + 1)
    }  # fmt: skip
    assert skipped == 0


def test_two_ends_in_one_batch_are_both_counted() -> None:
    [step], _ = count_down(DIAMOND, {"d": blocked(DIAMOND, "d")}, ("b", "completed"), ("c", "completed"))
    assert (step.pending, step.met, step.ready) == (0, 2, True)


def test_what_is_skipped_is_settled_and_so_on() -> None:
    steps = {name: blocked(DIAMOND, name) for name in "bcd"}
    moved, skipped = count_down(DIAMOND, steps, ("a", "skipped"))
    assert {step.dag_step: step.status for step in moved} == dict.fromkeys("bcd", "skipped")
    assert skipped == 3


@pytest.mark.parametrize("outcome", ["completed", "skipped", "failed", "cancelled", "caught:mend"])
def test_which_ends_let_the_dag_run_fail(outcome: str) -> None:
    assert bool(fallen([Settled("dag", "a", outcome, DIAMOND)])) == (outcome in ("failed", "cancelled"))


@given(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans(), st.booleans())
def test_a_dag_run_is_finished_after_its_last_step(left: int, ends: int, fails: bool, held: bool, over: bool) -> None:
    dag = RunState(
        "dag", status.PAUSED if held else status.RUNNING, graph="g", pending=left + ends, failing=over,
        paused_at=NOW if held else None, deadline_at=NOW + 9, visible_at=NOW + 9, ready_at=NOW,
    )  # fmt: skip
    after = settle_dag(dag, ends, Why("deadline", ERROR) if fails else None, settled_at(dag, NOW))
    begins = fails and not over
    assert after.pending == left
    assert after.failing == (over or fails)
    assert after.ready == (left == 0 and (begins or (ends > 0 and not held)))
    assert (after.deadline_at is None, after.reason) == (begins, "deadline" if begins else None)
    if begins:
        assert (after.status, after.paused_at, after.error) == ("running", None, ERROR)
    else:
        assert (after.status, after.error) == (dag.status, UNSET)
    assert after.ready_at == NOW + 1


def test_a_dag_run_that_fails_by_a_step_has_no_reason_of_its_own() -> None:
    dag = RunState("dag", status.RUNNING, graph="g", pending=1, reason=None)
    after = settle_dag(dag, 1, BY_A_STEP, NOW)
    assert (after.reason, after.error, after.failing, after.ready) == (None, UNSET, True, True)


@given(lives, st.booleans(), st.booleans())
def test_the_open_steps_of_a_dag_run_that_fails_come_to_an_end(life: Life, undoable: bool, between: bool) -> None:
    for run, now in life.standings():
        step = replace(run, dag_id="dag", dag_step="a", graph="g")
        if not step.ended and not step.undoing:
            after = end_open_step(step, Traces(undoable, between), now)
            assert flaws(after) == []
            assert after.ended != (after.held or after.asked == status.ASK_CANCEL or after.undoing)
            if after.ended:
                assert after.status == (status.CANCELLED if step.begun else status.SKIPPED)
                assert after.attempt == step.attempt - (between and step.begun)


@given(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans())
def test_a_step_that_is_opened_again_waits_or_is_ready(pending: int, met: int, ready: bool, begun: bool) -> None:
    step = RunState(
        "1", status.CANCELLED, claim=2, attempt=2, losses=1, completed_at=1, started_at=1 if begun else None,
        ready_at=7, dag_id="dag", dag_step="a", graph="g",
    )  # fmt: skip
    again = reopen(step, RetriedStep(ready, pending, met), NOW)
    assert (again.ready, again.blocked, again.pending, again.met) == (ready, not ready, pending, met)
    assert (again.claim, again.first_attempt, again.attempt, again.losses) == (2 + begun, 3, 2, 0)
    assert again.ready_at == ((7 if begun else NOW) if ready else None)


@pytest.mark.parametrize("reopened", [0, 2])
def test_a_retried_dag_run_goes_on_with_its_open_steps_or_is_finished(reopened: int) -> None:
    dag = RunState("1", status.FAILED, failing=True, graph="g", attempt=1, claim=3, deadline_ms=50, completed_at=1)
    again = retry_dag(dag, reopened, NOW)
    assert (again.status, again.failing, again.pending, again.ready) == ("running", False, reopened, reopened == 0)
    assert (again.deadline_at, again.visible_at, again.claim, again.first_attempt) == (NOW + 50, NOW + 50, 4, 2)


def test_a_step_released_in_a_held_run_is_held_with_it() -> None:
    step = let_step(blocked(DIAMOND, "b"), "pause", NOW)
    assert (step.status, step.paused_at, step.ready, step.ready_at) == ("paused", NOW, False, NOW)


# -- as rows -------------------------------------------------------------------------------------------------------


def test_payloads_are_written_only_if_they_were_decided() -> None:
    run = RunState("1", status.QUEUED)
    assert written(run)[-6:-1] == (False, None, None, False, None)
    assert written(replace(run, output=None, error="e", output_format=1))[-6:-1] == (True, None, 1, True, "e")
    assert "output" not in READ_COLUMNS and len(READ_COLUMNS) == len(asdict(run)) - 3


@pytest.mark.parametrize(("one", "other", "first"), [(None, None, None), (1, None, 1), (None, 2, 2), (3, 2, 2)])
def test_the_sooner_of_two_times(one: int | None, other: int | None, first: int | None) -> None:
    assert sooner(one, other) == first


# -- what a cancellation does after a loss


@pytest.mark.parametrize(
    ("losses", "unrecorded", "status", "waiting_for", "first"),
    [
        (0, 0, "queued", None, False),
        (1, 1, "queued", None, True),
        (1, 1, "paused", None, True),
        (1, 1, "waiting", "signal, time", False),
        (1, 1, "waiting", "retry", True),
        (1, 1, "waiting", "signal, retry", True),
        (1, 1, "waiting", "check", True),
        (1, 1, "waiting", "signal, child, time, graph, more", True),
        (2, 2, "queued", None, False),
        (0, 3, "queued", None, True),
        (1, 3, "queued", None, True),
    ],
)
def test_after_a_loss_a_record_comes_first(
    losses: int, unrecorded: int, status: str, waiting_for: str | None, first: bool
) -> None:
    """One that waits for others has come to the end of what it had begun, unless a step waits for its next try."""
    assert goes_on_first(losses, unrecorded, status, waiting_for) == first


@pytest.mark.parametrize(
    ("running", "last", "named"),
    [
        ("charge", "reserve", "step 'charge'"),
        (None, "reserve", "the step after 'reserve'"),
        (None, None, "its first step"),
    ],
)
def test_a_suspect_says_which_step_may_have_acted(running: str | None, last: str | None, named: str) -> None:
    text = may_have_acted(2, 3, "queued", running, last)
    assert text is not None
    assert json.loads(text)["message"].startswith(f"{named} may have acted: 3 workers died")


def test_nobody_else_says_so() -> None:
    assert may_have_acted(1, 3, "queued", "charge", None) is None
    assert may_have_acted(3, 3, "waiting", "charge", None, "time") is None
    assert may_have_acted(3, 3, "waiting", "charge", None, "retry") is not None


# -- debounced starts


FIRST, LATER = 1_000_000, 1_003_000
BOTH = Debounce(5_000, 60_000)


def put_off_run(**changes: object) -> RunState:
    return RunState("run", "queued", visible_at=FIRST + 5_000, **changes)  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.none() | st.integers(1, 10**6))
def test_a_run_is_due_after_its_last_start_but_not_beyond_the_maximum(later: int, wait: int, most: int | None) -> None:
    due = Debounce(wait, most).due_at(FIRST, FIRST + later)
    assert due <= FIRST + later + wait
    assert most is None or due <= FIRST + most
    assert due in (FIRST + later + wait, FIRST + (most or 0))


def test_one_that_waits_is_put_off() -> None:
    run = put_off(put_off_run(), FIRST, LATER, BOTH, None)
    assert (run.place, run.visible_at, run.status) == (None, LATER + 5_000, "queued")


def test_one_that_is_ready_waits_again() -> None:
    ready = awake(put_off_run(), LATER, 1)
    assert ready.ready
    run = put_off(ready, FIRST, LATER, BOTH, None)
    assert (run.place, run.visible_at) == (None, LATER + 5_000)


def test_one_whose_time_is_up_is_ready() -> None:
    late = FIRST + 60_000
    run = put_off(put_off_run(), FIRST, late, BOTH, None)
    assert run.ready and run.visible_at is None
    ready = awake(put_off_run(), LATER, 1)
    assert put_off(ready, FIRST, late, BOTH, None).place == ready.place, "it keeps its place in the queue"


def test_a_deadline_and_an_expiry_hold() -> None:
    run = put_off(put_off_run(deadline_at=LATER + 100), FIRST, LATER, BOTH, 30_000)
    assert (run.visible_at, run.expires_at) == (LATER + 100, LATER + 35_000)
    ready = put_off(put_off_run(), FIRST, FIRST + 60_000, BOTH, 30_000)
    assert ready.ready and ready.visible_at == ready.expires_at == FIRST + 90_000


def test_one_that_is_paused_stays_so_and_is_due_later() -> None:
    held = operator.pause(put_off_run(), LATER)
    assert held is not None
    run = put_off(held, FIRST, LATER, BOTH, None)
    assert (run.status, run.place, run.visible_at, run.held_due) == ("paused", None, None, LATER + 5_000)


@pytest.mark.parametrize("most", [None, 60_000])
def test_the_first_start_is_due_after_its_wait(most: int | None) -> None:
    assert Debounce(5_000, most).due_at(FIRST, FIRST) == FIRST + 5_000


# -- how many suspects are tried at once


def test_groups_shrink_from_half_of_the_slots_to_one() -> None:
    assert [group_size(losses, 5, 100) for losses in range(2, 7)] == [50, 7, 1, 1, 1]
    assert [group_size(losses, 8, 64) for losses in range(2, 8)] == [32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize("slots", [1, 2, 7, 100, 5000])
@pytest.mark.parametrize("max_losses", range(1, 12))
def test_the_last_try_before_a_dead_letter_is_made_alone(max_losses: int, slots: int) -> None:
    sizes = [group_size(losses, max_losses, slots) for losses in range(2, max(3, max_losses))]
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= max(1, slots // 2)


def test_room_is_shared_by_all_suspects_at_hand() -> None:
    assert room_for_suspects([], 5, 100) == [50, 7, 1]
    assert room_for_suspects([2] * 25, 5, 100) == [25, 3, 0]
    assert room_for_suspects([2] * 50, 5, 100) == [0, 0, 0]
    assert room_for_suspects([3, 3], 5, 100) == [35, 5, 0]
    assert room_for_suspects([4], 5, 100) == [0, 0, 0]
    assert room_for_suspects([9, 9], 5, 100) == [0, 0, 0], "more than there should be is still no room"


def test_with_few_losses_allowed_suspects_are_alone_or_there_are_none() -> None:
    assert room_for_suspects([], 3, 100) == [1]
    assert room_for_suspects([], 1, 100) == [1]
