"""Drives flows (``store/flows``) in the writer's transaction."""

from __future__ import annotations

import sqlite3
from typing import Any

from ..flows.base import Ask, Flow, Put, PutAndAsk, PutEach, Remove, Request, SendTasks, Start, T
from ..flows.starts import insert
from .bulk_rows import execute_wide, fetch


def drive(database: sqlite3.Connection, sql: dict[str, str], flow: Flow[T]) -> T:
    """The whole of a flow. Everything happens in the transaction of the writer's job, so that nothing is committed in
    between."""
    answer: Any = None
    try:
        while True:
            answer = _answer(database, sql, flow.send(answer))
    except StopIteration as end:
        result: T = end.value
        return result


def _answer(database: sqlite3.Connection, sql: dict[str, str], request: Request) -> Any:
    if isinstance(request, Ask):
        return fetch(database, sql[request.name], request.arguments)
    if isinstance(request, Put):
        return execute_wide(database, sql[request.name], request.rows)
    if isinstance(request, PutEach):
        for name in request.names:
            execute_wide(database, sql[name], request.rows)
        return None
    if isinstance(request, PutAndAsk):
        for name in request.names:
            execute_wide(database, sql[name], request.rows)
        return fetch(database, sql[request.then.name], request.then.arguments)
    assert not isinstance(request, (SendTasks, Remove)), "no transport is in a SQLite file"
    seed = getattr(database, "given_seed", None)
    return drive(database, sql, insert(request.runs, seed)) if isinstance(request, Start) and seed else None
