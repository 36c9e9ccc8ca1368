"""Says in SQLite's words what a statement of ``store/shared`` says in Postgres'.

A shared statement keeps to what every database can be told by such rules. What they cannot carry over (LATERAL, a cast
that changes a value, an index that has to be named) stands in the folder of each database, in its own words.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache

_WRITES = re.compile(r"^(INSERT|UPDATE|DELETE) ", re.MULTILINE)
_UNNEST = re.compile(r"unnest\(([^()]*)\)\s+AS (\w+)\(([^()]*)\)")
"""Columns of many values, the name that they have as a table, and their own names."""
_NUMBER = re.compile(r"\$(\d+)")
_SIZED = re.compile(r"\boctet_length\(([\w.]+)\)")
_HAS_SIZE = sqlite3.sqlite_version_info >= (3, 43)
_RULES = (
    (re.compile(r"\{schema\}\."), "{prefix}"),  # tables are told apart by how their names begin
    (re.compile(r"\s+FOR (NO KEY )?UPDATE( OF \w+)?( SKIP LOCKED)?"), ""),  # there is one writer, and nothing to lock
    (re.compile(r"= ANY\((\$\d+)::\w+\[\]\)"), r"IN (SELECT value FROM json_each(\1))"),  # a list comes as JSON
    (re.compile(r"::\w+(\[\])?"), ""),  # values are stored as what they are: a cast would say nothing new
    (re.compile(r"IS NOT DISTINCT FROM"), "IS"),  # IS compares with anything, NULL included
    (re.compile(r"IS DISTINCT FROM"), "IS NOT"),  # the opposite of it
)
"""What is said otherwise, in this order, after ``unnest`` and before the numbers of parameters."""


@lru_cache(maxsize=1024)
def translate(sql: str) -> str:
    """A shared statement for SQLite. It is remembered, because every store of a process asks for the same ones."""
    columns = _values if _WRITES.search(sql) else _json
    number = _renumbered(sql)
    sql = _UNNEST.sub(lambda found: columns(found[1], found[2], re.split(r",\s*", found[3])), sql)
    for pattern, words in _RULES:
        sql = pattern.sub(words, sql)
    return _NUMBER.sub(lambda found: f"?{number(int(found[1]))}", sql)


def _values(_arguments: str, alias: str, names: list[str]) -> str:
    """Rows that are written: ``execute_wide`` repeats their places as often as there are rows."""
    places = ", ".join("?" * len(names))
    return f"(WITH {alias}({', '.join(names)}) AS (VALUES ({places})) SELECT * FROM {alias}) AS {alias}"


def _json(arguments: str, alias: str, names: list[str]) -> str:
    """Rows that a question is about: one JSON array, of values, or of arrays where there are several columns."""
    parts = [f"json_extract(value, '$[{index}]')" for index in range(len(names))] if len(names) > 1 else ["value"]
    columns = ", ".join(f"{part} AS {name}" for part, name in zip(parts, names, strict=True))
    return f"(SELECT {columns} FROM json_each({arguments.split(',')[0]})) AS {alias}"


def _renumbered(sql: str) -> Callable[[int], int]:
    """The number of a parameter, where several columns that come as one array count as one."""
    columns = [_NUMBER.findall(found[1]) for found in _UNNEST.finditer(sql)]
    merged = {int(number) for numbers in columns for number in numbers[1:]}
    return lambda number: number - sum(1 for other in merged if other < number)


def for_this_sqlite(statements: dict[str, str]) -> dict[str, str]:
    """Statements as the library at hand understands them."""
    return statements if _HAS_SIZE else {name: older(text) for name, text in statements.items()}


@lru_cache(maxsize=1024)
def older(sql: str) -> str:
    """A statement for a SQLite before 3.43, which has no ``octet_length``. Its ``length`` counts the characters of a
    text, but the bytes of a blob."""
    return _SIZED.sub(r"length(CAST(\1 AS BLOB))", sql)
