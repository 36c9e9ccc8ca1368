"""The ways in which a claim of a run can end, each as the transition that the journal is given.

Nothing here waits, writes or asks: what is known of the run goes in, what becomes of it comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from ..errors import ContextMisuse, DeadlineExceeded, InvalidInput, NonDeterminismError
from ..model import status
from ..model.backoff import Backoff, retry_delay
from ..model.graph import Graph, Settled
from ..model.records import Claimed, NewRun, Transition
from ..model.transitions.operator import may_have_acted
from ..settings import FORMAT


class Account(Protocol):
    """What is recorded of a run, as far as its end depends on it."""

    @property
    def fresh(self) -> Sequence[tuple[str, int]]:
        """The records of this claim that do not stay if its code diverges."""
        ...

    @property
    def recorded(self) -> bool:
        """Whether this claim has made a new record."""
        ...

    def has_undos(self) -> bool:
        """Whether something that was done can be undone."""
        ...

    def last_step(self) -> str | None:
        """The name of the step that was recorded last, before this claim."""
        ...


class Leaver(Protocol):
    """A run that leaves, as far as its end depends on it."""

    run_id: str
    claim: int
    claimed: Claimed
    diverged: NonDeterminismError | None

    @property
    def owes_record(self) -> bool:
        """Whether it has to come to a new record before it can be cancelled."""
        ...

    @property
    def ledger(self) -> Account:
        """What is recorded of it."""
        ...

    def to_forget(self, error: BaseException | None, by_operator: bool = False) -> list[tuple[str, int]]:
        """The records that a new attempt, or an operator's retry, does again."""
        ...


class AfterFailure(NamedTuple):
    """What a failed attempt means."""

    reason: str
    delay: float | None
    """Seconds until the next attempt; None: there is none, and the run fails."""


def judge(
    error: Exception, reason: str, claimed: Claimed, allowed: int, backoff: Backoff, random: Random
) -> AfterFailure:
    """Whether a failed attempt is followed by another. So many are allowed in all; chance spreads the waits."""
    if isinstance(error, DeadlineExceeded):
        return AfterFailure(status.REASON_DEADLINE, None)
    if isinstance(error, InvalidInput) and error.of_run:
        return AfterFailure(status.REASON_INPUT, None)
    if isinstance(error, (ContextMisuse, InvalidInput)):
        return AfterFailure(reason, None)
    failures = claimed.attempt - claimed.first_attempt + 1
    return AfterFailure(reason, retry_delay(error, failures, allowed, backoff, random))


# -- it has come to its end -----------------------------------------------------------------------------------------


def completed(run: Leaver, output: str, format_: int) -> Transition:
    """The code of the run returned a result."""
    return Transition(run.run_id, run.claim, status.COMPLETED, output=output, format=format_)


def skipped(run: Leaver) -> Transition:
    """The step of a dag run is not to be done."""
    return Transition(run.run_id, run.claim, status.SKIPPED)


def continued(run: Leaver, successor: NewRun) -> Transition:
    """The run ends, and goes on as another."""
    return Transition(
        run.run_id,
        run.claim,
        status.COMPLETED,
        reason=status.REASON_CONTINUED,
        output=msgspec.json.encode(successor.id).decode(),
        format=FORMAT,
        successor=successor,
    )


def failed(run: Leaver, error: str, reason: str, cause: BaseException | None, format_: int) -> Transition:
    """There is no further attempt. What was done is undone first, if the code is to blame and says how. What a claim
    recorded by code that diverges does not stay."""
    undo = reason not in status.UNDONE_BY_CANCEL and not run.claimed.undoing and run.ledger.has_undos()
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if undo else status.FAILED,
        reason=reason,
        error=error,
        recorded=run.ledger.recorded,
        forget=[] if undo else run.to_forget(cause, by_operator=reason == status.REASON_CODE),
        drop=[] if run.diverged is None else list(run.ledger.fresh),
        format=format_,
    )


def cancelled(run: Leaver) -> Transition:
    """Somebody cancelled it: that is its end, or the beginning of its undoing."""
    undo, claimed = run.ledger.has_undos(), run.claimed
    error = None
    if not run.ledger.recorded:
        lost = claimed.losses, claimed.unrecorded_losses
        error = may_have_acted(*lost, status.RUNNING, None, run.ledger.last_step())
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if undo else status.CANCELLED,
        reason=status.REASON_CANCELLED,
        error=error,
        recorded=run.ledger.recorded,
        forget=[] if undo else run.to_forget(None),
    )


