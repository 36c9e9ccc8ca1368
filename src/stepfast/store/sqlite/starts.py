"""Starts: many rows of few shapes, all or none. Their first state is decided in ``model/transitions/start.py``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...model.ids import new_seed
from ...model.queue_config import Bound
from ...model.records import NewRun, RunShape
from ...model.transitions.start import Beginning, begin, begin_alone
from .bulk_rows import execute_wide, fetch

Row = tuple[Any, ...]


def start(database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun]) -> list[str]:
    """Insert them; their ids, or for a key already taken the id of the run that has it."""
    (now,) = database.execute(sql["now"]).fetchone()
    seed = getattr(database, "given_seed", None) or new_seed()
    if any(run.parent or run.origin or run.graph or run.trace for run in runs):
        started = _start_linked(database, sql, runs, now, seed)
    else:
        started = execute_wide(database, sql["start"], list(_rows(runs, now, seed)))
    all_new = started == len(runs)
    tags = [(tag, run.id) for run in runs if run.shape.tags and run.dag_step is None for tag in run.shape.tags]
    if tags:
        database.executemany(sql["start_tag"], tags)
    return [run.id if all_new or run.key is None else _owner(database, sql, run) for run in runs]


def start_bounded(database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun], bound: Bound) -> list[str]:
    """Insert runs, all or none, and none if too many would be ready."""
    arguments = (bound.queue, bound.beyond(len(runs)))
    (before,) = database.execute(sql["count_ready"], arguments).fetchone()
    ids = start(database, sql, runs)
    (after,) = database.execute(sql["count_ready"], arguments).fetchone()
    bound.check(before, after)
    return ids


def _owner(database: sqlite3.Connection, sql: dict[str, str], run: NewRun) -> str:
    owner, earlier, format_ = database.execute(sql["by_keys"], (run.id, run.shape.workflow, run.key)).fetchone()
    run.earlier = None if earlier is None else (earlier, format_)
    return str(owner)


# -- runs that belong to nothing ---------------------------------------------------------------------------


def _rows(runs: Sequence[NewRun], now: int, seed: str) -> Iterator[Row]:
    """What runs of one shape have in common is worked out once per stretch of them."""
    shape, common, ready = None, (), False
    for n, run in enumerate(runs, 1):
        if run.shape is not shape:
            shape, stands = run.shape, begin_alone(run.shape, now)
            common, ready = _common(shape, stands, now, seed), stands.ready
        yield run.id, run.input, run.key, now * 1000 + n if ready else None, *common


def _common(shape: RunShape, stands: Beginning, now: int, seed: str) -> Row:
    return (
        shape.workflow,
        shape.version,
        shape.queue,
        shape.priority,
        stands.visible_at,
        shape.max_attempts,
        shape.timeout_ms,
        shape.deadline_ms,
        stands.deadline_at,
        stands.expires_at,
        msgspec.json.encode(shape.tags).decode() if shape.tags else None,
        shape.concurrency_key,
        shape.format,
        seed,
        now,
    )


# -- runs that belong to others, as children or steps, or to a trace ---------------------------------------


def _start_linked(
    database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun], now: int, seed: str
) -> int:
    """Insert them, steps of dag runs last; how many rows. A dag run whose key is taken is not there, and so has no
    steps."""
    rows = list(zip(runs, _linked_rows(runs, now, seed), strict=True))
    others = [(run, row) for run, row in rows if run.dag_step is None]
    started = execute_wide(database, sql["start_linked"], [row for _, row in others])
    steps = [(run.dag_step.dag_id, row) for run, row in rows if run.dag_step is not None]
    if steps and started < len(others):
        there = {row[0] for row in fetch(database, sql["which_exist"], ([run.id for run, _ in others],))}
        steps = [(dag_id, row) for dag_id, row in steps if dag_id in there]
    for run, _ in others:
        if run.graph_text is not None:
            database.execute(sql["start_graph"], (run.graph_text, run.id))
    return started + execute_wide(database, sql["start_linked"], [row for _, row in steps])


def _linked_rows(runs: Sequence[NewRun], now: int, seed: str) -> Iterator[Row]:
    """What runs of one kind have in common is worked out once."""
    known: dict[Any, tuple[Beginning, Row]] = {}
    for number, run in enumerate(runs, 1):
        kind = (run.shape, bool(run.steps), None if run.dag_step is None else bool(run.dag_step.pending))
        if (common := known.get(kind)) is None:
            stands = begin(run, now)
            common = known[kind] = (stands, _common(run.shape, stands, now, seed))
        yield _linked_row(run, now * 1000 + number, *common)


def _linked_row(run: NewRun, place: int, stands: Beginning, common: Row) -> Row:
    dag_id, dag_step, pending = run.dag_step or (None, None, run.steps)
    return (
        run.id,
        run.input,
        run.key,
        place if stands.ready else None,
        *common,
        stands.status,
        stands.waiting_for,
        stands.started_at,
        stands.ready_at,
        *(run.parent or (None,) * 4),
        run.origin,
        run.trace,
        run.graph,
        dag_id,
        dag_step,
        pending,
    )
