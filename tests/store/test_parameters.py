"""Statements with numbered parameters say the same without numbers, which some Pythons want."""

from __future__ import annotations

import re
import sqlite3
import sys
import warnings
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.store.sqlite import SqliteStore
from stepfast.store.sqlite.connections import TAKES_NUMBERS_FOR_NAMES, OwnConnection, _without_numbers, without_numbers
from tests.store.scene import Rows


@pytest.mark.parametrize(
    ("sql", "nameless", "bound"),
    [
        ("SELECT ?1, ?2", "SELECT ?, ?", ["a", "b"]),
        ("SELECT ?2, ?1, ?2", "SELECT ?, ?, ?", ["b", "a", "b"]),
        ("SELECT ?, ?", "SELECT ?, ?", ["a", "b"]),
        ("SELECT ?2, ?, ?1", "SELECT ?, ?, ?", ["b", "c", "a"]),
        ("SELECT '?1 ''?2''?', ?3", "SELECT '?1 ''?2''?', ?", ["c"]),
        ("SELECT ?2 -- the run's, not ?3\n, ?1", "SELECT ? -- the run's, not ?3\n, ?", ["b", "a"]),
    ],
)
def test_a_statement_without_numbers_says_the_same(sql: str, nameless: str, bound: list[str]) -> None:
    given = tuple("abc"[: max("abc".index(value) for value in bound) + 1])
    assert without_numbers(sql, given) == (nameless, bound)
    with closing(sqlite3.connect(":memory:")) as database, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert database.execute(nameless, bound).fetchall() == database.execute(sql, given).fetchall()
    for wrong in (given[:-1], (*given, "d")):
        with pytest.raises(sqlite3.ProgrammingError):
            without_numbers(sql, wrong)


async def test_every_statement_can_be_said_without_numbers() -> None:
    async with Stepfast("sqlite://") as app:
        await app.migrate()
        store = await app.store()
        assert isinstance(store, SqliteStore)
        rows = Rows(store)
        for sql in store._sql.values():
            if "?" not in sql:
                continue
            count = _without_numbers(sql)[2]
            nameless, bound = without_numbers(sql, range(count))
            assert not re.search(r"\?\d", re.sub(r"--.*", "", nameless))
            assert await rows.fetch(f"EXPLAIN {sql}", *range(count))
            assert await rows.fetch(f"EXPLAIN {nameless}", *bound)


def test_our_connections_bind_numbers_without_a_warning() -> None:
    with closing(sqlite3.connect(":memory:", factory=OwnConnection)) as database:
        assert database.execute("SELECT ?2, ?1, ?2", ("a", "b")).fetchall() == [("b", "a", "b")]
        database.execute("CREATE TABLE pairs (one, other)")
        database.executemany("INSERT INTO pairs VALUES (?2, ?1)", [("a", "b"), ("c", "d")])
        database.executemany("INSERT INTO pairs VALUES (:one, :other)", [{"one": "e", "other": "f"}])
        assert database.execute("SELECT * FROM pairs").fetchall() == [("b", "a"), ("d", "c"), ("e", "f")]
        assert database.execute("SELECT :b, :a", {"a": 1, "b": 2}).fetchall() == [(2, 1)]


def test_parameters_with_names_keep_them() -> None:
    assert without_numbers("SELECT :a", {"a": 1}) == ("SELECT :a", {"a": 1})


def test_only_the_pythons_that_warn_are_spoken_to_without_numbers() -> None:
    with closing(sqlite3.connect(":memory:")) as database, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        database.execute("SELECT ?1", ("a",))
    deprecated = [warning for warning in told if issubclass(warning.category, DeprecationWarning)]
    assert bool(deprecated) is TAKES_NUMBERS_FOR_NAMES, sys.version
