"""What idle workers see to: what is due, who is dead, which lanes have something ready."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence

import msgspec

from ...model.records import Beat, Lane, Tick
from .claiming import Claims

_BEFORE_ALL = Lane("", "", -(2**63))


def tick(
    database: sqlite3.Connection,
    sql: dict[str, str],
    claims: Claims,
    workflows: Sequence[str] | None,
    lanes: bool,
    queues: Sequence[str] | None = None,
    schedules: Sequence[str] = (),
) -> Tick:
    """Which duties have work?"""
    declared = msgspec.json.encode(schedules).decode()
    now, next_due, mail, schedule, remote = database.execute(sql["duties"], (declared,)).fetchone()
    gates = {name: (bool(paused), suspects) for name, paused, suspects in database.execute(sql["gates"]).fetchall()}
    found = list(_known_lanes(database, sql, workflows)) if lanes else []
    return Tick(
        now_ms=now,
        due=next_due is not None and next_due <= now,
        next_due_ms=None if next_due is None else next_due - now,
        suspects=claims.has_suspects(database, workflows, queues),
        lanes=[lane for lane in found if lane.queue not in gates],
        mail=bool(mail),
        limited=[lane for lane in found if lane.queue in gates and not gates[lane.queue][0]],
        gated=frozenset(gates),
        paused=frozenset(name for name, (paused, _) in gates.items() if paused),
        limited_suspects=[
            name for name, (paused, suspects) in gates.items() if not paused and _knows(workflows, suspects)
        ],
        schedule_ms=None if schedule is None else schedule - now,
        remote=remote is not None,
        remote_ms=None if remote is None else remote - now,
    )


def _knows(workflows: Collection[str] | None, names: str) -> bool:
    """Whether one of these names, which are JSON, is that of a known workflow."""
    found = msgspec.json.decode(names)
    return bool(found) if workflows is None else any(name in workflows for name in found)


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


def beats(database: sqlite3.Connection, sql: dict[str, str], worker: str) -> list[Beat]:
    """The last beats of all other workers."""
    return [Beat(*row) for row in database.execute(sql["beats"], (worker,))]
