"""Numbered parameters (``?2``), bound in a way that the Python at hand does not complain of.

Python 3.12.0 to 3.12.3 takes a number for a name, and warns of each one that is bound by its place. For these the
statement is said without numbers, and a value that it uses twice is given twice.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

TAKES_NUMBERS_FOR_NAMES = (3, 12) <= sys.version_info[:3] < (3, 12, 4)
_PARAMETER = re.compile(r"--[^\n]*|'[^']*'|\?(\d*)")
"""A parameter with its number, if it has one; or a remark or a text in quotes, in which a question mark is none."""


class OwnConnection(sqlite3.Connection):
    """A connection that our statements are run on."""

    if TAKES_NUMBERS_FOR_NAMES:

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            """Run one of our statements."""
            return super().execute(*without_numbers(sql, parameters))

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
            """Run one of our statements for each row of values."""
            text, *_ = _without_numbers(sql)
            return super().executemany(text, (without_numbers(sql, row)[1] for row in parameters))


def bindable(sql: str, values: Any) -> tuple[str, Any]:
    """A statement and its values, as a connection that is not our own takes them."""
    return without_numbers(sql, values) if TAKES_NUMBERS_FOR_NAMES else (sql, values)


def without_numbers(sql: str, values: Any) -> tuple[str, Any]:
    """A statement with nameless parameters instead, and its values in the order in which it asks for them. One whose
    parameters have names stays as it is."""
    text, places, count = _without_numbers(sql)
    if not places:
        return sql, values
    if len(values) != count:
        raise sqlite3.ProgrammingError(f"the statement uses {count} values, and {len(values)} were given")
    return text, [values[place] for place in places]


@lru_cache(maxsize=4096)
def _without_numbers(sql: str) -> tuple[str, list[int], int]:
    """A statement without numbers, which value is bound at each of its parameters, and how many values there are. A
    parameter that had no number has, as SQLite counts, the number that follows the highest before it."""
    places: list[int] = []
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        if found[1] is None:
            return found[0]
        number = int(found[1]) if found[1] else count + 1
        count = max(count, number)
        places.append(number - 1)
        return "?"

    return _PARAMETER.sub(place, sql), places, count
