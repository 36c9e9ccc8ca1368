"""Drives flows (``store/flows``) in the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ..flows.requests import Ask, Carry, Flow, Put, PutEach, Remove, Request, Start, T
from .starting import start
from .wide import execute_wide, fetch_wide

_WIDE = "json_group_array("
"""A question that answers with one text instead of many rows."""


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
    assert not isinstance(request, (Carry, Remove)), "no transport is in a SQLite file"
    return start(database, sql, request.runs) if isinstance(request, Start) else None


def fetch(database: sqlite3.Connection, text: str, arguments: Sequence[Any]) -> list[Any]:
    """The rows that a question brings."""
    values = bound_values(arguments)
    return fetch_wide(database, text, values) if _WIDE in text else database.execute(text, values).fetchall()


def bound_values(arguments: Sequence[Any]) -> list[Any]:
    """What is bound to a statement: columns of many values go in as JSON."""
    return [_value(argument) for argument in arguments]


def _value(argument: Any) -> Any:
    return msgspec.json.encode(argument).decode() if isinstance(argument, list) else argument
