"""The checker finds each kind of violation in a story made up by hand, and nothing in a story without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.faults.storm import trouble
from tests.judge.evidence import (
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
from tests.judge.made_up import MS, Changes, S, put, put_in
from tests.judge.runs import check, false_losses
from tests.judge.story import tell


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


changes = Changes(story)
changes.add(None, "nothing", lambda e: None)


# -- one change each, and what it must be called -------------------------------------------------------------------


@changes.breaks("lost start")
def lose_a_start(e: Evidence) -> None:
    e.starts.append(Start(2 * MS, "gone", "chain"))
    e.seen.append(Seen("gone", "completed", "1"))


@changes.breaks("failed")
def fail_a_run_that_should_complete(e: Evidence) -> None:
    e.runs[0] = Run("run", "chain", "failed", "workers_lost", claim=2)
    e.seen[0] = Seen("run", "failed")
    e.moves[4] = left(7 * S, "run", 2, "w2", "failed", losses=2, old_losses=1)


@changes.breaks("late write")
def record_an_older_claim_after_a_newer(e: Evidence) -> None:
    e.writes.clear()
    e.steps[2] = step(6500 * MS, 2, 1, 3, "d")


@changes.breaks("made up")
def record_a_try_that_was_none(e: Evidence) -> None:
    e.tries.append(Try("run", 0, 1, 1, 1, 12 * MS))
    e.writes.append(Write(12 * MS, TRIED, "run", 0, 1, 1, kind="try", status="failed"))


@changes.breaks("unaccounted act")
def act_twice_for_one_that_was_given_up(e: Evidence) -> None:
    e.acts += [act(4600 * MS, 1, 2, 200, "f1", needs=1), act(4700 * MS, 1, 2, 200, "f2", needs=1)]
    e.tries.append(Try("run", 1, 2, 1, 1, 4650 * MS, timed_out=True))


@changes.breaks("too many acts", "unaccounted act")
def act_three_times_with_one_loss(e: Evidence) -> None:
    e.acts.append(act(21 * MS, 1, 1, 100, "e", needs=1))


@changes.breaks("unaccounted act")
def act_without_a_record_and_be_paused(e: Evidence) -> None:
    """Without a stop of its worker, a run is paused between two steps."""
    stop_while_a_pause_is_asked_for(e)
    e.faults.clear()


@changes.breaks("lost without cause")
def lose_without_cause(e: Evidence) -> None:
    e.strict = True
    e.faults.clear()


@changes.breaks("lost without cause")
def lose_by_too_short_a_pause(e: Evidence) -> None:
    e.strict = True
    e.faults[:] = [Fault(100, FROZEN, 20 * MS, 520 * MS)]


@changes.breaks("lost without cause")
def lose_before_the_kill(e: Evidence) -> None:
    e.strict = True
    e.faults[:] = [Fault(100, KILLED, 8 * S, 8 * S)]


@changes.breaks("claimed twice")
def take_a_run_that_is_held(e: Evidence) -> None:
    e.moves[2:4] = [Move(4500 * MS, "run", 2, 1, "running", "running", "w2", "w1")]


@changes.breaks("wrong output")
def complete_a_task_with_what_an_older_claim_made(e: Evidence) -> None:
    e.acts.append(Act(6 * S, "task", "simple", TASK, "simple", 2, 1, 100, "u"))
    put(e.runs, 1, claim=2)


TABLE: list[tuple[str | None, str, Callable[[Evidence], object]]] = [
    ("key twice", "give a key two runs", lambda e: e.starts.append(Start(2 * MS, "run", "simple", "key 1"))),
    ("wrong run", "start one thing and store another", lambda e: put_in(e.starts, 0, Start(1 * MS, "run", "parallel"))),
    ("orphan", "leave an orphan", lambda e: e.others.append(("progress", "nobody"))),
    ("orphan", "leave an orphan step", lambda e: e.steps.append(dataclasses.replace(e.steps[0], run="nobody"))),
    ("wrong result", "tell a caller something else",
     lambda e: put_in(e.seen, 0, Seen("run", "completed", '["a", "b", "d"]'))),
    ("wrong result", "tell a caller of a failure", lambda e: put_in(e.seen, 0, Seen("run", "failed"))),
    ("no result", "tell a caller nothing", lambda e: e.seen.pop(0)),
    ("left behind", "leave a run behind",
     lambda e: put_in(e.runs, 0, Run("run", "chain", "running", claim=2, held=True))),
    ("left behind", "end a run but keep its place", lambda e: put(e.runs, 0, held=True)),
    ("ended twice", "end a run twice",
     lambda e: e.moves.insert(5, Move(8 * S, "run", 2, 2, "failed", "completed", None, None))),
    ("late write", "accept a late outcome", lambda e: put_in(e.writes, 1, wrote(5500 * MS, 1, 1, 2, "b"))),
    ("late write", "accept a late try", lambda e: e.writes.append(Write(5 * S, TRIED, "run", 1, 1, 2))),
    ("late write", "give two outcomes one number", lambda e: put_in(e.steps, 2, step(6500 * MS, 2, 2, 2, "d"))),
    ("record changed", "change a record", lambda e: e.writes.append(wrote(6 * S, 0, 1, 2, "z", CHANGED))),
    ("recorded twice", "record a step twice", lambda e: e.steps.append(dataclasses.replace(e.steps[1], seq=4))),
    ("made up", "record what nobody made", lambda e: put_in(e.steps, 1, step(5500 * MS, 1, 2, 2, "x"))),
    ("made up", "record what another claim made", lambda e: put_in(e.steps, 1, step(5500 * MS, 1, 2, 2, "b"))),
    ("made up", "record a failure that was none", lambda e: put(e.steps, 1, status="failed", output=None)),
    ("no act", "record without an act", lambda e: e.steps.append(step(6800 * MS, 3, 2, 4, "y"))),
    ("unaccounted act", "act once more", lambda e: e.acts.append(act(6100 * MS, 2, 2, 200, "e", needs=2))),
    ("unaccounted act", "act without a failure or a loss",
     lambda e: put_in(e.moves, 2, left(4 * S, "run", 1, "w1", "waiting"))),
    ("called again", "call a recorded step again", lambda e: e.acts.append(act(4600 * MS, 0, 2, 200, "e"))),
    ("no claim", "act without a claim", lambda e: e.acts.append(act(6100 * MS, 2, 7, 200, "e"))),
    ("no claim", "act under somebody else s claim", lambda e: put_in(e.acts, 3, act(6 * S, 2, 2, 100, "d", needs=2))),
    ("too soon", "begin before the last step is on record",
     lambda e: put_in(e.acts, 3, act(5400 * MS, 2, 2, 200, "d", needs=2))),
    ("too soon", "begin when the last step is never recorded",
     lambda e: put_in(e.acts, 3, act(6 * S, 2, 2, 200, "d", needs=4))),
    ("wrong output", "see something else than the record", lambda e: put(e.runs, 0, output='["a","b","d"]')),
    ("too early", "hand out before its time",
     lambda e: put_in(e.moves, 2, dataclasses.replace(left(3 * S, "run", 1, "w1", "queued", failed=1), due=6 * S))),
    ("too early", "hand out a delayed start before its time", lambda e: put(e.moves, 0, due=1 * S)),
    (None, "start a key twice", lambda e: e.starts.append(Start(90 * MS, "task", "simple", "key 1"))),
]  # fmt: skip


for _kind, _name, _change in TABLE:
    changes.add(_kind, _name, _change)


# -- what looks alike, and is none ---------------------------------------------------------------------------------


@changes.legal
def freeze_instead_of_killing(e: Evidence) -> None:
    e.faults[:] = [Fault(100, FROZEN, 20 * MS, 4100 * MS)]
    e.strict = True


@changes.legal
def cut_everybody_off_instead(e: Evidence) -> None:
    e.faults[:] = [Fault(0, OUTAGE, 20 * MS, 4100 * MS)]
    e.strict = True


@changes.legal
def lose_a_lease_to_a_slow_machine(e: Evidence) -> None:
    e.faults.clear()


@changes.legal
def fail_tries(e: Evidence) -> None:
    """The second act of the second step fails, and the third succeeds; a late one is given up in between."""
    e.acts += [act(4600 * MS, 1, 2, 200, "f1", RAISES, 1), act(4700 * MS, 1, 2, 200, "f2", LATE, 1)]
    e.tries += [Try("run", 1, 2, 1, 1, 4650 * MS), Try("run", 1, 2, 1, 2, 4800 * MS)]
    e.writes += [Write(4650 * MS, TRIED, "run", 1, 2, 2), Write(4800 * MS, TRIED, "run", 1, 2, 2)]


@changes.legal
def give_up_an_act_that_was_called_late(e: Evidence) -> None:
    """It would have returned; another try was given up before its function was called at all."""
    e.acts.append(act(4600 * MS, 1, 2, 200, "f1", needs=1))
    e.tries += [Try("run", 1, 2, 1, 1, 4650 * MS, timed_out=True), Try("run", 1, 2, 1, 2, 4800 * MS, timed_out=True)]


@changes.legal
def wait_until_the_time_is_up(e: Evidence) -> None:
    """No check failed; that the time is up is on record as a failed try."""
    e.acts.append(dataclasses.replace(act(6600 * MS, 3, 2, 200, "no", ASKS, 3), name="is_so"))
    e.steps.append(Step("run", 3, "is_so", 2, 4, "failed", None, 6800 * MS, kind="wait_until"))
    e.tries.append(Try("run", 3, 2, 1, 1, 6800 * MS, waited_out=True))
    put(e.runs, 0, output='["a","c","d",null]')
    e.seen[0] = Seen("run", "completed", '["a","c","d",null]')


@changes.legal
def stop_instead_of_being_lost(e: Evidence, asked: str | None = None, status: str = "queued") -> None:
    """The worker stops in the middle of the second step, and gives the run back."""
    e.faults[:] = [Fault(100, STOPPED, 3 * S, 8 * S)]
    e.strict = True
    e.moves[2:3] = [
        dataclasses.replace(left(2 * S, "run", 1, "w1", "running"), worker="w1", asked=asked),
        left(4 * S, "run", 1, "w1", status),
    ]


@changes.legal
def stop_while_a_pause_is_asked_for(e: Evidence) -> None:
    """Then the run is paused where it is, which is not between two steps."""
    stop_instead_of_being_lost(e, "pause", "paused")
    e.moves.insert(4, Move(4100 * MS, "run", 1, 1, "queued", "paused", None, None, wakes=1))
    e.wishes += [Wish(2 * S, "run", "pause", True, 2 * S), Wish(4050 * MS, "run", "resume", True, 4200 * MS)]


@changes.legal
def time_an_attempt_out(e: Evidence) -> None:
    """The first attempt ends in the second step; its thread comes back with a value that nobody wants."""
    e.faults.clear()
    e.strict = True
    e.tries.append(Try("run", -1, 1, 1, 1, 4 * S))
    e.moves[2] = left(4 * S, "run", 1, "w1", "queued", failed=1)
    e.moves[3] = claimed(4500 * MS, "run", 2, "w2", attempt=2)


@changes.legal
def make_a_record_anew(e: Evidence) -> None:
    """The second step was on record as completed, and the new attempt forgot it."""
    time_an_attempt_out(e)
    e.writes += [wrote(30 * MS, 1, 1, 1, "b"), wrote(4 * S, 1, 1, 1, "b", DELETED)]


@changes.legal
def wake_a_waiting_run(e: Evidence) -> None:
    put(e.moves, 2, due=6 * S)
    put(e.moves, 3, wakes=1)


@pytest.mark.parametrize(("story", "change", "kind"), changes.cases)
def test_a_violation_is_found_and_what_is_legal_is_none(
    story: Callable[[], Evidence], change: Callable[[Evidence], object], kind: str | None
) -> None:
    evidence = story()
    change(evidence)
    found = {violation.kind for violation in check(evidence)}
    assert kind in found if kind else found == set()


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
        "made up: run run", "acknowledged", "act a", "act b", "process 100: killed", "queued → running: claim 2",
        "act c",
    ]  # fmt: skip
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
