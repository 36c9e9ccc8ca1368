"""What becomes of a run when its claim ends: what is known of it goes in, the transition comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepfast.engine import outcomes
from stepfast.errors import NonDeterminismError
from stepfast.model import status
from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import Claimed

FORMAT = 1


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


def test_a_caught_error_leads_somewhere_once_the_step_has_ended() -> None:
    graph, outcome = Graph([DagStep("a", ())]), outcomes.caught_by("mend")
    undoing = LeavingRun(True, dag_step="a", dag_id="d")
    move = outcomes.failed(undoing, "error", status.REASON_CODE, None, FORMAT)
    outcomes.settle_caught(undoing, outcome, move, graph)
    assert move.settled is None  # it undoes first
    ended = outcomes.undone(undoing, FORMAT)
    outcomes.settle_caught(undoing, outcome, ended, graph)
    assert ended.settled is not None and ended.settled.outcome == outcome
