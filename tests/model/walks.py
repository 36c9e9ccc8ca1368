"""Runs on random walks: every event that can happen to a run, in any order, by the functions that decide what follows.

What a walk comes to is a standing that a row can really have, for tests of the functions and of the statements.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from stepfast.model import status
from stepfast.model.records import Transition
from stepfast.model.run_state import RunState, place_at, sooner
from stepfast.model.transitions.claim import claim
from stepfast.model.transitions.finish import give_back, leave
from stepfast.model.transitions.operator import (
    Traces,
    cancel,
    may_be_paused,
    may_be_retried,
    pause,
    resume,
    retry,
    way_to_cancel,
)
from stepfast.model.transitions.recover import Causes, awake, due, end_late, lose
from stepfast.model.transitions.signals import wake

WORKER = "00000000-0000-7000-8000-000000000001"
RUN = "00000000-0000-7000-8000-00000000000a"
BEGIN = 1_000_000
MAX_LOSSES = 3
ERROR = '{"type":"ValueError"}'
CAUSES = Causes('{"type":"Late"}', '{"type":"Expired"}')

Event = Callable[[RunState, int], RunState]
"""What an event makes of a run at a time; the same standing if it cannot happen to it."""


def started(chance: Random) -> RunState:
    delay = chance.choice([0, 0, 50])
    expires, deadline = chance.choice([None, chance.randint(1, 200)]), chance.choice([None, chance.randint(60, 400)])
    expires_at = None if expires is None else BEGIN + delay + expires
    deadline_at = None if deadline is None else BEGIN + deadline
    timer = sooner(expires_at, deadline_at)
    return RunState(
        RUN, status.QUEUED, place=None if delay else place_at(BEGIN, 1),
        visible_at=sooner(BEGIN + delay, timer) if delay else timer, deadline_at=deadline_at, deadline_ms=deadline,
        expires_at=expires_at, version="v1", queue="order", workflow="order", child=chance.random() < 0.5,
    )  # fmt: skip


def transition(chance: Random, run: RunState, now: int, kind: str | None = None) -> Transition:
    """What the worker that holds a run may say of it. It has looked into the mailbox, and may have missed the last."""
    kind = chance.choice(UNDOING if run.undoing else LEAVING) if kind is None else kind
    move = Transition(run.id, run.claim, kind, recorded=chance.random() < 0.5, version=chance.choice([None, "v2"]))
    if kind == status.COMPLETED:
        move.output = '"done"'
    elif kind in status.TERMINAL:
        move.error = chance.choice([None, ERROR])
        move.reason = status.REASON_CANCELLED if kind == status.CANCELLED else chance.choice(REASONS)
        move.forget = chance.choice([[], [("", 1)]])
    elif kind in (status.QUEUED, status.COMPENSATING):
        move.delay_ms = chance.choice([None, 0, 30])
        move.next_attempt, move.error = chance.random() < 0.5, ERROR
        move.reason = status.REASON_CODE if kind == status.COMPENSATING else None
    elif kind == status.WAITING or chance.random() < 0.5:
        _wait(chance, run, move, now)
    return move


def _wait(chance: Random, run: RunState, move: Transition, now: int) -> None:
    move.waiting_for = chance.choice(["time", "signal", "child", "check", "retry"])
    move.wakes = max(0, run.wakes - chance.choice([0, 0, 1]))
    if move.waiting_for == status.WAITING_CHILD:
        move.awaits = run.ends + chance.randint(0, 3)
        move.linger_ms = chance.choice([0, 20])
    elif move.waiting_for != status.WAITING_SIGNAL or chance.random() < 0.5:
        move.due_at = now + chance.randint(-5, 100)


REASONS = (status.REASON_CODE, status.REASON_NON_DETERMINISM, status.REASON_TIMEOUT)
LEAVING = (
    status.COMPLETED, status.FAILED, status.CANCELLED, status.QUEUED, status.WAITING, status.WAITING, status.PAUSED,
    status.COMPENSATING,
)  # fmt: skip
UNDOING = (status.COMPENSATED, status.FAILED, status.QUEUED, status.WAITING)


def claimed(run: RunState, now: int) -> RunState:
    return claim(run, WORKER, "v1", now) if run.ready and due(run, now) == "no" else run


def timer_goes_off(undoable: bool) -> Event:
    def goes(run: RunState, now: int) -> RunState:
        what = due(run, now)
        if what == "ready":
            return awake(run, now, 3)
        return run if what == "no" else end_late(run, undoable and run.begun, CAUSES, now, 3)

    return goes


def cancelled(traces: Traces) -> Event:
    def goes(run: RunState, now: int) -> RunState:
        return run if way_to_cancel(run, traces.undoable) == "refused" else cancel(run, traces, now, 4)

    return goes


def paused(run: RunState, now: int) -> RunState:
    return (pause(run, now) or run) if may_be_paused(run) else run


def resumed(run: RunState, now: int) -> RunState:
    return resume(run, now, 5) or run


def mail_comes(signals: int, ends: int) -> Event:
    return lambda run, now: run if run.ended else wake(run, signals, ends, now, 6)


def given_back(recorded: bool) -> Event:
    return lambda run, now: give_back(run, recorded, now, 7) if run.held else run


def lost(recorded: bool) -> Event:
    return lambda run, now: lose(run, recorded, MAX_LOSSES, ERROR, now, 8) if run.held else run


def retried(run: RunState, now: int) -> RunState:
    return retry(run, now, 9) if may_be_retried(run) else run


def event(chance: Random, run: RunState, now: int) -> Event:
    if run.held and chance.random() < 0.4:
        move = transition(chance, run, now)
        return lambda run, now: leave(run, move, now, 2)
    undoable, yes = chance.random() < 0.5, chance.random() < 0.5
    between = run.attempt > 1 and not run.held and not run.ended and yes
    return chance.choice([
        claimed, claimed, claimed, timer_goes_off(undoable), timer_goes_off(undoable), paused, resumed, retried,
        cancelled(Traces(undoable, between)), mail_comes(1, 0), mail_comes(0, 1), given_back(yes), lost(yes),
    ])  # fmt: skip


class Moment(NamedTuple):
    before: RunState
    after: RunState
    now: int


class Life(NamedTuple):
    """What happened to a run, and the chance by which it did."""

    moments: list[Moment]
    chance: Random
    seed: int

    def __repr__(self) -> str:
        return f"live({self.seed})"

    def standings(self) -> list[tuple[RunState, int]]:
        """Where it stood, and when."""
        return [(replace(after, output=UNSET, error=UNSET), now) for _, after, now in self.moments]

    def held(self) -> list[tuple[RunState, int]]:
        return [(run, now) for run, now in self.standings() if run.held]


def live(seed: int, length: int = 40) -> Life:
    chance = Random(seed)
    run, now, moments = started(chance), BEGIN, list[Moment]()
    for _ in range(length):
        now += chance.choice([0, 1, 10, 60])
        after = event(chance, run, now)(run, now)
        moments.append(Moment(run, after, now))
        run = replace(after, output=UNSET, error=UNSET)
    return Life(moments, chance, seed)


lives = st.integers(0, 2**32).map(live)
