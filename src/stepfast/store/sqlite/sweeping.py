"""What idle workers see to: what is due, who is dead, which lanes have something ready."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ...model.records import Beat, Lane, Tick
from ..engine_errors import DEADLINE_ERROR, EXPIRED_ERROR, LOST_ERROR
from ..protocol import Promotion, Reaping
from .claiming import Claims
from .families import tell_parents
from .graphs import end_steps, settle_failed


class Moved(NamedTuple):
    """A run that a sweep moved. The columns come in this order."""

    id: str
    queue: str
    workflow: str
    priority: int
    place: int | None
    completed_at: int | None
    dag_id: str | None
    pending: int


_BEFORE_ALL = Lane("", "", -(2**63))


def tick(
    database: sqlite3.Connection,
    sql: dict[str, str],
    claims: Claims,
    workflows: Sequence[str] | None,
    lanes: bool,
    queues: Sequence[str] | None = None,
) -> Tick:
    """Which duties have work?"""
    now, next_due, mail = database.execute(sql["duties"]).fetchone()
    return Tick(
        now_ms=now,
        due=next_due is not None and next_due <= now,
        next_due_ms=None if next_due is None else next_due - now,
        suspects=claims.has_suspects(database, workflows, queues),
        lanes=list(_known_lanes(database, sql, workflows)) if lanes else [],
        mail=bool(mail),
    )


def _known_lanes(
    database: sqlite3.Connection, sql: dict[str, str], workflows: Collection[str] | None
) -> Iterator[Lane]:
    known = None if workflows is None else set(workflows)
    lane: Lane | None = _BEFORE_ALL
    while lane is not None:
        row = database.execute(sql["next_lane"], lane).fetchone()
        lane = None if row is None else Lane(*row)
        if lane is not None and (known is None or lane.workflow in known):
            yield lane


def give_back(database: sqlite3.Connection, sql: dict[str, str], worker: str, held: Iterable[tuple[str, int]]) -> None:
    """Put runs back in line at once."""
    database.executemany(sql["give_back"], [(run_id, claim, worker) for run_id, claim in held])


def promote(database: sqlite3.Connection, sql: dict[str, str], limit: int) -> Promotion:
    """Make due sleepers ready; end or undo what is late."""
    rows = database.execute(sql["promote"], (limit, DEADLINE_ERROR, EXPIRED_ERROR)).fetchall()
    lanes, ended, asked = _sorted_out(database, sql, rows)
    return Promotion(lanes, ended, len(rows), asked)


def beats(database: sqlite3.Connection, sql: dict[str, str], worker: str) -> list[Beat]:
    """The last beats of all other workers."""
    return [Beat(*row) for row in database.execute(sql["beats"], (worker,))]


def reap(
    database: sqlite3.Connection,
    sql: dict[str, str],
    worker: str,
    limit: int,
    max_losses: int,
    silent: Sequence[str] | None,
) -> Reaping:
    """Bury dead workers, give back what they held, forget those with nothing left."""
    names = None if silent is None else msgspec.json.encode(list(silent)).decode()
    buried = [row[0] for row in database.execute(sql["bury"], {"worker": worker, "silent": names}).fetchall()]
    arguments = {"limit": limit, "max_losses": max_losses, "error": LOST_ERROR}
    rows = database.execute(sql["reap"], arguments).fetchall()
    if len(rows) < limit:
        database.execute(sql["forget_dead"])
    lanes, dead_letters, asked = _sorted_out(database, sql, rows)
    return Reaping(buried, lanes, dead_letters, len(rows), asked)


def _sorted_out(
    database: sqlite3.Connection, sql: dict[str, str], rows: list[Any]
) -> tuple[set[Lane], list[str], bool]:
    """The lanes that have something ready now; the runs that ended, whose parents are told; and whether steps that are
    held are to end. A step that ended fails its dag run; a dag run that is here and has steps to be settled is late."""
    moved = [Moved(*row) for row in rows]
    lanes = {Lane(run.queue, run.workflow, run.priority) for run in moved if run.place is not None}
    ended = [run for run in moved if run.completed_at is not None]
    if ended:
        tell_parents(database, sql, [run.id for run in ended])
    late = [run.id for run in moved if run.dag_id is None and run.pending > 0]
    fallen = [run.dag_id for run in ended if run.dag_id is not None]
    asked = False
    if late or fallen:
        (now,) = database.execute(sql["now"]).fetchone()
        for after in (end_steps(database, sql, late, now), settle_failed(database, sql, fallen, now)):
            lanes |= after.lanes
            asked |= bool(after.held)
    return lanes, [run.id for run in ended], asked
