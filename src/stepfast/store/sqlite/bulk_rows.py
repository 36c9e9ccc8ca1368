"""Many rows by one statement, both ways.

Each step of a SQLite statement gives Python's lock away and has to wait for it again, behind an event loop that may be
busy. Row by row, a flush of hundreds would wait hundreds of times; so rows go in by statements with many rows of
values, and come out as one row of JSON.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from ..sql import Each

_WIDTHS = tuple(2**power for power in range(9, -1, -1))
"""Rows per statement, from 512 to 1. Few widths, so that the prepared statements are found again; powers of two, so
that any number of rows takes few statements."""
_MOST_PLACES = 32_766
"""Values that SQLite binds to one statement."""
_WIDE = "json_group_array("
"""A question that answers with one text instead of many rows."""
_VALUES = re.compile(r"VALUES (\([^()]*\?[^()]*\))")


def execute_wide(database: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Run a statement that has ``VALUES (?, …)`` once for all rows; how many it wrote. (The connection's own count of
    changes would include what triggers of the application wrote.)"""
    return execute_flat(database, sql, list(chain.from_iterable(rows)), len(rows)) if rows else 0


def execute_flat(database: sqlite3.Connection, sql: str, values: list[Any], count: int) -> int:
    """The same for the values of so many rows, one row after the other."""
    columns = len(values) // count
    begin = written = 0
    for width in _WIDTHS:
        while count - begin >= width and width * columns <= _MOST_PLACES:
            part = values if width == count else values[begin * columns : (begin + width) * columns]
            written += database.execute(_widened(sql, width), part).rowcount
            begin += width
    return written


def fits_one_statement(count: int) -> bool:
    """Whether so many rows of a few columns are written by one statement."""
    return count in _WIDTHS


def fetch_wide(database: sqlite3.Connection, sql: str, values: Iterable[Any]) -> list[list[Any]]:
    """All rows of a question that answers with one JSON array of arrays."""
    (text,) = database.execute(sql, tuple(values)).fetchone()
    rows: list[list[Any]] = msgspec.json.decode(text)
    return rows


def fetch(database: sqlite3.Connection, text: str, arguments: Sequence[Any]) -> list[Any]:
    """The rows that a question brings."""
    if isinstance(text, Each):
        number, once = text.number, str(text)
        each = (row if isinstance(row, (tuple, list)) else (row,) for row in arguments[number])
        asked = [(*arguments[:number], *row, *arguments[number + 1 :]) for row in each]
        return [row for values in asked for row in fetch(database, once, values)]
    values = bound_values(arguments)
    return fetch_wide(database, text, values) if _WIDE in text else database.execute(text, values).fetchall()


def bound_values(arguments: Sequence[Any]) -> list[Any]:
    """What is bound to a statement: columns of many values go in as JSON."""
    return [_value(argument) for argument in arguments]


def _value(argument: Any) -> Any:
    return msgspec.json.encode(argument).decode() if isinstance(argument, list) else argument


@lru_cache(maxsize=512)
def _widened(sql: str, width: int) -> str:
    return _VALUES.sub(lambda match: "VALUES " + ", ".join([match[1]] * width), sql, count=1)
