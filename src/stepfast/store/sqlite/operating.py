"""Operators' wishes: cancel, pause, resume, retry. A run that a worker holds is only marked; its owner acts on it."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from ...model import status
from ...model.cancelling import goes_on_first, may_have_acted
from ...model.records import Asked, Lane
from .families import cancel_children, tell_parents
from .forgetting import forget_steps
from .graph_retrying import retry_dag
from .graphs import end_steps, open_steps


class Standing(NamedTuple):
    """Where a run stands. The columns come in this order."""

    status: str
    reason: str | None
    worker: str | None
    undoing: int
    asked: str | None
    queue: str
    workflow: str
    priority: int
    waiting_for: str | None
    place: int | None
    held_due: int | None
    ends: int
    awaits: int | None
    linger_ms: int
    now: int
    dag_id: str | None
    graph: str | None
    pending: int
    failing: int
    losses: int

    @property
    def lane(self) -> Lane:
        """Where it stands when it is ready."""
        return Lane(self.queue, self.workflow, self.priority)

    @property
    def ended(self) -> bool:
        """Whether only a retry changes it."""
        return self.status in status.TERMINAL

    @property
    def is_dag(self) -> bool:
        """Whether it is a dag run, and not one of its steps."""
        return self.graph is not None and self.dag_id is None

    @property
    def blocked(self) -> bool:
        """Whether it is a step that waits for others."""
        return (self.status, self.waiting_for) == (status.WAITING, status.WAITING_STEPS)

    @property
    def sleeps(self) -> bool:
        """Whether a signal makes it ready. A step that waits for others is ready when they are settled."""
        return self.status == status.WAITING and not self.blocked

    def says(self, *, done: bool = False, ready: bool = False, ended: bool = False) -> Asked:
        """The answer to whoever wished something of it."""
        lane = self.lane if ready else None
        return Asked(self.status, self.reason, done, lane, ended, running=self.worker is not None)


def standing(database: sqlite3.Connection, sql: dict[str, str], run_id: str) -> Standing | None:
    """Where a run stands, if there is one."""
    row = database.execute(sql["standing"], (run_id,)).fetchone()
    return None if row is None else Standing(*row)


def cancel(database: sqlite3.Connection, sql: dict[str, str], run_id: str) -> Asked:
    """End a run that nobody holds, or begin its undoing; mark one that is held. What is undone already stays so. A step
    of a dag run is cancelled with that, and not by itself."""
    run = standing(database, sql, run_id)
    if run is None:
        return Asked(None)
    if run.undoing or run.dag_id is not None or not status.may_be_cancelled(run.status, run.reason):
        return run.says()
    if run.worker is not None:
        database.execute(sql["mark"], (status.ASK_CANCEL, 1, run_id))
        return run.says(done=True)
    if run.is_dag and not run.ended:
        return _cancel_dag(database, sql, run, run_id)
    if goes_on_first(run.losses, run.status, run.waiting_for) and not run.ended:
        database.execute(sql["go_on_first"], (run_id,))
        return run.says(done=True, ready=True)
    if not run.ended:
        _name_lost_step(database, sql, run, run_id)
    undo = run.is_dag or database.execute(sql["has_undo"], (run_id,)).fetchone() is not None
    database.execute(sql["undo_cancelled" if undo else "end_cancelled"], (run_id,))
    cancel_children(database, sql, [run_id])
    if not undo and not run.ended:
        tell_parents(database, sql, [run_id])
    return run.says(done=True, ready=undo, ended=not undo)


def _name_lost_step(database: sqlite3.Connection, sql: dict[str, str], run: Standing, run_id: str) -> None:
    running, last = database.execute(sql["last_steps"], {"run": run_id}).fetchone()
    error = may_have_acted(run.losses, run.status, running, last, run.waiting_for)
    if error is not None:
        database.execute(sql["say_error"], (error, run_id))


def _cancel_dag(database: sqlite3.Connection, sql: dict[str, str], run: Standing, run_id: str) -> Asked:
    """Whoever finishes the run undoes what is to be undone. One that fails already goes on to do so."""
    if run.failing:
        return run.says(done=run.reason == status.REASON_CANCELLED)
    database.execute(sql["cancel_dag"], (run_id,))
    after = end_steps(database, sql, [run_id], run.now)
    lane = run.lane if run.pending == 0 or run.lane in after.lanes else None
    return Asked(run.status, run.reason, done=True, lane=lane, running=bool(after.held), lanes=after.lanes)


def pause(database: sqlite3.Connection, sql: dict[str, str], run_id: str) -> Asked:
    """Hold a run; mark one that a worker holds. Nothing that is being undone or cancelled is held, and no step of a dag
    run by itself: it is held with that."""
    run = standing(database, sql, run_id)
    if run is None:
        return Asked(None)
    if run.dag_id is not None:
        return run.says()
    if run.status == status.PAUSED:
        return run.says(done=True)
    if run.ended or run.undoing or run.failing or run.asked == status.ASK_CANCEL:
        return run.says()
    asked = run.says(done=True)
    _hold(database, sql, run, run_id)
    for step_id, step in _released(database, sql, run, run_id):
        _hold(database, sql, step, step_id)
        asked.running |= step.worker is not None
    return asked


def _hold(database: sqlite3.Connection, sql: dict[str, str], run: Standing, run_id: str) -> None:
    if run.worker is not None:
        database.execute(sql["mark"], (status.ASK_PAUSE, 0, run_id))
    elif run.status != status.PAUSED:
        database.execute(sql["hold"], (run_id,))


def _released(
    database: sqlite3.Connection, sql: dict[str, str], run: Standing, run_id: str
) -> list[tuple[str, Standing]]:
    """The steps of a dag run that wait for no others."""
    if not run.is_dag:
        return []
    steps = [(step.id, standing(database, sql, step.id)) for step in open_steps(database, sql, [run_id])]
    return [(step_id, step) for step_id, step in steps if step is not None and not step.blocked]


def resume(database: sqlite3.Connection, sql: dict[str, str], run_id: str) -> Asked:
    """Let a held run go on, make the next check due, or take a mark back."""
    run = standing(database, sql, run_id)
    if run is None:
        return Asked(None)
    if run.dag_id is not None:
        return run.says()
    asked = _let_go(database, sql, run, run_id)
    for step_id, step in _released(database, sql, run, run_id):
        told = _let_go(database, sql, step, step_id)
        asked.done |= told.done
        asked.lanes |= {told.lane} if told.lane is not None else set()
    return asked


def _let_go(database: sqlite3.Connection, sql: dict[str, str], run: Standing, run_id: str) -> Asked:
    if run.asked == status.ASK_PAUSE:
        database.execute(sql["mark"], (None, 1, run_id))
        return run.says(done=True)
    if run.status == status.PAUSED and run.is_dag and run.pending > 0:
        database.execute(sql["let_dag_go"], (run_id,))
        return run.says(done=True)
    if run.status == status.PAUSED and not _may_go_on(run):
        database.execute(sql["sleep_on"], (run_id,))
        return run.says(done=True)
    if run.status == status.PAUSED or (run.status, run.waiting_for) == (status.WAITING, status.WAITING_CHECK):
        database.execute(sql["mark"], (None, 1, run_id))
        database.execute(sql["make_ready"], (run_id,))
        return run.says(done=True, ready=True)
    return run.says()


def _may_go_on(run: Standing) -> bool:
    """Whether a held run is ready when it is let go: it waits for nothing, or for what has come meanwhile."""
    due = run.held_due is not None and run.held_due <= run.now
    if run.waiting_for is None:
        return due or run.held_due is None
    settled = run.awaits is not None and run.ends >= run.awaits
    return due or settled or run.waiting_for == status.WAITING_CHECK


def retry(database: sqlite3.Connection, sql: dict[str, str], run_id: str) -> set[Lane] | None:
    """Queue a failed or cancelled run again, without the records that its error belongs to."""
    run = standing(database, sql, run_id)
    if run is not None and run.is_dag:
        may = run.status in (status.FAILED, status.CANCELLED) and not run.undoing
        return retry_dag(database, sql, run_id, run.workflow, run.graph or "") if may else None
    forget = database.execute(sql["forget_of"], (run_id,)).fetchall()
    rows = database.execute(sql["retry"], (run_id,)).fetchall()
    if not rows:
        return None
    places = msgspec.json.decode(forget[0][0] or "[]")
    forget_steps(database, sql, [(run_id, branch, position) for branch, position in places])
    database.execute(sql["tell_again"], {"parent": run_id})
    return {Lane(*rows[0])}
