"""Statements that are written once: how SQLite reads them, rule by rule; and that none is written a second time."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from typing import Any

import pytest

from stepfast.store import sql as store_sql
from stepfast.store.sqlite.bulk_rows import execute_wide
from stepfast.store.sqlite.connections import OwnConnection
from stepfast.store.sqlite.dialect import older, translate

DATABASES = ("stepfast.store.postgres", "stepfast.store.sqlite")


def names_in(folder: str) -> set[str]:
    """The names of the statements in a folder of the store."""
    files = [file for file in resources.files(folder).iterdir() if file.name.endswith(".sql")]
    return {name for file in files for name in re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)}


def test_tables_are_told_apart_by_how_their_names_begin() -> None:
    assert translate("SELECT 1 FROM {schema}.runs r") == "SELECT 1 FROM {prefix}runs r"


def test_parameters_keep_their_numbers() -> None:
    assert translate("SELECT $2, $10, $2") == "SELECT ?2, ?10, ?2"


def test_casts_are_left_out() -> None:
    assert translate("SELECT id::text, $1::bigint, NULL::text[] FROM t") == "SELECT id, ?1, NULL FROM t"


def test_a_list_of_values_comes_as_json() -> None:
    assert translate("WHERE $1::text[] IS NULL OR name = ANY($1::text[])") == (
        "WHERE ?1 IS NULL OR name IN (SELECT value FROM json_each(?1))"
    )


def test_nothing_is_locked() -> None:
    for lock in ("FOR UPDATE", "FOR NO KEY UPDATE", "FOR NO KEY UPDATE OF r", "FOR UPDATE OF r SKIP LOCKED"):
        assert translate(f"SELECT 1 FROM t r\nORDER BY r.id\n{lock}") == "SELECT 1 FROM t r\nORDER BY r.id"


def test_null_is_compared_by_is() -> None:
    assert translate("a IS DISTINCT FROM 'x' AND b IS NOT DISTINCT FROM $1") == "a IS NOT 'x' AND b IS ?1"


def test_an_older_library_is_told_the_size_of_a_payload_otherwise() -> None:
    assert older("SELECT octet_length(r.input)") == "SELECT length(CAST(r.input AS BLOB))"


def test_a_question_about_one_column_takes_an_array_of_values() -> None:
    sql = translate("SELECT u.id FROM unnest($1::uuid[]) AS u(id) WHERE u.id <> $2 ORDER BY u.id")
    assert "(SELECT value AS id FROM json_each(?1)) AS u" in sql
    assert found(sql, json.dumps(["b", "a", "c"]), "c") == [("a",), ("b",)]


def test_a_question_about_several_columns_takes_an_array_of_rows_as_one_parameter() -> None:
    sql = translate("SELECT u.b, u.a, $1, $4 FROM unnest($2::text[],\n    $3::integer[])\n    AS u(a,\n b) LIMIT $5")
    assert re.findall(r"\?\d", sql) == ["?1", "?3", "?2", "?4"]
    rows = found(sql, "first", json.dumps([["x", 1], ["y", 2]]), "last", 9)
    assert rows == [(1, "x", "first", "last"), (2, "y", "first", "last")]


def found(sql: str, *values: Any) -> list[Any]:
    """What a question brings on a database without tables."""
    with closing(sqlite3.connect(":memory:", factory=OwnConnection)) as database:
        return database.execute(sql, values).fetchall()


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    """A table of three rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE s_t (id TEXT PRIMARY KEY, n INTEGER)")
        database.execute("INSERT INTO s_t VALUES ('a', 1), ('b', 2), ('c', 3)")
        yield database


INSERT = """
INSERT INTO {schema}.t (id, n) SELECT u.id, u.n FROM unnest($1::text[], $2::integer[]) AS u(id, n)
WHERE true
ON CONFLICT (id) DO NOTHING"""
UPDATE = """
-- With a comment first.
UPDATE {schema}.t AS t SET n = u.n FROM unnest($1::text[], $2::integer[]) AS u(id, n) WHERE t.id = u.id"""
DELETE = """
DELETE FROM {schema}.t WHERE (id, n) IN (SELECT u.id, u.n / 10 FROM unnest($1::text[], $2::integer[]) AS u(id, n))"""


@pytest.mark.parametrize(
    ("sql", "written", "left"),
    [
        (INSERT, 6, {"a": 1, "b": 2, "c": 3} | {f"x{n}": n for n in range(6)}),
        (UPDATE, 2, {"a": 10, "b": 20, "c": 3}),
        (DELETE, 2, {"c": 3}),
    ],
    ids=["insert", "update", "delete"],
)
def test_what_writes_takes_rows_of_values(
    table: sqlite3.Connection, sql: str, written: int, left: dict[str, int]
) -> None:
    """As many as there are, and their number comes back: that of rows which were written."""
    rows = [("a", 10), ("b", 20), *((f"x{n}", n) for n in range(6))]
    assert execute_wide(table, translate(sql).replace("{prefix}", "s_"), rows) == written
    assert dict(table.execute("SELECT id, n FROM s_t")) == left


@pytest.mark.parametrize("database", DATABASES)
def test_no_statement_is_shared_and_written_by_a_database_as_well(database: str) -> None:
    shared = {name for file in store_sql.FILES for name in names_of_shared(file)}
    assert shared
    assert names_in(database) & shared == set()


def names_of_shared(file: str) -> list[str]:
    """The names of the statements in a file that all databases share."""
    path = store_sql.SHARED / file
    return re.findall(r"^-- name: (\w+)$", path.read_text(), re.MULTILINE) if path.is_file() else []


def test_every_shared_file_is_read() -> None:
    assert {file.name for file in store_sql.SHARED.iterdir()} <= set(store_sql.FILES)


def test_a_name_in_both_places_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sql, "SHARED", resources.files("stepfast.store.sqlite"))
    with pytest.raises(ValueError, match=r"shared by all databases, and in .*\.sqlite as well: .*\bstart\b"):
        store_sql.load_all("stepfast.store.sqlite", {"prefix": "a_name_in_both_places_"})


@pytest.mark.parametrize("database", DATABASES)
def test_nothing_of_another_dialect_is_left(database: str) -> None:
    """What a rule does not know would only be found by whoever asks for it."""
    if database.endswith("sqlite"):
        texts = store_sql.load_all(database, {"prefix": "s_", "join": "CROSS JOIN"}, translate)
        strange = r"\$\d|::|\{schema\}|\bunnest\(|= ANY\(|\bLATERAL\b|\bGREATEST\(|\bLEAST\("
    else:
        texts = store_sql.load_all(database, {"schema": '"s"', "join": "JOIN"})
        strange = r"\?\d|\{prefix\}|\bjson_each\(|\bINDEXED BY\b"
    bare = {name: re.sub(r"--[^\n]*", "", text) for name, text in texts.items()}
    assert [name for name, text in bare.items() if re.search(strange, text)] == []
