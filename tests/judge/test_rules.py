"""The checker's rules beyond steps: each finds its violation in a story made up by hand, and nothing in one without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.judge.evidence import (
    ASKS,
    CHANGED,
    DELETED,
    FROZEN,
    INSERTED,
    KILLED,
    UNDO,
    Act,
    Evidence,
    Fault,
    Letter,
    Move,
    Row,
    Seen,
    Signal,
    Step,
    Try,
    Write,
)
from tests.judge.made_up import MS, Changes, S, change_run, change_step, put, put_in, story, the_run, the_step
from tests.judge.runs import check
from tests.judge.story import tell

changes = Changes(story)
changes.add(None, "nothing", lambda e: None)


# -- one change each, and what it must be called -------------------------------------------------------------------


@changes.breaks("too soon")
def go_on_with_an_open_record(e: Evidence) -> None:
    """The step before is only begun."""
    change_step(e, "sleeper", ("", 0), status="waiting")
    e.writes[:] = [w for w in e.writes if (w.run, w.position) != ("sleeper", 0)]


@changes.breaks("signal lost")
def lose_a_signal(e: Evidence) -> None:
    e.signals.append(Signal(70 * MS, "ear", "word", "u", 1, "u1", 80 * MS))


@changes.breaks("signal lost")
def lose_a_signal_that_was_left(e: Evidence) -> None:
    e.letters.clear()


@changes.breaks("signal out of order")
def take_the_second_of_a_sender_first(e: Evidence) -> None:
    change_step(e, "ear", ("", 0), output='"s2"')
    change_step(e, "ear", ("", 1), output='"s1"')


@changes.breaks("signal out of order")
def take_a_later_one_of_another_sender_first(e: Evidence) -> None:
    put(e.signals, 2, at=50 * MS)
    change_step(e, "ear", ("", 1), output='"t1"')
    change_step(e, "ear", ("", 2), output='"s2"')


@changes.breaks("child lost")
def record_a_start_without_a_child(e: Evidence) -> None:
    del e.runs[the_run(e, "kid")]
    e.moves[:] = [move for move in e.moves if move.run != "kid"]


@changes.breaks("child twice")
def start_a_child_twice(e: Evidence) -> None:
    e.runs.append(dataclasses.replace(e.runs[the_run(e, "kid")], id="twin"))
    e.acts.append(Act(2 * S, "twin", "simple", -1, "simple", 1, 1, 100, "x"))


@changes.breaks("wrong child")
def tell_a_parent_something_else(e: Evidence) -> None:
    change_step(e, "parent", ("", 1), output='"y"')
    change_run(e, "parent", output='{"seen": {":1": "y", ":2": "failed"}}')


@changes.breaks("wrong child")
def tell_a_parent_of_a_success(e: Evidence) -> None:
    change_step(e, "parent", ("", 2), status="completed", output='"z"')
    change_run(e, "parent", output='{"seen": {":1": "x", ":2": "z"}}')


@changes.breaks("child of the cancelled")
def start_a_child_of_the_cancelled(e: Evidence) -> None:
    births = [move for move in e.moves if move.run == "orphan" and not move.old_status]
    e.moves[:] = [move for move in e.moves if move not in births] + births


@changes.breaks("row twice")
def write_a_row_twice(e: Evidence) -> None:
    e.rows.append(e.rows[0])


@changes.breaks("row without a record", "record without a row")
def keep_the_row_of_another_act(e: Evidence) -> None:
    e.rows[0] = Row("bank", "", 0, "s")


@changes.breaks("undone out of order")
def undo_the_first_step_first(e: Evidence) -> None:
    for n, act in enumerate(e.acts):
        if act.place == (UNDO, 1) and act.run == "tripper":
            e.acts[n] = dataclasses.replace(act, at=1500 * MS)


@changes.breaks("too many acts", "unaccounted act")
def undo_a_step_twice(e: Evidence) -> None:
    e.acts.append(Act(2500 * MS, "tripper", "", 2, "work", 2, 1, 100, "again", branch=UNDO, undoes="v"))
    e.acts.append(Act(2600 * MS, "tripper", "", 2, "work", 2, 1, 100, "again and again", branch=UNDO, undoes="v"))


@changes.breaks("called again")
def undo_a_recorded_undo_again(e: Evidence) -> None:
    e.acts.append(Act(3500 * MS, "tripper", "", 2, "work", 3, 1, 100, "again", branch=UNDO, undoes="v"))
    e.moves += [Move(3400 * MS, "tripper", 3, 2, "compensating", "compensating", "w", None)]


@changes.breaks("undid something else")
def undo_with_another_output(e: Evidence) -> None:
    for n, act in enumerate(e.acts):
        if act.place == (UNDO, 1) and act.run == "tripper":
            e.acts[n] = dataclasses.replace(act, undoes="v")


@changes.breaks("undone for nothing")
def undo_a_run_that_completed(e: Evidence) -> None:
    change_run(e, "tripper", status="completed", output='{"seen": {":0": "u", "0.1:0": "v"}}')
    e.seen[0] = Seen("tripper", "completed", '{"seen": {":0": "u", "0.1:0": "v"}}')


@changes.breaks("not cancelled")
def fail_what_was_cancelled(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="code")


@changes.breaks("acted after its cancel")
def go_on_after_the_cancellation(e: Evidence) -> None:
    e.acts.append(Act(3 * S, "doomed", "", 2, "work", 2, 1, 100, "more"))
    e.moves += [Move(2 * S, "doomed", 2, 1, "running", "queued", "w", None, asked="cancel")]


@changes.legal
def go_on_after_a_loss(e: Evidence, losses: int = 1) -> None:
    """The worker died with it; so it goes on to its next record first, and is cancelled then."""
    end = next(n for n, move in enumerate(e.moves) if move.run == "doomed" and move.status == "cancelled")
    e.moves[end : end + 1] = [
        Move(1 * S, "doomed", 1, 1, "queued", "running", None, "w", losses=losses, asked="cancel"),
        Move(2 * S, "doomed", 2, 1, "running", "queued", "w", None, losses=losses, old_losses=losses, asked="cancel"),
        Move(9 * S, "doomed", 2, 2, "cancelled", "running", None, "w", losses=losses, old_losses=losses),
    ]
    e.faults.append(Fault(100, KILLED, 40 * MS, 40 * MS))
    e.acts.append(Act(3 * S, "doomed", "", 2, "work", 2, 1, 100, "more", needs=2))
    e.steps.append(Step("doomed", 2, "work", 2, 3, "completed", '"more"', 3 * S + 5 * MS))


@changes.legal
def go_on_after_a_loss_and_a_wait(e: Evidence, recorded: bool = False) -> None:
    """The run has come to a wait since, which clears the loss, and tells nothing of the step that was lost."""
    go_on_after_a_loss(e, losses=0)
    first = next(n for n, move in enumerate(e.moves) if move.run == "doomed" and move.asked == "cancel")
    e.moves[first:first] = [
        Move(500 * MS, "doomed", 1, 1, "queued", "running", None, "w", losses=1),
        Move(600 * MS, "doomed", 1, 1, "waiting", "running", None, "w", losses=0, old_losses=1),
    ]
    if recorded:
        e.writes.append(Write(550 * MS, INSERTED, "doomed", 1, 1, 1, '"made"'))


@changes.breaks("acted after its cancel")
def go_on_although_it_has_recorded_since(e: Evidence) -> None:
    go_on_after_a_loss_and_a_wait(e, recorded=True)


@changes.breaks("acted after its cancel")
def go_on_past_the_record(e: Evidence) -> None:
    """So soon after it that the clocks could not tell."""
    go_on_after_a_loss(e)
    e.acts.append(Act(3 * S + 6 * MS, "doomed", "", 3, "work", 2, 1, 100, "much more", needs=3))


@changes.breaks("acted after its cancel")
def go_on_past_a_record_that_is_gone(e: Evidence) -> None:
    """In another line, and the first record of the claim was forgotten since."""
    go_on_after_a_loss(e)
    e.steps.pop()
    e.writes += [Write(3 * S + 5 * MS, what, "doomed", 2, 2, 2, '"more"') for what in (INSERTED, DELETED)]
    e.acts.append(Act(4 * S, "doomed", "", 0, "work", 2, 1, 100, "much more", branch="0.1"))


@changes.legal
def go_on_beside_a_record_that_is_not_known_yet(e: Evidence) -> None:
    go_on_past_a_record_that_is_gone(e)
    e.steps.append(Step("doomed", 0, "work", 2, 4, "completed", '"much more"', 4 * S + 5 * MS, "0.1"))
    e.news = 1 * S


@changes.legal
def signal_what_has_failed(e: Evidence) -> None:
    """It is kept for a retry, and counted."""
    e.signals.append(Signal(9500 * MS, "brat", "word", "s", 9, "kept", 9600 * MS))
    e.letters.append(Letter("brat", "signal", "word", '"kept"'))
    e.moves.append(Move(9550 * MS, "brat", 1, 1, "failed", "failed", None, None, wakes=1))


@changes.breaks("ended twice")
def touch_what_has_failed(e: Evidence) -> None:
    signal_what_has_failed(e)
    put(e.moves, -1, wakes=0)


@changes.breaks("ended twice")
def lose_what_has_failed(e: Evidence) -> None:
    signal_what_has_failed(e)
    put(e.moves, -1, losses=1)


@changes.breaks("ended twice")
def count_a_signal_that_nobody_sent(e: Evidence) -> None:
    signal_what_has_failed(e)
    e.moves.append(Move(9560 * MS, "brat", 1, 1, "failed", "failed", None, None, wakes=2))


@changes.breaks("claimed while paused")
def hand_out_what_is_paused(e: Evidence) -> None:
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.old_status == "paused")
    e.moves[n : n + 2] = [Move(2 * S, "held", 2, 1, "running", "paused", "w", None)]


@changes.breaks("paused by nobody")
def pause_after_the_resume(e: Evidence) -> None:
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.status == "paused")
    e.moves[n : n + 2] = [
        dataclasses.replace(e.moves[n], at=2500 * MS),
        dataclasses.replace(e.moves[n + 1], at=2600 * MS),
    ]


@changes.breaks("broken chain")
def lose_the_next_link(e: Evidence) -> None:
    del e.runs[the_run(e, "link 2")]
    e.moves[:] = [move for move in e.moves if move.run != "link 2"]


@changes.breaks("broken chain")
def end_a_chain_before_its_time(e: Evidence) -> None:
    change_run(e, "link 1", input='{"left": 2}')
    change_run(e, "link 2", input='{"left": 1}')


@changes.breaks("called again")
def ask_after_the_answer(e: Evidence) -> None:
    e.acts.append(Act(9 * S, "asker", "", 0, "is_so", 2, 1, 100, "once more", ASKS))
    e.moves.append(Move(8 * S, "asker", 2, 1, "running", "queued", "w", None))


@changes.breaks("too many acts")
def call_a_transaction_twice(e: Evidence) -> None:
    e.acts.append(Act(8 * MS, "bank", "", 0, "work", 1, 1, 100, "first"))


TABLE: list[tuple[str | None, str, Callable[[Evidence], object]]] = [
    ("innocent dead letter", "bury an innocent",
     lambda e: change_run(e, "sleeper", status="failed", reason="workers_lost")),
    ("slept too short", "wake too early", lambda e: change_step(e, "sleeper", ("", 1), output='{"for": 1020}')),
    ("slept too short", "wake before the hour", lambda e: change_step(e, "sleeper", ("", 1), output='{"until": 1030}')),
    ("record changed", "decide a sleep twice",
     lambda e: e.writes.append(Write(500 * MS, CHANGED, "sleeper", 1, 1, 1, None, "", "sleep", "waiting", "waiting") )),
    ("record changed", "replace an outcome",
     lambda e: e.writes.append(Write(500 * MS, CHANGED, "sleeper", 0, 1, 1, '"a"', "", "step", "completed",
      "completed") )),
    ("late write", "replace an open record late",
     lambda e: e.writes.append(Write(4 * S, CHANGED, "parent", 2, 1, 2, None, "", "call", "failed", "waiting"))),
    ("wrong value", "leave an older value", lambda e: put_in(e.values, ("sleeper", "at"), "1")),
    ("wrong value", "leave no value", lambda e: e.values.clear()),
    ("signal twice", "take a signal twice", lambda e: change_step(e, "ear", ("", 2), output='"s1"')),
    ("signal twice", "take a signal and keep it", lambda e: e.letters.append(Letter("ear", "signal", "word", '"s1"'))),
    ("signal from nowhere", "take a signal that nobody sent", lambda e: e.signals.pop(0)),
    ("signal lost", "pass a signal over",
     lambda e: put_in(e.signals, 3, Signal(21 * MS, "ear", "word", "u", 2, "t2", 25 * MS))),
    ("wrong output", "see another signal than the record",
     lambda e: change_run(e, "ear", output='{"seen": {":0": "s1", ":1": "t1", ":2": "s2"}}')),
    ("wrong output", "never see a signal",
     lambda e: change_run(e, "ear", output='{"seen": {":0": "s1", ":1": "s2"}, "lost": [":2"]}')),
    ("wrong output", "see what nobody recorded",
     lambda e: change_run(e, "sleeper", output='{"seen": {":0": "a", ":2": "b", ":3": "c"}, "set": {"at": 2}}')),
    ("wrong output", "never see a step",
     lambda e: change_run(e, "sleeper", output='{"seen": {":0": "a"}, "set": {"at": 2}}')),
    ("child without a record", "start a child without a record", lambda e: change_run(e, "kid", parent_position=7)),
    ("left behind", "leave a parent waiting", lambda e: change_run(e, "parent", status="waiting")),
    ("row without a record", "write a row without a record", lambda e: e.rows.append(Row("bank", "", 3, "s"))),
    ("record without a row", "record a transaction without its row", lambda e: e.rows.clear()),
    ("not undone", "leave a step as it was", lambda e: e.steps.pop(the_step(e, "tripper", (UNDO, 1)))),
    ("not undone", "end cancelled with something to undo", lambda e: change_step(e, "doomed", ("", 0), undo="undo")),
    ("undone for nothing", "undo what was no step", lambda e: change_step(e, "tripper", ("", 0), undo=None)),
    ("not undone", "hide a failed undo", lambda e: change_step(e, "tripper", (UNDO, 1), status="failed", output=None)),
    ("not undone", "name another undo", lambda e: change_run(e, "sour", error='{"message": "something failed"}')),
    ("not undone", "say that an undo failed",
     lambda e: change_step(e, "sour", (UNDO, 1), status="completed", output='"w"')),
    ("acted after the undo", "go on after the undo began",
     lambda e: e.acts.append(Act(3500 * MS, "tripper", "", 1, "work", 2, 1, 100, "more"))),
    ("failed", "fail an undo that should succeed", lambda e: change_run(e, "sour", workflow="trip")),
    ("failed", "compensate what should complete", lambda e: change_run(e, "tripper", workflow="dozing")),
    ("cancelled by nobody", "cancel without a wish", lambda e: put(e.wishes, 0, what="pause")),
    ("cancelled by nobody", "cancel although it was refused", lambda e: put(e.wishes, 0, granted=False)),
    ("acted after its cancel", "go on with a suspect", lambda e: go_on_after_a_loss(e, losses=2)),
    ("ended twice", "signal what has completed",
     lambda e: e.moves.append(Move(9550 * MS, "ear", 1, 1, "completed", "completed", None, None, wakes=1))),
    ("made up", "log a wait that went well", lambda e: e.tries.append(Try("ear", 0, 1, 1, 1, 100 * MS))),
    ("made up", "log a wait for another claim", lambda e: e.tries.append(Try("parent", 2, 2, 1, 1, 4 * S))),
    ("left behind", "leave a run paused", lambda e: change_run(e, "held", status="paused")),
    ("no claim", "act after it was held",
     lambda e: e.acts.append(Act(1500 * MS, "held", "", 0, "work", 1, 1, 100, "late"))),
    ("broken chain", "continue twice",
     lambda e: e.runs.append(dataclasses.replace(e.runs[the_run(e, "link 2")], id="link 3"))),
    ("broken chain", "continue what has failed", lambda e: change_run(e, "link 1", reason=None, output='{"seen": {}}')),
    ("broken chain", "skip a link", lambda e: change_run(e, "link 1", input='{"left": 2}')),
    ("wrong result", "tell the result of the first link",
     lambda e: put_in(e.seen, 1, Seen("link 1", "completed", '"link 2"'))),
    ("unwanted", "keep what was rolled back", lambda e: e.unwanted.append("sleeper")),
    ("unaccounted act", "act in a race without a record", lambda e: e.steps.pop(the_step(e, "racer", ("", 1)))),
    (None, "replace an open record",
     lambda e: e.writes.append(Write(4 * S, CHANGED, "parent", 2, 1, 1, None, "", "call", "failed", "waiting"))),
    (None, "hear nothing of a wish that came true", lambda e: put(e.wishes, 0, granted=None)),
    (None, "log a wait that failed", lambda e: e.tries.append(Try("parent", 2, 1, 1, 1, 4 * S))),
]  # fmt: skip


for _kind, _name, _change in TABLE:
    changes.add(_kind, _name, _change)


# -- what looks alike, and is none ---------------------------------------------------------------------------------


@changes.legal
def win_against_a_cancellation(e: Evidence) -> None:
    change_run(e, "doomed", status="completed", reason=None, output='{"seen": {":0": "d"}}')
    e.seen[2] = Seen("doomed", "completed", '{"seen": {":0": "d"}}')


@changes.legal
def fail_before_the_cancellation_is_heard(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="code", workflow="brittle")
    put(e.starts, 2, workflow="brittle")
    e.seen[2] = Seen("doomed", "failed")


@changes.legal
def pause_in_doubt_after_the_resume(e: Evidence) -> None:
    pause_after_the_resume(e)
    put(e.wishes, 1, granted=None)


@changes.legal
def keep_what_was_done_by_a_dead_letter(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="workers_lost", workflow="brittle")
    put(e.starts, 2, workflow="brittle")
    e.seen[2] = Seen("doomed", "failed")
    change_step(e, "doomed", ("", 0), undo="undo")


@changes.legal
def call_a_transaction_again_that_was_cut(e: Evidence) -> None:
    e.cut = True
    call_a_transaction_twice(e)


@changes.legal
def make_a_row_anew(e: Evidence) -> None:
    """A new attempt has forgotten the transaction."""
    e.rows.insert(0, Row("bank", "", 0, "q"))
    e.acts.append(Act(8 * MS, "bank", "", 0, "work", 1, 1, 100, "q"))
    e.tries.append(Try("bank", -1, 1, 1, 1, 9 * MS))
    e.writes.append(Write(9 * MS, DELETED, "bank", 0, 1, 1, '"q"', "", "transaction"))


@changes.legal
def send_two_signals_at_the_same_time(e: Evidence) -> None:
    """Nobody can say which was first."""
    put(e.signals, 1, at=19 * MS, sender="other")
    take_the_second_of_a_sender_first(e)
    change_run(e, "ear", output='{"seen": {":0": "s2", ":1": "s1", ":2": "t1"}}')


@changes.legal
def lose_what_a_failed_run_had_in_its_box(e: Evidence) -> None:
    change_run(e, "ear", status="failed", reason="code", workflow="brittle")
    lose_a_signal_that_was_left(e)


@changes.legal
def lose_a_worker_during_an_undo(e: Evidence) -> None:
    e.acts.append(Act(2500 * MS, "tripper", "", 1, "work", 2, 1, 100, "y", branch=UNDO, undoes="u"))
    for n, move in enumerate(e.moves):
        if move.run == "tripper" and move.status == "compensated":
            e.moves[n : n + 1] = [
                Move(2700 * MS, "tripper", 2, 2, "compensating", "compensating", None, "w", losses=1),
                Move(2800 * MS, "tripper", 3, 2, "compensating", "compensating", "w", None, losses=1, old_losses=1),
                Move(4 * S, "tripper", 3, 3, "compensated", "compensating", None, "w"),
            ]
            break
    for n, act in enumerate(e.acts):
        if act.nonce == "x" and act.run == "tripper":
            e.acts[n] = dataclasses.replace(act, claim=3)
    change_step(e, "tripper", (UNDO, 1), claim=3)
    e.writes[:] = [w for w in e.writes if w.run != "tripper"]
    e.faults.append(Fault(100, KILLED, 2600 * MS, 2600 * MS))


@changes.legal
def come_back_from_the_ice(e: Evidence) -> None:
    """A worker that was frozen acts on after its run was given to another: nobody can keep it from that."""
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.status == "paused")
    e.moves[n : n + 2] = [Move(1 * S, "held", 1, 1, "queued", "running", None, "w", losses=1)]
    e.acts.append(Act(1500 * MS, "held", "", 0, "work", 1, 1, 100, "late"))
    e.faults.append(Fault(100, FROZEN, 2 * MS, 40 * S))


@pytest.mark.parametrize(("story", "change", "kind"), changes.cases)
def test_a_violation_is_found_and_what_is_legal_is_none(
    story: Callable[[], Evidence], change: Callable[[Evidence], object], kind: str | None
) -> None:
    evidence = story()
    change(evidence)
    found = {violation.kind for violation in check(evidence)}
    assert kind in found if kind else found == set()


def test_every_rule_has_a_story_that_breaks_it() -> None:
    """Whatever the rules can say is said by one of the stories above."""
    text = Path(__file__).with_name("rules.py").read_text()
    said = {line.split('Violation("', 1)[1].split('"', 1)[0] for line in text.split("\n") if 'Violation("' in line}
    assert said | {"child twice", "child lost"} <= {case.values[2] for case in changes.cases}


def test_signals_wishes_and_rows_are_part_of_the_story() -> None:
    evidence = story()
    lose_a_signal(evidence)
    write_a_row_twice(evidence)
    fail_what_was_cancelled(evidence)
    text = tell(evidence, check(evidence))
    for words in ("signal 'u1' sent", "acknowledged", "row 'r'", "cancel: granted", "asked: cancel"):
        assert words in text, words
