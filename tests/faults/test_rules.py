"""The checker's rules beyond steps: each finds its violation in a story made up by hand, and nothing in one without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.checker import check
from tests.faults.evidence import (
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
from tests.faults.made_up import MS, S, change_run, change_step, kinds, story, the_run, the_step
from tests.faults.story import tell


def test_a_story_without_violations() -> None:
    assert check(story()) == []


# -- one change each, and what it must be called -------------------------------------------------------------------


def bury_an_innocent(e: Evidence) -> None:
    change_run(e, "sleeper", status="failed", reason="workers_lost")


def wake_too_early(e: Evidence) -> None:
    change_step(e, "sleeper", ("", 1), output='{"for": 1020}')


def wake_before_the_hour(e: Evidence) -> None:
    change_step(e, "sleeper", ("", 1), output='{"until": 1030}')


def decide_a_sleep_twice(e: Evidence) -> None:
    e.writes.append(Write(500 * MS, CHANGED, "sleeper", 1, 1, 1, None, "", "sleep", "waiting", "waiting"))


def replace_an_outcome(e: Evidence) -> None:
    e.writes.append(Write(500 * MS, CHANGED, "sleeper", 0, 1, 1, '"a"', "", "step", "completed", "completed"))


def replace_an_open_record_late(e: Evidence) -> None:
    e.writes.append(Write(4 * S, CHANGED, "parent", 2, 1, 2, None, "", "call", "failed", "waiting"))


def go_on_with_an_open_record(e: Evidence) -> None:
    """The step before is only begun."""
    change_step(e, "sleeper", ("", 0), status="waiting")
    e.writes[:] = [w for w in e.writes if (w.run, w.position) != ("sleeper", 0)]


def leave_an_older_value(e: Evidence) -> None:
    e.values["sleeper", "at"] = "1"


def leave_no_value(e: Evidence) -> None:
    e.values.clear()


def lose_a_signal(e: Evidence) -> None:
    e.signals.append(Signal(70 * MS, "ear", "word", "u", 1, "u1", 80 * MS))


def lose_a_signal_that_was_left(e: Evidence) -> None:
    e.letters.clear()


def take_a_signal_twice(e: Evidence) -> None:
    change_step(e, "ear", ("", 2), output='"s1"')


def take_a_signal_and_keep_it(e: Evidence) -> None:
    e.letters.append(Letter("ear", "signal", "word", '"s1"'))


def take_a_signal_that_nobody_sent(e: Evidence) -> None:
    del e.signals[0]


def take_the_second_of_a_sender_first(e: Evidence) -> None:
    change_step(e, "ear", ("", 0), output='"s2"')
    change_step(e, "ear", ("", 1), output='"s1"')


def take_a_later_one_of_another_sender_first(e: Evidence) -> None:
    e.signals[2] = dataclasses.replace(e.signals[2], at=50 * MS)
    change_step(e, "ear", ("", 1), output='"t1"')
    change_step(e, "ear", ("", 2), output='"s2"')


def pass_a_signal_over(e: Evidence) -> None:
    """The last one was acknowledged before another set out that was taken; it stays in the box."""
    e.signals[3] = Signal(21 * MS, "ear", "word", "u", 2, "t2", 25 * MS)


def see_another_signal_than_the_record(e: Evidence) -> None:
    change_run(e, "ear", output='{"seen": {":0": "s1", ":1": "t1", ":2": "s2"}}')


def never_see_a_signal(e: Evidence) -> None:
    change_run(e, "ear", output='{"seen": {":0": "s1", ":1": "s2"}, "lost": [":2"]}')


def see_what_nobody_recorded(e: Evidence) -> None:
    change_run(e, "sleeper", output='{"seen": {":0": "a", ":2": "b", ":3": "c"}, "set": {"at": 2}}')


def never_see_a_step(e: Evidence) -> None:
    change_run(e, "sleeper", output='{"seen": {":0": "a"}, "set": {"at": 2}}')


def record_a_start_without_a_child(e: Evidence) -> None:
    del e.runs[the_run(e, "kid")]
    e.moves[:] = [move for move in e.moves if move.run != "kid"]


def start_a_child_twice(e: Evidence) -> None:
    e.runs.append(dataclasses.replace(e.runs[the_run(e, "kid")], id="twin"))
    e.acts.append(Act(2 * S, "twin", "simple", -1, "simple", 1, 1, 100, "x"))


def start_a_child_without_a_record(e: Evidence) -> None:
    change_run(e, "kid", parent_position=7)


def tell_a_parent_something_else(e: Evidence) -> None:
    change_step(e, "parent", ("", 1), output='"y"')
    change_run(e, "parent", output='{"seen": {":1": "y", ":2": "failed"}}')


def tell_a_parent_of_a_success(e: Evidence) -> None:
    change_step(e, "parent", ("", 2), status="completed", output='"z"')
    change_run(e, "parent", output='{"seen": {":1": "x", ":2": "z"}}')


def leave_a_parent_waiting(e: Evidence) -> None:
    change_run(e, "parent", status="waiting")


def start_a_child_of_the_cancelled(e: Evidence) -> None:
    births = [move for move in e.moves if move.run == "orphan" and not move.old_status]
    e.moves[:] = [move for move in e.moves if move not in births] + births


def write_a_row_twice(e: Evidence) -> None:
    e.rows.append(e.rows[0])


def write_a_row_without_a_record(e: Evidence) -> None:
    e.rows.append(Row("bank", "", 3, "s"))


def keep_the_row_of_another_act(e: Evidence) -> None:
    e.rows[0] = Row("bank", "", 0, "s")


def record_a_transaction_without_its_row(e: Evidence) -> None:
    e.rows.clear()


def leave_a_step_as_it_was(e: Evidence) -> None:
    """One of two undos was never recorded."""
    e.steps.pop(the_step(e, "tripper", (UNDO, 1)))


def end_cancelled_with_something_to_undo(e: Evidence) -> None:
    change_step(e, "doomed", ("", 0), undo="undo")


def undo_the_first_step_first(e: Evidence) -> None:
    for n, act in enumerate(e.acts):
        if act.place == (UNDO, 1) and act.run == "tripper":
            e.acts[n] = dataclasses.replace(act, at=1500 * MS)


def undo_a_step_twice(e: Evidence) -> None:
    e.acts.append(Act(2500 * MS, "tripper", "", 2, "work", 2, 1, 100, "again", branch=UNDO, undoes="v"))
    e.acts.append(Act(2600 * MS, "tripper", "", 2, "work", 2, 1, 100, "again and again", branch=UNDO, undoes="v"))


def undo_a_recorded_undo_again(e: Evidence) -> None:
    e.acts.append(Act(3500 * MS, "tripper", "", 2, "work", 3, 1, 100, "again", branch=UNDO, undoes="v"))
    e.moves += [Move(3400 * MS, "tripper", 3, 2, "compensating", "compensating", "w", None)]


def undo_with_another_output(e: Evidence) -> None:
    for n, act in enumerate(e.acts):
        if act.place == (UNDO, 1) and act.run == "tripper":
            e.acts[n] = dataclasses.replace(act, undoes="v")


def undo_a_run_that_completed(e: Evidence) -> None:
    change_run(e, "tripper", status="completed", output='{"seen": {":0": "u", "0.1:0": "v"}}')
    e.seen[0] = Seen("tripper", "completed", '{"seen": {":0": "u", "0.1:0": "v"}}')


def undo_what_was_no_step(e: Evidence) -> None:
    change_step(e, "tripper", ("", 0), undo=None)


def hide_a_failed_undo(e: Evidence) -> None:
    change_step(e, "tripper", (UNDO, 1), status="failed", output=None)


def name_another_undo(e: Evidence) -> None:
    change_run(e, "sour", error='{"message": "something failed"}')


def say_that_an_undo_failed(e: Evidence) -> None:
    change_step(e, "sour", (UNDO, 1), status="completed", output='"w"')


def go_on_after_the_undo_began(e: Evidence) -> None:
    e.acts.append(Act(3500 * MS, "tripper", "", 1, "work", 2, 1, 100, "more"))


def fail_an_undo_that_should_succeed(e: Evidence) -> None:
    change_run(e, "sour", workflow="trip")


def compensate_what_should_complete(e: Evidence) -> None:
    change_run(e, "tripper", workflow="dozing")


def cancel_without_a_wish(e: Evidence) -> None:
    e.wishes[0] = dataclasses.replace(e.wishes[0], what="pause")


def cancel_although_it_was_refused(e: Evidence) -> None:
    e.wishes[0] = dataclasses.replace(e.wishes[0], granted=False)


def fail_what_was_cancelled(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="code")


def go_on_after_the_cancellation(e: Evidence) -> None:
    e.acts.append(Act(3 * S, "doomed", "", 2, "work", 2, 1, 100, "more"))
    e.moves += [Move(2 * S, "doomed", 2, 1, "running", "queued", "w", None, asked="cancel")]


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


def go_on_with_a_suspect(e: Evidence) -> None:
    go_on_after_a_loss(e, losses=2)


def go_on_past_the_record(e: Evidence) -> None:
    """So soon after it that the clocks could not tell."""
    go_on_after_a_loss(e)
    e.acts.append(Act(3 * S + 6 * MS, "doomed", "", 3, "work", 2, 1, 100, "much more", needs=3))


def go_on_past_a_record_that_is_gone(e: Evidence) -> None:
    """In another line, and the first record of the claim was forgotten since."""
    go_on_after_a_loss(e)
    e.steps.pop()
    e.writes += [Write(3 * S + 5 * MS, what, "doomed", 2, 2, 2, '"more"') for what in (INSERTED, DELETED)]
    e.acts.append(Act(4 * S, "doomed", "", 0, "work", 2, 1, 100, "much more", branch="0.1"))


def go_on_beside_a_record_that_is_not_known_yet(e: Evidence) -> None:
    go_on_past_a_record_that_is_gone(e)
    e.steps.append(Step("doomed", 0, "work", 2, 4, "completed", '"much more"', 4 * S + 5 * MS, "0.1"))
    e.news = 1 * S


def signal_what_has_failed(e: Evidence) -> None:
    """It is kept for a retry, and counted."""
    e.signals.append(Signal(9500 * MS, "brat", "word", "s", 9, "kept", 9600 * MS))
    e.letters.append(Letter("brat", "signal", "word", '"kept"'))
    e.moves.append(Move(9550 * MS, "brat", 1, 1, "failed", "failed", None, None, wakes=1))


def touch_what_has_failed(e: Evidence) -> None:
    signal_what_has_failed(e)
    e.moves[-1] = dataclasses.replace(e.moves[-1], wakes=0)


def lose_what_has_failed(e: Evidence) -> None:
    signal_what_has_failed(e)
    e.moves[-1] = dataclasses.replace(e.moves[-1], losses=1)


def count_a_signal_that_nobody_sent(e: Evidence) -> None:
    signal_what_has_failed(e)
    e.moves.append(Move(9560 * MS, "brat", 1, 1, "failed", "failed", None, None, wakes=2))


def signal_what_has_completed(e: Evidence) -> None:
    e.moves.append(Move(9550 * MS, "ear", 1, 1, "completed", "completed", None, None, wakes=1))


def log_a_wait_that_failed(e: Evidence) -> None:
    e.tries.append(Try("parent", 2, 1, 1, 1, 4 * S))


def log_a_wait_that_went_well(e: Evidence) -> None:
    e.tries.append(Try("ear", 0, 1, 1, 1, 100 * MS))


def log_a_wait_for_another_claim(e: Evidence) -> None:
    e.tries.append(Try("parent", 2, 2, 1, 1, 4 * S))


def hand_out_what_is_paused(e: Evidence) -> None:
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.old_status == "paused")
    e.moves[n : n + 2] = [Move(2 * S, "held", 2, 1, "running", "paused", "w", None)]


def pause_after_the_resume(e: Evidence) -> None:
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.status == "paused")
    e.moves[n : n + 2] = [
        dataclasses.replace(e.moves[n], at=2500 * MS),
        dataclasses.replace(e.moves[n + 1], at=2600 * MS),
    ]


def leave_a_run_paused(e: Evidence) -> None:
    change_run(e, "held", status="paused")


def act_after_it_was_held(e: Evidence) -> None:
    e.acts.append(Act(1500 * MS, "held", "", 0, "work", 1, 1, 100, "late"))


def lose_the_next_link(e: Evidence) -> None:
    del e.runs[the_run(e, "link 2")]
    e.moves[:] = [move for move in e.moves if move.run != "link 2"]


def continue_twice(e: Evidence) -> None:
    e.runs.append(dataclasses.replace(e.runs[the_run(e, "link 2")], id="link 3"))


def continue_what_has_failed(e: Evidence) -> None:
    change_run(e, "link 1", reason=None, output='{"seen": {}}')


def skip_a_link(e: Evidence) -> None:
    change_run(e, "link 1", input='{"left": 2}')


def end_a_chain_before_its_time(e: Evidence) -> None:
    change_run(e, "link 1", input='{"left": 2}')
    change_run(e, "link 2", input='{"left": 1}')


def tell_the_result_of_the_first_link(e: Evidence) -> None:
    e.seen[1] = Seen("link 1", "completed", '"link 2"')


def keep_what_was_rolled_back(e: Evidence) -> None:
    e.unwanted.append("sleeper")


def ask_after_the_answer(e: Evidence) -> None:
    e.acts.append(Act(9 * S, "asker", "", 0, "is_so", 2, 1, 100, "once more", ASKS))
    e.moves.append(Move(8 * S, "asker", 2, 1, "running", "queued", "w", None))


def act_in_a_race_without_a_record(e: Evidence) -> None:
    e.steps.pop(the_step(e, "racer", ("", 1)))


def call_a_transaction_twice(e: Evidence) -> None:
    e.acts.append(Act(8 * MS, "bank", "", 0, "work", 1, 1, 100, "first"))


VIOLATIONS: list[tuple[Callable[[Evidence], None], str]] = [
    (bury_an_innocent, "innocent dead letter"),
    (wake_too_early, "slept too short"),
    (wake_before_the_hour, "slept too short"),
    (decide_a_sleep_twice, "record changed"),
    (replace_an_outcome, "record changed"),
    (replace_an_open_record_late, "late write"),
    (go_on_with_an_open_record, "too soon"),
    (leave_an_older_value, "wrong value"),
    (leave_no_value, "wrong value"),
    (lose_a_signal, "signal lost"),
    (lose_a_signal_that_was_left, "signal lost"),
    (take_a_signal_twice, "signal twice"),
    (take_a_signal_and_keep_it, "signal twice"),
    (take_a_signal_that_nobody_sent, "signal from nowhere"),
    (take_the_second_of_a_sender_first, "signal out of order"),
    (take_a_later_one_of_another_sender_first, "signal out of order"),
    (pass_a_signal_over, "signal lost"),
    (see_another_signal_than_the_record, "wrong output"),
    (never_see_a_signal, "wrong output"),
    (see_what_nobody_recorded, "wrong output"),
    (never_see_a_step, "wrong output"),
    (record_a_start_without_a_child, "child lost"),
    (start_a_child_twice, "child twice"),
    (start_a_child_without_a_record, "child without a record"),
    (tell_a_parent_something_else, "wrong child"),
    (tell_a_parent_of_a_success, "wrong child"),
    (leave_a_parent_waiting, "left behind"),
    (start_a_child_of_the_cancelled, "child of the cancelled"),
    (write_a_row_twice, "row twice"),
    (write_a_row_without_a_record, "row without a record"),
    (keep_the_row_of_another_act, "row without a record"),
    (keep_the_row_of_another_act, "record without a row"),
    (record_a_transaction_without_its_row, "record without a row"),
    (leave_a_step_as_it_was, "not undone"),
    (end_cancelled_with_something_to_undo, "not undone"),
    (undo_the_first_step_first, "undone out of order"),
    (undo_a_step_twice, "too many acts"),
    (undo_a_step_twice, "unaccounted act"),
    (undo_a_recorded_undo_again, "called again"),
    (undo_with_another_output, "undid something else"),
    (undo_a_run_that_completed, "undone for nothing"),
    (undo_what_was_no_step, "undone for nothing"),
    (hide_a_failed_undo, "not undone"),
    (name_another_undo, "not undone"),
    (say_that_an_undo_failed, "not undone"),
    (go_on_after_the_undo_began, "acted after the undo"),
    (fail_an_undo_that_should_succeed, "failed"),
    (compensate_what_should_complete, "failed"),
    (cancel_without_a_wish, "cancelled by nobody"),
    (cancel_although_it_was_refused, "cancelled by nobody"),
    (fail_what_was_cancelled, "not cancelled"),
    (go_on_after_the_cancellation, "acted after its cancel"),
    (go_on_with_a_suspect, "acted after its cancel"),
    (go_on_past_the_record, "acted after its cancel"),
    (go_on_past_a_record_that_is_gone, "acted after its cancel"),
    (touch_what_has_failed, "ended twice"),
    (lose_what_has_failed, "ended twice"),
    (count_a_signal_that_nobody_sent, "ended twice"),
    (signal_what_has_completed, "ended twice"),
    (log_a_wait_that_went_well, "made up"),
    (log_a_wait_for_another_claim, "made up"),
    (hand_out_what_is_paused, "claimed while paused"),
    (pause_after_the_resume, "paused by nobody"),
    (leave_a_run_paused, "left behind"),
    (act_after_it_was_held, "no claim"),
    (lose_the_next_link, "broken chain"),
    (continue_twice, "broken chain"),
    (continue_what_has_failed, "broken chain"),
    (skip_a_link, "broken chain"),
    (end_a_chain_before_its_time, "broken chain"),
    (tell_the_result_of_the_first_link, "wrong result"),
    (keep_what_was_rolled_back, "unwanted"),
    (ask_after_the_answer, "called again"),
    (act_in_a_race_without_a_record, "unaccounted act"),
    (call_a_transaction_twice, "too many acts"),
]


@pytest.mark.parametrize(
    ("change", "kind"), VIOLATIONS, ids=[f"{change.__name__}: {kind}" for change, kind in VIOLATIONS]
)
def test_a_violation_is_found(change: Callable[[Evidence], None], kind: str) -> None:
    evidence = story()
    change(evidence)
    assert kind in kinds(evidence)


# -- what looks alike, and is none ---------------------------------------------------------------------------------


def replace_an_open_record(e: Evidence) -> None:
    e.writes.append(Write(4 * S, CHANGED, "parent", 2, 1, 1, None, "", "call", "failed", "waiting"))


def win_against_a_cancellation(e: Evidence) -> None:
    change_run(e, "doomed", status="completed", reason=None, output='{"seen": {":0": "d"}}')
    e.seen[2] = Seen("doomed", "completed", '{"seen": {":0": "d"}}')


def fail_before_the_cancellation_is_heard(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="code", workflow="brittle")
    e.starts[2] = dataclasses.replace(e.starts[2], workflow="brittle")
    e.seen[2] = Seen("doomed", "failed")


def hear_nothing_of_a_wish_that_came_true(e: Evidence) -> None:
    e.wishes[0] = dataclasses.replace(e.wishes[0], granted=None)


def pause_in_doubt_after_the_resume(e: Evidence) -> None:
    pause_after_the_resume(e)
    e.wishes[1] = dataclasses.replace(e.wishes[1], granted=None)


def keep_what_was_done_by_a_dead_letter(e: Evidence) -> None:
    change_run(e, "doomed", status="failed", reason="workers_lost", workflow="brittle")
    e.starts[2] = dataclasses.replace(e.starts[2], workflow="brittle")
    e.seen[2] = Seen("doomed", "failed")
    change_step(e, "doomed", ("", 0), undo="undo")


def call_a_transaction_again_that_was_cut(e: Evidence) -> None:
    e.cut = True
    call_a_transaction_twice(e)


def make_a_row_anew(e: Evidence) -> None:
    """A new attempt has forgotten the transaction."""
    e.rows.insert(0, Row("bank", "", 0, "q"))
    e.acts.append(Act(8 * MS, "bank", "", 0, "work", 1, 1, 100, "q"))
    e.tries.append(Try("bank", -1, 1, 1, 1, 9 * MS))
    e.writes.append(Write(9 * MS, DELETED, "bank", 0, 1, 1, '"q"', "", "transaction"))


def send_two_signals_at_the_same_time(e: Evidence) -> None:
    """Nobody can say which was first."""
    e.signals[1] = dataclasses.replace(e.signals[1], at=19 * MS, sender="other")
    take_the_second_of_a_sender_first(e)
    change_run(e, "ear", output='{"seen": {":0": "s2", ":1": "s1", ":2": "t1"}}')


def lose_what_a_failed_run_had_in_its_box(e: Evidence) -> None:
    change_run(e, "ear", status="failed", reason="code", workflow="brittle")
    lose_a_signal_that_was_left(e)


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


def come_back_from_the_ice(e: Evidence) -> None:
    """A worker that was frozen acts on after its run was given to another: nobody can keep it from that."""
    n = next(n for n, move in enumerate(e.moves) if move.run == "held" and move.status == "paused")
    e.moves[n : n + 2] = [Move(1 * S, "held", 1, 1, "queued", "running", None, "w", losses=1)]
    e.acts.append(Act(1500 * MS, "held", "", 0, "work", 1, 1, 100, "late"))
    e.faults.append(Fault(100, FROZEN, 2 * MS, 40 * S))


LEGAL = [
    replace_an_open_record,
    win_against_a_cancellation,
    fail_before_the_cancellation_is_heard,
    hear_nothing_of_a_wish_that_came_true,
    pause_in_doubt_after_the_resume,
    keep_what_was_done_by_a_dead_letter,
    call_a_transaction_again_that_was_cut,
    make_a_row_anew,
    send_two_signals_at_the_same_time,
    lose_what_a_failed_run_had_in_its_box,
    lose_a_worker_during_an_undo,
    go_on_after_a_loss,
    go_on_beside_a_record_that_is_not_known_yet,
    signal_what_has_failed,
    log_a_wait_that_failed,
    come_back_from_the_ice,
]


@pytest.mark.parametrize("change", LEGAL, ids=[change.__name__ for change in LEGAL])
def test_what_is_legal_is_not_a_violation(change: Callable[[Evidence], None]) -> None:
    evidence = story()
    change(evidence)
    assert check(evidence) == []


def test_every_rule_has_a_story_that_breaks_it() -> None:
    """Whatever the rules can say is said by one of the stories above."""
    text = Path(__file__).with_name("rules.py").read_text()
    said = {line.split('Violation("', 1)[1].split('"', 1)[0] for line in text.split("\n") if 'Violation("' in line}
    assert said | {"child twice", "child lost"} <= {kind for _, kind in VIOLATIONS}


def test_signals_wishes_and_rows_are_part_of_the_story() -> None:
    evidence = story()
    lose_a_signal(evidence)
    write_a_row_twice(evidence)
    fail_what_was_cancelled(evidence)
    text = tell(evidence, check(evidence))
    for words in ("signal 'u1' sent", "acknowledged", "row 'r'", "cancel: granted", "asked: cancel"):
        assert words in text, words
