"""Starts: many rows of few shapes, all or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...model.gate import Bound
from ...model.ids import new_seed
from ...model.records import NewRun, RunShape
from .graph_starting import start_graphs
from .wide import execute_wide


def start(database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun]) -> list[str]:
    """Insert them; their ids, or for a key already taken the id of the run that has it."""
    (now,) = database.execute(sql["now"]).fetchone()
    rows = list(_rows(runs, now, getattr(database, "given_seed", None) or new_seed()))
    if any(run.parent or run.origin or run.graph or run.trace for run in runs):
        started = _start_linked(database, sql, runs, rows)
    else:
        started = execute_wide(database, sql["start"], rows)
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


def _start_linked(
    database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun], rows: list[tuple[Any, ...]]
) -> int:
    """Runs that belong to others, as children or steps, or to a trace."""
    linked = [(run, (*row, *_links(run))) for row, run in zip(rows, runs, strict=True)]
    started = execute_wide(database, sql["start_linked"], [row for run, row in linked if run.graph is None])
    graphs = [(run, row) for run, row in linked if run.graph is not None]
    if graphs:
        started += start_graphs(database, sql, [run for run, _ in graphs], [row for _, row in graphs])
    return started


def _owner(database: sqlite3.Connection, sql: dict[str, str], run: NewRun) -> str:
    owner, earlier, format_ = database.execute(sql["by_keys"], (run.id, run.shape.workflow, run.key)).fetchone()
    run.earlier = None if earlier is None else (earlier, format_)
    return str(owner)


def _rows(runs: Sequence[NewRun], now: int, seed: str) -> Iterator[tuple[Any, ...]]:
    """What runs of one shape have in common is worked out once per stretch of them."""
    shape, shared, ready = None, (), False
    for n, run in enumerate(runs, 1):
        if run.shape is not shape:
            shape = run.shape
            shared, ready = _shared(shape, now, seed)
        yield run.id, run.input, run.key, now * 1000 + n if ready else None, *shared


def _links(run: NewRun) -> tuple[Any, ...]:
    return (*(run.parent or (None,) * 4), run.origin, run.trace)


def _shared(shape: RunShape, now: int, seed: str) -> tuple[tuple[Any, ...], bool]:
    due = max(now + shape.delay_ms, shape.at_ms or now)
    ready = due <= now
    expires_at = None if shape.expires_ms is None else due + shape.expires_ms
    deadline_at = None if shape.deadline_ms is None else now + shape.deadline_ms
    times = (None if ready else due, expires_at, deadline_at)
    shared = (
        shape.workflow,
        shape.version,
        shape.queue,
        shape.priority,
        min((time for time in times if time is not None), default=None),
        shape.max_attempts,
        shape.timeout_ms,
        shape.deadline_ms,
        deadline_at,
        expires_at,
        msgspec.json.encode(shape.tags).decode() if shape.tags else None,
        shape.concurrency_key,
        shape.format,
        seed,
        now,
    )
    return shared, ready
