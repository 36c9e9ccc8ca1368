"""What becomes of a run when its claim ends: what is known of it goes in, the transition comes out."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from stepfast import Backoff, NonRetryableError, RetryLater
from stepfast.engine import outcomes
from stepfast.errors import ContextMisuse, DeadlineExceeded, InvalidInput, NonDeterminismError
from stepfast.model import status
from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import Claimed

FORMAT = 1
BACKOFF = Backoff(base=2, jitter=0)


def claimed(**facts: Any) -> Claimed:
    """As a claim brings it, first attempt, nothing asked."""
    plain = Claimed(
        id="r", workflow="w", queue="w", priority=0, claim=7, attempt=1, first_attempt=1, losses=0, wakes=3, format=1,
        input="null", max_attempts=None, timeout_ms=None, deadline_in_ms=None, started_at=0, place=0, last_version="v1",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **facts)


class RecordedSoFar:
    """What is recorded of it."""

    def __init__(self, undos: bool, recorded: bool) -> None:
        self.fresh: Sequence[tuple[str, int]] = ()
        self.recorded = recorded
        self._undos = undos

    def has_undos(self) -> bool:
        return self._undos

    def last_step(self) -> str | None:
        return "charge"


class LeavingRun:
    """A run that leaves."""

    def __init__(self, undos: bool = False, recorded: bool = False, **facts: Any) -> None:
        self.claimed = claimed(**facts)
        self.run_id, self.claim = self.claimed.id, self.claimed.claim
        self.diverged: NonDeterminismError | None = None
        self.owes_record = False
        self.ledger = RecordedSoFar(undos, recorded)

    def to_forget(self, error: BaseException | None, by_operator: bool = False) -> list[tuple[str, int]]:
        return [("", 4)]


@pytest.mark.parametrize(
    ("error", "attempt", "verdict"),
    [
        (ValueError("no"), 1, (status.REASON_CODE, 2.0)),
        (ValueError("no"), 2, (status.REASON_CODE, 4.0)),
        (ValueError("no"), 3, (status.REASON_CODE, None)),
        (RetryLater(30), 1, (status.REASON_CODE, 30.0)),
        (NonRetryableError("no"), 1, (status.REASON_CODE, None)),
        (ContextMisuse("no"), 1, (status.REASON_CODE, None)),
        (InvalidInput("no"), 1, (status.REASON_CODE, None)),
        (DeadlineExceeded("late"), 1, (status.REASON_DEADLINE, None)),
    ],
)
def test_a_failed_attempt_is_followed_by_another_while_that_can_help(
    error: Exception, attempt: int, verdict: tuple[str, float | None]
) -> None:
    assert outcomes.judge(error, status.REASON_CODE, claimed(attempt=attempt), 3, BACKOFF, Random(1)) == verdict


def test_attempts_count_from_the_last_retry() -> None:
    late = claimed(attempt=12, first_attempt=12)
    assert outcomes.judge(ValueError("no"), status.REASON_CODE, late, 3, BACKOFF, Random(1)).delay == 2.0


@pytest.mark.parametrize(
    ("undos", "undoing", "reason", "end"),
    [
        (False, False, status.REASON_CODE, status.FAILED),
        (True, False, status.REASON_CODE, status.COMPENSATING),
        (True, False, status.REASON_DEADLINE, status.COMPENSATING),
        (True, True, status.REASON_CODE, status.FAILED),
        (True, False, status.REASON_NON_DETERMINISM, status.FAILED),
    ],
)
def test_a_run_that_fails_undoes_first_what_its_code_says_how_to_undo(
    undos: bool, undoing: bool, reason: str, end: str
) -> None:
    move = outcomes.failed(LeavingRun(undos, undoing=undoing), "error", reason, None, FORMAT)
    assert (move.status, move.reason, move.error) == (end, reason, "error")
    assert move.forget == ([] if end == status.COMPENSATING else [("", 4)])  # an undo needs the records


def test_what_diverging_code_has_recorded_does_not_stay() -> None:
    run = LeavingRun()
    run.ledger.fresh = [("", 2)]
    assert outcomes.failed(run, "error", status.REASON_CODE, None, FORMAT).drop == []
    run.diverged = NonDeterminismError("other code")
    assert outcomes.failed(run, "error", status.REASON_NON_DETERMINISM, None, FORMAT).drop == [("", 2)]
    assert outcomes.left_to_others(run, 1.5).drop == [("", 2)]
    assert outcomes.left_to_others(run, 1.5).version == "v1"


@pytest.mark.parametrize("undos", [False, True])
def test_a_cancelled_run_ends_or_is_undone(undos: bool) -> None:
    move = outcomes.cancelled(LeavingRun(undos, recorded=True))
    assert move.status == (status.COMPENSATING if undos else status.CANCELLED)
    assert (move.reason, move.error) == (status.REASON_CANCELLED, None)


def test_a_cancelled_suspect_names_the_step_after_which_something_may_have_been_done() -> None:
    assert "charge" in (outcomes.cancelled(LeavingRun(losses=2)).error or "")


def test_a_run_that_waits_while_it_is_undone_goes_on_being_undone() -> None:
    assert outcomes.waiting(LeavingRun(), 5, 1000, "time").status == status.WAITING
    assert outcomes.waiting(LeavingRun(undoing=True), 5, 1000, "time").status == status.COMPENSATING


def test_a_pause_carries_the_wakes_of_the_claim() -> None:
    """Whatever was seen since: a resume has taken the wish back, and moved the count on."""
    assert outcomes.paused(LeavingRun()).wakes == 3


def test_an_attempt_that_ends_never_comes_back_in_the_same_millisecond() -> None:
    move = outcomes.next_attempt(LeavingRun(recorded=True), "error", 0.0, None, FORMAT)
    assert (move.status, move.delay_ms, move.next_attempt, move.recorded) == (status.QUEUED, 1, True, True)


def test_only_the_end_of_a_step_means_something_to_its_dag_run() -> None:
    graph = Graph([DagStep("a", ())])
    step = LeavingRun(dag_step="a", dag_id="d")
    for move in (outcomes.given_back(step), outcomes.waiting(step, 0, None, "time")):
        outcomes.settle(step, move, graph)
        assert move.settled is None
    done = outcomes.completed(step, "1", FORMAT)
    outcomes.settle(step, done, graph)
    assert done.settled is not None and (done.settled.dag_id, done.settled.outcome) == ("d", status.COMPLETED)


def test_a_caught_error_leads_somewhere_once_the_step_has_ended() -> None:
    graph, outcome = Graph([DagStep("a", ())]), outcomes.caught_by("mend")
    undoing = LeavingRun(True, dag_step="a", dag_id="d")
    move = outcomes.failed(undoing, "error", status.REASON_CODE, None, FORMAT)
    outcomes.settle_caught(undoing, outcome, move, graph)
    assert move.settled is None  # it undoes first
    ended = outcomes.undone(undoing, FORMAT)
    outcomes.settle_caught(undoing, outcome, ended, graph)
    assert ended.settled is not None and ended.settled.outcome == outcome


def test_a_child_tells_its_parent() -> None:
    for parent in (None, "p"):
        run = LeavingRun(parent_id=parent)
        move = outcomes.completed(run, "1", FORMAT)
        outcomes.settle(run, move, None)
        assert move.child == (parent is not None)