def undone(run: Leaver, format_: int) -> Transition:
    """Every undo was called. The run keeps the error that it had ended with."""
    return Transition(run.run_id, run.claim, status.COMPENSATED, recorded=run.ledger.recorded, format=format_)


def undo_failed(run: Leaver, error: str, format_: int) -> Transition:
    """Every undo was called, and one of them failed."""
    return Transition(
        run.run_id,
        run.claim,
        status.FAILED,
        reason=status.REASON_UNDO,
        error=error,
        recorded=run.ledger.recorded,
        format=format_,
    )


def broken(run: Leaver, error: str | None, format_: int) -> Transition:
    """The outcome of a run cannot be recorded, or the engine itself could not make it: the run ends, and says so."""
    return Transition(run.run_id, run.claim, status.FAILED, reason=status.REASON_CODE, error=error, format=format_)


# -- it will come back ----------------------------------------------------------------------------------------------


def next_attempt(run: Leaver, error: str, delay: float, cause: BaseException | None, format_: int) -> Transition:
    """The attempt failed, and there will be another after so many seconds."""
    return Transition(
        run.run_id,
        run.claim,
        status.QUEUED,
        error=error,
        delay_ms=max(1, int(delay * 1000)),
        next_attempt=True,
        owes_record=run.owes_record,
        recorded=run.ledger.recorded,
        forget=run.to_forget(cause),
        format=format_,
    )


def waiting(
    run: Leaver, wakes: int, due_at: int | None, waiting_for: str, awaits: int | None = None, linger_ms: int = 0
) -> Transition:
    """Everything in it waits: it gives its slot back until then."""
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if run.claimed.undoing else status.WAITING,
        waiting_for=waiting_for,
        wakes=wakes,
        recorded=run.ledger.recorded,
        due_at=due_at,
        awaits=awaits,
        linger_ms=linger_ms,
    )


def waits_for_graph(run: Leaver, due_at: int) -> Transition:
    """What follows from the end of a step is in its graph; one whose graph is not stored cannot end."""
    return Transition(run.run_id, run.claim, status.WAITING, due_at=due_at, waiting_for=status.WAITING_GRAPH)


def paused(run: Leaver) -> Transition:
    """An operator holds it. With the count of wakes at the claim, whatever was seen since: a resume has taken the wish
    back, and moved it on."""
    return Transition(run.run_id, run.claim, status.PAUSED, wakes=run.claimed.wakes, recorded=run.ledger.recorded)


def given_back(run: Leaver) -> Transition:
    """The worker stops: the run is ready again at once, no attempt is used, nothing has failed."""
    return Transition(run.run_id, run.claim, status.QUEUED, delay_ms=0, recorded=run.ledger.recorded)


def left_to_others(run: Leaver, delay: float) -> Transition:
    """The code here does not fit; that of other workers may."""
    return Transition(
        run.run_id,
        run.claim,
        status.QUEUED,
        delay_ms=int(delay * 1000),
        version=run.claimed.last_version,
        drop=list(run.ledger.fresh),
    )


# -- what it means to a dag run -------------------------------------------------------------------------------------


def caught_by(target: str) -> str:
    """The reason of a step whose error leads to another step."""
    return f"{status.REASON_CAUGHT}:{target}"


def settle_caught(run: Leaver, outcome: str | None, move: Transition, graph: Graph | None) -> None:
    """Where a caught error leads, once the step has undone what it did itself."""
    claimed = run.claimed
    caught = outcome is not None and outcome.startswith(caught_by(""))
    if caught and claimed.dag_step is not None and move.status in status.TERMINAL:
        assert graph is not None
        move.settled = Settled(claimed.dag_id or "", claimed.dag_step, outcome or "", graph)


def settle(run: Leaver, move: Transition, graph: Graph | None) -> None:
    """What the end of a step means to the others; and whether somebody has to hear of the end."""
    claimed = run.claimed
    move.child = claimed.parent_id is not None
    if claimed.dag_step is not None and move.status in status.TERMINAL and move.settled is None:
        assert graph is not None
        move.settled = Settled(claimed.dag_id or "", claimed.dag_step, move.status, graph)
