"""What idle workers see to: what is due, who is dead, which lanes have something ready."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from ...model.records import Lane, Tick
from ..engine_errors import DEADLINE_ERROR, EXPIRED_ERROR, LOST_ERROR
from ..protocol import Promotion, Reaping
from .claiming import Claims
from .families import tell_parents

_BEFORE_ALL = Lane("", "", -(2**63))


def tick(
    database: sqlite3.Connection,
    sql: dict[str, str],
    claims: Claims,
    workflows: Sequence[str],
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
        lanes=list(_known_lanes(database, sql, set(workflows))) if lanes else [],
        mail=bool(mail),
    )


def _known_lanes(database: sqlite3.Connection, sql: dict[str, str], workflows: Collection[str]) -> Iterator[Lane]:
    lane: Lane | None = _BEFORE_ALL
    while lane is not None:
        row = database.execute(sql["next_lane"], lane).fetchone()
        lane = None if row is None else Lane(*row)
        if lane is not None and lane.workflow in workflows:
            yield lane


def give_back(database: sqlite3.Connection, sql: dict[str, str], worker: str, held: Iterable[tuple[str, int]]) -> None:
    """Put runs back in line at once."""
    database.executemany(sql["give_back"], [(run_id, claim, worker) for run_id, claim in held])


def promote(database: sqlite3.Connection, sql: dict[str, str], limit: int) -> Promotion:
    """Make due sleepers ready; end or undo what is late."""
    rows = database.execute(sql["promote"], (limit, DEADLINE_ERROR, EXPIRED_ERROR)).fetchall()
    lanes, ended = _sorted_out(database, sql, rows)
    return Promotion(lanes, ended, len(rows))


def reap(database: sqlite3.Connection, sql: dict[str, str], worker: str, limit: int, max_losses: int) -> Reaping:
    """Bury dead workers, give back what they held, forget those with nothing left."""
    buried = [row[0] for row in database.execute(sql["bury"], (worker,)).fetchall()]
    arguments = {"limit": limit, "max_losses": max_losses, "error": LOST_ERROR}
    rows = database.execute(sql["reap"], arguments).fetchall()
    if len(rows) < limit:
        database.execute(sql["forget_dead"])
    lanes, dead_letters = _sorted_out(database, sql, rows)
    return Reaping(buried, lanes, dead_letters, len(rows))


def _sorted_out(database: sqlite3.Connection, sql: dict[str, str], rows: list[Any]) -> tuple[set[Lane], list[str]]:
    """The lanes that have something ready now, and the runs that ended, whose parents are told."""
    lanes = {Lane(queue, workflow, priority) for _, queue, workflow, priority, place, _ in rows if place is not None}
    ended = [run_id for run_id, *_, completed_at in rows if completed_at is not None]
    if ended:
        tell_parents(database, sql, ended)
    return lanes, ended
