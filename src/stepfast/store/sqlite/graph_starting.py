"""Starts of dag runs: the run and its steps, all or none of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ...model import status
from ...model.records import NewRun
from .wide import execute_wide

Row = tuple[Any, ...]
"""The columns of ``start_linked``."""

_PLACE, _VISIBLE, _DEADLINE, _EXPIRES, _LINKS = 3, 8, 12, 13, 19


def start_graphs(database: sqlite3.Connection, sql: dict[str, str], runs: Sequence[NewRun], rows: list[Row]) -> int:
    """Insert dag runs and their steps; how many rows. A run whose key is taken is not there, and so has no steps."""
    pairs = list(zip(runs, rows, strict=True))
    dags = [(run, row) for run, row in pairs if run.dag_step is None]
    dag_steps = [(run, row) for run, row in pairs if run.dag_step is not None]
    started = execute_wide(database, sql["start_dag"], [_dag_row(run, row) for run, row in dags])
    if started < len(dags):
        there = _there(database, sql, [run.id for run, _ in dags])
        dag_steps = [(run, row) for run, row in dag_steps if run.dag_step is not None and run.dag_step.dag_id in there]
    for run, _ in dags:
        if run.graph_text is not None:
            database.execute(sql["start_graph"], (run.graph_text, run.id))
    return started + execute_wide(database, sql["start_dag_steps"], [_dag_step_row(run, row) for run, row in dag_steps])


def _there(database: sqlite3.Connection, sql: dict[str, str], ids: list[str]) -> set[str]:
    which = msgspec.json.encode(ids).decode()
    return {row[0] for row in database.execute(sql["which_exist"], (which,)).fetchall()}


def _dag_row(run: NewRun, row: Row) -> Row:
    """The row of a dag run. It has begun, and is not ready; what expires are its first steps."""
    changed, now = list(row), row[_LINKS - 1]
    changed[_PLACE] = changed[_EXPIRES] = None
    changed[_VISIBLE] = row[_DEADLINE]
    return (*changed, run.graph, run.steps, now, now)


def _dag_step_row(run: NewRun, row: Row) -> Row:
    """One that waits for nothing is like any run. One that waits does so for steps alone: no time makes it ready, and
    it does not expire."""
    assert run.dag_step is not None
    changed, now = list(row[:_LINKS]), row[_LINKS - 1]
    if run.dag_step.pending:
        changed[_PLACE] = changed[_VISIBLE] = changed[_EXPIRES] = None
        return (*changed, run.trace, run.graph, *run.dag_step, status.WAITING, status.WAITING_STEPS, None)
    return (*changed, run.trace, run.graph, *run.dag_step, status.QUEUED, None, now)
