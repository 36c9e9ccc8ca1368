"""The checker finds each kind of violation in a story made up by hand, and nothing in a story without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.faults.checker import check, false_losses
from tests.faults.evidence import (
    ASKS,
    CHANGED,
    DELETED,
    FROZEN,
    INSERTED,
    KILLED,
    LATE,
    OUTAGE,
    RAISES,
    STOPPED,
    TASK,
    TRIED,
    Act,
    Evidence,
    Fault,
    Move,
    Run,
    Seen,
    Start,
    Step,
    Try,
    Wish,
    Write,
)
from tests.faults.storm import trouble
from tests.faults.story import tell

MS = 1000
S = 1000 * MS


def story() -> Evidence:
    """A run of three steps whose first worker is killed in the second step, and a task. All in order."""
    return Evidence(
        starts=[Start(1 * MS, "run", "chain"), Start(1 * MS, "task", "simple", "key 1")],
        acts=[
            act(10 * MS, 0, 1, 100, "a"),
            act(20 * MS, 1, 1, 100, "b", needs=1),
            act(5 * S, 1, 2, 200, "c", needs=1),
            act(6 * S, 2, 2, 200, "d", needs=2),
            Act(30 * MS, "task", "simple", TASK, "simple", 1, 1, 200, "t"),
        ],
        seen=[Seen("run", "completed", '["a", "c", "d"]'), Seen("task", "completed", '"t"')],
        faults=[Fault(100, KILLED, 21 * MS, 22 * MS)],
        runs=[
            Run("run", "chain", "completed", output='["a","c","d"]', claim=2),
            Run("task", "simple", "completed", key="key 1", output='"t"', claim=1),
        ],
        steps=[step(15 * MS, 0, 1, 1, "a"), step(5500 * MS, 1, 2, 2, "c"), step(6500 * MS, 2, 2, 3, "d")],
        writes=[wrote(15 * MS, 0, 1, 1, "a"), wrote(5500 * MS, 1, 2, 2, "c"), wrote(6500 * MS, 2, 2, 2, "d")],
        moves=[
            born("run"),
            claimed(5 * MS, "run", 1, "w1"),
            left(4 * S, "run", 1, "w1", "queued", losses=1),
            claimed(4500 * MS, "run", 2, "w2", losses=1),
            left(7 * S, "run", 2, "w2", "completed", losses=1, old_losses=1),
            born("task"),
            claimed(5 * MS, "task", 1, "w2"),
            left(50 * MS, "task", 1, "w2", "completed"),
        ],
        workers={"w1": 100, "w2": 200},
        lease=3,
    )


def act(at: int, position: int, claim: int, pid: int, nonce: str, does: str = "returns", needs: int = 0) -> Act:
    return Act(at, "run", "chain", position, "work", claim, 1, pid, nonce, does, needs)


def step(at: int, position: int, claim: int, seq: int, nonce: str) -> Step:
    return Step("run", position, "work", claim, seq, "completed", f'"{nonce}"', at)


def wrote(at: int, position: int, claim: int, run_claim: int, nonce: str, what: str = INSERTED) -> Write:
    return Write(at, what, "run", position, claim, run_claim, f'"{nonce}"')


def born(run: str) -> Move:
    return Move(0, run, 0, 0, "queued", "", None, None, 0, 0)


def claimed(at: int, run: str, claim: int, worker: str, losses: int = 0, attempt: int = 1) -> Move:
    return Move(at, run, claim, claim - 1, "running", "queued", worker, None, attempt, attempt, losses, losses)


def left(
    at: int, run: str, claim: int, worker: str, status: str, losses: int = 0, old_losses: int = 0, failed: int = 0
) -> Move:
    return Move(at, run, claim, claim, status, "running", None, worker, 1 + failed, 1, losses, old_losses)


def kinds(evidence: Evidence) -> set[str]:
    return {violation.kind for violation in check(evidence)}


def test_a_story_without_violations() -> None:
    assert check(story()) == []


# -- one change each, and what it must be called -------------------------------------------------------------------


def lose_a_start(e: Evidence) -> None:
    e.starts.append(Start(2 * MS, "gone", "chain"))
    e.seen.append(Seen("gone", "completed", "1"))


def give_a_key_two_runs(e: Evidence) -> None:
    e.starts.append(Start(2 * MS, "run", "simple", "key 1"))


def start_one_thing_and_store_another(e: Evidence) -> None:
    e.starts[0] = Start(1 * MS, "run", "parallel")


def leave_an_orphan(e: Evidence) -> None:
    e.others.append(("progress", "nobody"))


def leave_an_orphan_step(e: Evidence) -> None:
    e.steps.append(dataclasses.replace(e.steps[0], run="nobody"))


def tell_a_caller_something_else(e: Evidence) -> None:
    e.seen[0] = Seen("run", "completed", '["a", "b", "d"]')


def tell_a_caller_of_a_failure(e: Evidence) -> None:
    e.seen[0] = Seen("run", "failed")


def tell_a_caller_nothing(e: Evidence) -> None:
    del e.seen[0]


def leave_a_run_behind(e: Evidence) -> None:
    e.runs[0] = Run("run", "chain", "running", claim=2, held=True)


def end_a_run_but_keep_its_place(e: Evidence) -> None:
    e.runs[0] = dataclasses.replace(e.runs[0], held=True)


def end_a_run_twice(e: Evidence) -> None:
    e.moves.insert(5, Move(8 * S, "run", 2, 2, "failed", "completed", None, None))


def fail_a_run_that_should_complete(e: Evidence) -> None:
    e.runs[0] = Run("run", "chain", "failed", "workers_lost", claim=2)
    e.seen[0] = Seen("run", "failed")
    e.moves[4] = left(7 * S, "run", 2, "w2", "failed", losses=2, old_losses=1)


def accept_a_late_outcome(e: Evidence) -> None:
    e.writes[1] = wrote(5500 * MS, 1, 1, 2, "b")


def accept_a_late_try(e: Evidence) -> None:
    e.writes.append(Write(5 * S, TRIED, "run", 1, 1, 2))


def record_an_older_claim_after_a_newer(e: Evidence) -> None:
    e.writes.clear()
    e.steps[2] = step(6500 * MS, 2, 1, 3, "d")


def give_two_outcomes_one_number(e: Evidence) -> None:
    e.steps[2] = step(6500 * MS, 2, 2, 2, "d")


def change_a_record(e: Evidence) -> None:
    e.writes.append(wrote(6 * S, 0, 1, 2, "z", CHANGED))


def record_a_step_twice(e: Evidence) -> None:
    e.steps.append(dataclasses.replace(e.steps[1], seq=4))


def record_what_nobody_made(e: Evidence) -> None:
    e.steps[1] = step(5500 * MS, 1, 2, 2, "x")


def record_what_another_claim_made(e: Evidence) -> None:
    e.steps[1] = step(5500 * MS, 1, 2, 2, "b")


def record_a_failure_that_was_none(e: Evidence) -> None:
    e.steps[1] = dataclasses.replace(e.steps[1], status="failed", output=None)


def record_a_try_that_was_none(e: Evidence) -> None:
    e.tries.append(Try("run", 0, 1, 1, 1, 12 * MS))
    e.writes.append(Write(12 * MS, TRIED, "run", 0, 1, 1, kind="try", status="failed"))


def record_without_an_act(e: Evidence) -> None:
    e.steps.append(step(6800 * MS, 3, 2, 4, "y"))


def act_once_more(e: Evidence) -> None:
    e.acts.append(act(6100 * MS, 2, 2, 200, "e", needs=2))


def act_twice_for_one_that_was_given_up(e: Evidence) -> None:
    e.acts += [act(4600 * MS, 1, 2, 200, "f1", needs=1), act(4700 * MS, 1, 2, 200, "f2", needs=1)]
    e.tries.append(Try("run", 1, 2, 1, 1, 4650 * MS, timed_out=True))


def act_three_times_with_one_loss(e: Evidence) -> None:
    e.acts.append(act(21 * MS, 1, 1, 100, "e", needs=1))


def act_without_a_failure_or_a_loss(e: Evidence) -> None:
    """The first worker was neither killed nor reaped: it released the run."""
    e.moves[2] = left(4 * S, "run", 1, "w1", "waiting")


def act_without_a_record_and_be_paused(e: Evidence) -> None:
    """Without a stop of its worker, a run is paused between two steps."""
    stop_while_a_pause_is_asked_for(e)
    e.faults.clear()


def lose_without_cause(e: Evidence) -> None:
    e.strict = True
    e.faults.clear()


def lose_by_too_short_a_pause(e: Evidence) -> None:
    e.strict = True
    e.faults[:] = [Fault(100, FROZEN, 20 * MS, 520 * MS)]


def lose_before_the_kill(e: Evidence) -> None:
    e.strict = True
    e.faults[:] = [Fault(100, KILLED, 8 * S, 8 * S)]


def call_a_recorded_step_again(e: Evidence) -> None:
    e.acts.append(act(4600 * MS, 0, 2, 200, "e"))


def act_without_a_claim(e: Evidence) -> None:
    e.acts.append(act(6100 * MS, 2, 7, 200, "e"))


def act_under_somebody_else_s_claim(e: Evidence) -> None:
    e.acts[3] = act(6 * S, 2, 2, 100, "d", needs=2)


def take_a_run_that_is_held(e: Evidence) -> None:
    e.moves[2:4] = [Move(4500 * MS, "run", 2, 1, "running", "running", "w2", "w1")]


def begin_before_the_last_step_is_on_record(e: Evidence) -> None:
    e.acts[3] = act(5400 * MS, 2, 2, 200, "d", needs=2)


def begin_when_the_last_step_is_never_recorded(e: Evidence) -> None:
    e.acts[3] = act(6 * S, 2, 2, 200, "d", needs=4)


def see_something_else_than_the_record(e: Evidence) -> None:
    e.runs[0] = dataclasses.replace(e.runs[0], output='["a","b","d"]')


def complete_a_task_with_what_an_older_claim_made(e: Evidence) -> None:
    e.acts.append(Act(6 * S, "task", "simple", TASK, "simple", 2, 1, 100, "u"))
    e.runs[1] = dataclasses.replace(e.runs[1], claim=2)


def hand_out_before_its_time(e: Evidence) -> None:
    e.moves[2] = dataclasses.replace(left(3 * S, "run", 1, "w1", "queued", failed=1), due=6 * S)


def hand_out_a_delayed_start_before_its_time(e: Evidence) -> None:
    e.moves[0] = dataclasses.replace(e.moves[0], due=1 * S)


VIOLATIONS: list[tuple[Callable[[Evidence], None], str]] = [
    (lose_a_start, "lost start"),
    (give_a_key_two_runs, "key twice"),
    (start_one_thing_and_store_another, "wrong run"),
    (leave_an_orphan, "orphan"),
    (leave_an_orphan_step, "orphan"),
    (tell_a_caller_something_else, "wrong result"),
    (tell_a_caller_of_a_failure, "wrong result"),
    (tell_a_caller_nothing, "no result"),
    (leave_a_run_behind, "left behind"),
    (end_a_run_but_keep_its_place, "left behind"),
    (end_a_run_twice, "ended twice"),
    (fail_a_run_that_should_complete, "failed"),
    (accept_a_late_outcome, "late write"),
    (accept_a_late_try, "late write"),
    (record_an_older_claim_after_a_newer, "late write"),
    (give_two_outcomes_one_number, "late write"),
    (change_a_record, "record changed"),
    (record_a_step_twice, "recorded twice"),
    (record_what_nobody_made, "made up"),
    (record_what_another_claim_made, "made up"),
    (record_a_failure_that_was_none, "made up"),
    (record_a_try_that_was_none, "made up"),
    (record_without_an_act, "no act"),
    (act_once_more, "unaccounted act"),
    (act_twice_for_one_that_was_given_up, "unaccounted act"),
    (act_three_times_with_one_loss, "too many acts"),
    (act_three_times_with_one_loss, "unaccounted act"),
    (act_without_a_failure_or_a_loss, "unaccounted act"),
    (act_without_a_record_and_be_paused, "unaccounted act"),
    (lose_without_cause, "lost without cause"),
    (lose_by_too_short_a_pause, "lost without cause"),
    (lose_before_the_kill, "lost without cause"),
    (call_a_recorded_step_again, "called again"),
    (act_without_a_claim, "no claim"),
    (act_under_somebody_else_s_claim, "no claim"),
    (take_a_run_that_is_held, "claimed twice"),
    (begin_before_the_last_step_is_on_record, "too soon"),
    (begin_when_the_last_step_is_never_recorded, "too soon"),
    (see_something_else_than_the_record, "wrong output"),
    (complete_a_task_with_what_an_older_claim_made, "wrong output"),
    (hand_out_before_its_time, "too early"),
    (hand_out_a_delayed_start_before_its_time, "too early"),
]


@pytest.mark.parametrize(
    ("change", "kind"), VIOLATIONS, ids=[f"{change.__name__}: {kind}" for change, kind in VIOLATIONS]
)
def test_a_violation_is_found(change: Callable[[Evidence], None], kind: str) -> None:
    evidence = story()
    change(evidence)
    assert kind in kinds(evidence)


# -- what looks alike, and is none ---------------------------------------------------------------------------------


def freeze_instead_of_killing(e: Evidence) -> None:
    e.faults[:] = [Fault(100, FROZEN, 20 * MS, 4100 * MS)]
    e.strict = True


def cut_everybody_off_instead(e: Evidence) -> None:
    e.faults[:] = [Fault(0, OUTAGE, 20 * MS, 4100 * MS)]
    e.strict = True


def lose_a_lease_to_a_slow_machine(e: Evidence) -> None:
    e.faults.clear()


def fail_tries(e: Evidence) -> None:
    """The second act of the second step fails, and the third succeeds; a late one is given up in between."""
    e.acts += [act(4600 * MS, 1, 2, 200, "f1", RAISES, 1), act(4700 * MS, 1, 2, 200, "f2", LATE, 1)]
    e.tries += [Try("run", 1, 2, 1, 1, 4650 * MS), Try("run", 1, 2, 1, 2, 4800 * MS)]
    e.writes += [Write(4650 * MS, TRIED, "run", 1, 2, 2), Write(4800 * MS, TRIED, "run", 1, 2, 2)]


def give_up_an_act_that_was_called_late(e: Evidence) -> None:
    """It would have returned; another try was given up before its function was called at all."""
    e.acts.append(act(4600 * MS, 1, 2, 200, "f1", needs=1))
    e.tries += [Try("run", 1, 2, 1, 1, 4650 * MS, timed_out=True), Try("run", 1, 2, 1, 2, 4800 * MS, timed_out=True)]


def wait_until_the_time_is_up(e: Evidence) -> None:
    """No check failed; that the time is up is on record as a failed try."""
    e.acts.append(dataclasses.replace(act(6600 * MS, 3, 2, 200, "no", ASKS, 3), name="is_so"))
    e.steps.append(Step("run", 3, "is_so", 2, 4, "failed", None, 6800 * MS, kind="wait_until"))
    e.tries.append(Try("run", 3, 2, 1, 1, 6800 * MS, waited_out=True))
    e.runs[0] = dataclasses.replace(e.runs[0], output='["a","c","d",null]')
    e.seen[0] = Seen("run", "completed", '["a","c","d",null]')


def stop_instead_of_being_lost(e: Evidence, asked: str | None = None, status: str = "queued") -> None:
    """The worker stops in the middle of the second step, and gives the run back."""
    e.faults[:] = [Fault(100, STOPPED, 3 * S, 8 * S)]
    e.strict = True
    e.moves[2:3] = [
        dataclasses.replace(left(2 * S, "run", 1, "w1", "running"), worker="w1", asked=asked),
        left(4 * S, "run", 1, "w1", status),
    ]


def stop_while_a_pause_is_asked_for(e: Evidence) -> None:
    """Then the run is paused where it is, which is not between two steps."""
    stop_instead_of_being_lost(e, "pause", "paused")
    e.moves.insert(4, Move(4100 * MS, "run", 1, 1, "queued", "paused", None, None, wakes=1))
    e.wishes += [Wish(2 * S, "run", "pause", True, 2 * S), Wish(4050 * MS, "run", "resume", True, 4200 * MS)]


def time_an_attempt_out(e: Evidence) -> None:
    """The first attempt ends in the second step; its thread comes back with a value that nobody wants."""
    e.faults.clear()
    e.strict = True
    e.tries.append(Try("run", -1, 1, 1, 1, 4 * S))
    e.moves[2] = left(4 * S, "run", 1, "w1", "queued", failed=1)
    e.moves[3] = claimed(4500 * MS, "run", 2, "w2", attempt=2)


def make_a_record_anew(e: Evidence) -> None:
    """The second step was on record as completed, and the new attempt forgot it."""
    time_an_attempt_out(e)
    e.writes += [wrote(30 * MS, 1, 1, 1, "b"), wrote(4 * S, 1, 1, 1, "b", DELETED)]


def start_a_key_twice(e: Evidence) -> None:
    e.starts.append(Start(90 * MS, "task", "simple", "key 1"))


def wake_a_waiting_run(e: Evidence) -> None:
    e.moves[2] = dataclasses.replace(e.moves[2], due=6 * S)
    e.moves[3] = dataclasses.replace(e.moves[3], wakes=1)


LEGAL = [
    freeze_instead_of_killing,
    cut_everybody_off_instead,
    lose_a_lease_to_a_slow_machine,
    fail_tries,
    give_up_an_act_that_was_called_late,
    wait_until_the_time_is_up,
    stop_instead_of_being_lost,
    stop_while_a_pause_is_asked_for,
    time_an_attempt_out,
    make_a_record_anew,
    start_a_key_twice,
    wake_a_waiting_run,
]


@pytest.mark.parametrize("change", LEGAL, ids=[change.__name__ for change in LEGAL])
def test_what_is_legal_is_not_a_violation(change: Callable[[Evidence], None]) -> None:
    evidence = story()
    change(evidence)
    assert check(evidence) == []


def test_a_loss_without_a_fault_is_counted() -> None:
    evidence = story()
    assert false_losses(evidence) == 0
    lose_a_lease_to_a_slow_machine(evidence)
    assert false_losses(evidence) == 1


def test_the_story_of_a_violating_run_is_told_whole_and_in_order() -> None:
    evidence = story()
    evidence.steps[1] = step(5500 * MS, 1, 2, 2, "x")
    text = tell(evidence, check(evidence))
    order = [
        "made up: run run",
        "acknowledged",
        "act a",
        "act b",
        "process 100: killed",
        "queued → running: claim 2",
        "act c",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "at the end: Run(id='run'" in text


FORGOTTEN = (
    "ERROR Future exception was never retrieved\nfuture: <Future finished exception=ConnectionError('{}')>\nmore\n"
)


def test_a_log_without_trouble_and_with_it() -> None:
    excused = FORGOTTEN.format("unexpected connection_lost() call")
    assert trouble("a line\n" + excused) is None
    assert "reset by peer" in (trouble(excused + FORGOTTEN.format("reset by peer")) or "")
    assert trouble(excused + "CRITICAL the worker broke\n") == "CRITICAL the worker broke\n"
