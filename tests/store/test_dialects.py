"""The language of statements: what each database makes of it, that it runs there, and that every statement is SQL."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import pytest
import sqlglot

from stepfast.store import sql as store_sql
from stepfast.store.dialects import MYSQL, POSTGRES, SQLITE, Dialect, Rendered, Source, arguments
from stepfast.store.sqlite.bulk_rows import execute_wide
from stepfast.store.sqlite.connections import OwnConnection, older
from tests.support.mariadb import PrivateMariaDb

WORDS = {
    "schema": '"s"', "prefix": "s_", "now": "1", "stamp": "1", "place": "2", "server": "3", "listed": "4", "large": "5",
    "join": "JOIN", "standing": "r.id", "schedule": "s.name", "fresh": "true", "went_on": "r.output", "version": "6",
    "compatible_from": "7", "now_when_locked": "late",
}  # fmt: skip
WIDE = {"sqlite": {"wide": "json_group_array(json_array(", "/wide": "))"}}
EVERY = (POSTGRES, SQLITE, MYSQL)


def rendered(dialect: Dialect, given: str, body: str) -> Rendered:
    """A statement as a database gets it."""
    found = dialect.render(Source(arguments(given), body))
    return found._replace(text=store_sql.fill(found.text, WORDS))


UUID = "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin"
UTF8 = "CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */"
TEXT = f"LONGTEXT {UTF8}"
MACROS = [
    ("", "FROM {runs} r", 'FROM "s".runs r', "FROM s_runs r", "FROM s_runs r"),
    ("n bigint, x", "n = :n OR :x = x", "n = $1::bigint OR $2 = x", "n = ?1 OR ?2 = x", "n = %s OR %s = x"),
    ("", "r.id::text, NULL::text[]", "r.id::text, NULL::text[]", "r.id, NULL", "r.id, NULL"),
    (
        "ids uuid[]",
        "id {in ids}",
        "id = ANY($1::uuid[])",
        "id IN (SELECT value FROM json_each(?1))",
        f"id IN (SELECT value FROM JSON_TABLE(%s, '$[*]' COLUMNS (`value` {UUID} PATH '$')) AS listed)",
    ),
    (
        "a, u(x text, n integer), b",
        "SELECT :b, :a FROM {rows u}",
        "SELECT $4, $1 FROM unnest($2::text[], $3::integer[]) AS u(x, n)",
        (
            "SELECT ?3, ?1 FROM (SELECT json_extract(value, '$[0]') AS x, json_extract(value, '$[1]') AS n "
            "FROM json_each(?2)) AS u"
        ),
        f"SELECT %s, %s FROM JSON_TABLE(%s, '$[*]' COLUMNS (`x` {TEXT} PATH '$[0]', `n` BIGINT PATH '$[1]')) AS u",
    ),
    ("", "{same a.x, b.x}", "a.x IS NOT DISTINCT FROM b.x", "a.x IS b.x", "a.x <=> b.x"),
    ("", "{differs a, 'x'}", "a IS DISTINCT FROM 'x'", "a IS NOT 'x'", "NOT (a <=> 'x')"),
    ("", "{lock r}", "FOR NO KEY UPDATE OF r", "", "FOR UPDATE"),
    ("", "{lock r skip}", "FOR NO KEY UPDATE OF r SKIP LOCKED", "", "FOR UPDATE SKIP LOCKED"),
    ("", "{lock_all r skip}", "FOR UPDATE OF r SKIP LOCKED", "", "FOR UPDATE SKIP LOCKED"),
    (
        "",
        "INSERT INTO {mailbox} {skip run_id, id}",
        'INSERT INTO "s".mailbox ON CONFLICT (run_id, id) DO NOTHING',
        "INSERT INTO s_mailbox ON CONFLICT (run_id, id) DO NOTHING",
        "INSERT INTO s_mailbox ON DUPLICATE KEY UPDATE s_mailbox.run_id = s_mailbox.run_id",
    ),
    (
        "",
        "{upsert id, key} key = {new.key}",
        "ON CONFLICT (id, key) DO UPDATE\nSET key = excluded.key",
        "ON CONFLICT (id, key) DO UPDATE\nSET key = excluded.key",
        "ON DUPLICATE KEY UPDATE `key` = VALUES(`key`)",
    ),
    (
        "u(id uuid)",
        "{delete steps by u} AND due_at IS NULL",
        'DELETE FROM "s".steps WHERE id IN (SELECT u.id FROM unnest($1::uuid[]) AS u(id)) AND due_at IS NULL',
        ("DELETE FROM s_steps WHERE id IN (SELECT u.id FROM (WITH u(id) AS (VALUES (?)) SELECT * FROM u) AS u) "
        "AND due_at IS NULL"),
        (
            f"DELETE d FROM JSON_TABLE(%s, '$[*]' COLUMNS (`id` {UUID} PATH '$')) AS u STRAIGHT_JOIN "
            "s_steps AS d FORCE INDEX (PRIMARY) WHERE d.id = u.id AND due_at IS NULL"
        ),
    ),
    (
        "u(n integer)",
        "{update runs r, u}\nSET a = f(u.n, 1), b = 'x, y'\n{from u} WHERE true",
        "UPDATE \"s\".runs AS r\nSET a = f(u.n, 1), b = 'x, y'\nFROM unnest($1::integer[]) AS u(n) WHERE true",
        ("UPDATE s_runs AS r\nSET a = f(u.n, 1), b = 'x, y'\n"
        "FROM (WITH u(n) AS (VALUES (?)) SELECT * FROM u) AS u WHERE true"),
        ("UPDATE JSON_TABLE(%s, '$[*]' COLUMNS (`n` BIGINT PATH '$')) AS u STRAIGHT_JOIN "
        "s_runs AS r FORCE INDEX (PRIMARY)\nSET r.a = f(u.n, 1), r.b = 'x, y'\n WHERE true"),
    ),
    ("", "(a, b.c) > (:x, :y)", *["(a, b.c) > (:x, :y)"] * 2, "(a > :x OR a = :x AND b.c > :y)"),
    ("", "r.place IS NOT NULL\n  AND r.losses < 2", *["r.place IS NOT NULL\n  AND r.losses < 2"] * 2, "r.is_ready = 1"),
    ("", "{now} {lock r}", "1 FOR NO KEY UPDATE OF r", "1 ", "late FOR UPDATE"),
    (
        "",
        "{join} {steps} s ON s.run_id = r.id",
        'JOIN "s".steps s ON s.run_id = r.id',
        "JOIN s_steps s ON s.run_id = r.id",
        "JOIN s_steps s FORCE INDEX (PRIMARY) ON s.run_id = r.id",
    ),
    ("", "WITH a {once} (", "WITH a AS MATERIALIZED (", "WITH a AS MATERIALIZED (", "WITH a AS ("),
    ("", "FROM t {index runs_due}", "FROM t ", "FROM t INDEXED BY s_runs_due", "FROM t FORCE INDEX (runs_due)"),
    ("", "{least}(a, {greatest}(b, 1))", "LEAST(a, GREATEST(b, 1))", "min(a, max(b, 1))", "LEAST(a, GREATEST(b, 1))"),
    ("", "r.key LIKE '{%' OR first = 1", *["r.key LIKE '{%' OR first = 1"] * 2, "r.`key` LIKE '{%%' OR `first` = 1"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "body", "postgres", "sqlite", "mysql"), MACROS, ids=lambda text: str(text)[:30])
def test_what_each_database_is_given(given: str, body: str, postgres: str, sqlite: str, mysql: str) -> None:
    assert [rendered(dialect, given, body).text for dialect in EVERY] == [postgres, sqlite, mysql]


def test_mysql_says_which_argument_each_place_takes() -> None:
    """Its places have no numbers, and one argument may be in several."""
    found = rendered(MYSQL, "a, u(x text), b", "SELECT :b, :a, u.x FROM {rows u} WHERE :b > u.x")
    assert found.order == (2, 0, 1, 2)
    assert found.text.count("%s") == 4


def test_comments_and_texts_stay_as_they_are() -> None:
    body = "SELECT ':n {runs} ''::text' -- :n {runs} ::text"
    assert rendered(POSTGRES, "n", body).text == rendered(SQLITE, "n", body).text == body


def test_an_argument_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no argument 'm'"):
        rendered(POSTGRES, "n", "SELECT :m")


def test_an_older_library_is_told_the_size_of_a_payload_otherwise() -> None:
    assert older("SELECT octet_length(r.input)") == "SELECT length(CAST(r.input AS BLOB))"


# -- what is rendered runs -----------------------------------------------------------------------------------


def found(sql: str, *values: Any) -> list[Any]:
    """What a question brings on a database without tables."""
    with closing(sqlite3.connect(":memory:", factory=OwnConnection)) as database:
        return database.execute(sql, values).fetchall()


def test_a_question_about_one_column_takes_an_array_of_values() -> None:
    sql = rendered(SQLITE, "u(id uuid), x", "SELECT u.id FROM {rows u} WHERE u.id <> :x ORDER BY u.id").text
    assert found(sql, json.dumps(["b", "a", "c"]), "c") == [("a",), ("b",)]


def test_a_question_about_several_columns_takes_an_array_of_rows_as_one_parameter() -> None:
    sql = rendered(
        SQLITE, "a, u(a text, b integer), z, n", "SELECT u.b, u.a, :a, :z FROM {rows u} ORDER BY u.a LIMIT :n"
    ).text
    rows = found(sql, "first", json.dumps([["x", 1], ["y", 2]]), "last", 9)
    assert rows == [(1, "x", "first", "last"), (2, "y", "first", "last")]


ROWS = "u(run_id text, seq integer)"
INSERT = "INSERT INTO {steps} (run_id, seq) SELECT u.run_id, u.seq FROM {rows u}\nWHERE true\n{skip run_id}"
UPSERT = (
    "INSERT INTO {steps} (run_id, seq) SELECT u.run_id, u.seq FROM {rows u}\nWHERE true\n"
    "{upsert run_id} seq = {new.seq} + {steps}.seq"
)
UPDATE = "-- With a comment first.\n{update steps t, u} SET seq = u.seq {from u} WHERE t.run_id = u.run_id"
DELETE = "{delete steps by u}"
GIVEN = [("a", 1), ("b", 20), *((f"x{n}", n) for n in range(6))]
NEW = {f"x{n}": n for n in range(6)}
WRITES = [
    (INSERT, {"a": 1, "b": 2, "c": 3} | NEW),
    (UPSERT, {"a": 2, "b": 22, "c": 3} | NEW),
    (UPDATE, {"a": 1, "b": 20, "c": 3}),
    (DELETE, {"b": 2, "c": 3}),
]
KINDS = ("insert", "upsert", "update", "delete")


@pytest.mark.parametrize(("body", "left"), WRITES, ids=KINDS)
def test_what_writes_takes_rows_of_values_on_sqlite(body: str, left: dict[str, int]) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE s_steps (run_id TEXT PRIMARY KEY, seq INTEGER)")
        database.execute("INSERT INTO s_steps VALUES ('a', 1), ('b', 2), ('c', 3)")
        execute_wide(database, rendered(SQLITE, ROWS, body).text, GIVEN)
        assert dict(database.execute("SELECT run_id, seq FROM s_steps")) == left


@pytest.fixture
async def mariadb(mariadb_server: PrivateMariaDb) -> AsyncIterator[Any]:
    """A cursor in a database with one table of three rows."""
    url = mariadb_server.create_database()
    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port, user=parts.username, password=parts.password, db=parts.path[1:],
        autocommit=True,
    )  # fmt: skip
    cursor = connection.cursor()
    await cursor.execute(f"CREATE TABLE s_steps (run_id {UUID} PRIMARY KEY, seq BIGINT, `key` {TEXT})")
    await cursor.execute("INSERT INTO s_steps (run_id, seq) VALUES ('a', 1), ('b', 2), ('c', 3)")
    yield cursor
    connection.close()
    mariadb_server.drop_database(url)


async def run(cursor: Any, given: str, body: str, *values: Any) -> list[Any]:
    """What a statement brings on MariaDB: lists and rows go in as JSON, everything in the order of its places."""
    text, order, _ = rendered(MYSQL, given, body)
    sent = [json.dumps(value) if isinstance(value, list) else value for value in values]
    await cursor.execute(text, [sent[number] for number in order])
    return list(await cursor.fetchall()) if cursor.description else []


@pytest.mark.parametrize(("body", "left"), WRITES, ids=KINDS)
async def test_what_writes_takes_rows_of_values_on_mariadb(mariadb: Any, body: str, left: dict[str, int]) -> None:
    await run(mariadb, ROWS, body, GIVEN)
    assert dict(await run(mariadb, "", "SELECT run_id, seq FROM {steps}")) == left


async def test_values_come_as_they_were_given_on_mariadb(mariadb: Any) -> None:
    """Numbers of 64 bits, truth values, texts of every kind, and none."""
    rows = [["a", 2**62, True, "K\u00e9y \U0001f600 %s \u0000"], ["b", None, False, None], ["z", -1, None, "null"]]
    body = "SELECT u.id, u.n, u.ok, u.key FROM {rows u} WHERE :most > 0 ORDER BY u.id LIMIT :most"
    brought = await run(mariadb, "u(id uuid, n bigint, ok boolean, key text), most", body, rows, 9)
    assert [list(row) for row in brought] == rows


async def test_lists_locks_and_comparisons_run_on_mariadb(mariadb: Any) -> None:
    body = (
        "WITH wanted {once} (SELECT run_id FROM {steps} WHERE run_id {in ids})\n"
        "SELECT t.run_id FROM {steps} t JOIN wanted w ON w.run_id = t.run_id\n"
        "WHERE t.seq > :least AND {same t.key, NULL} AND {differs t.run_id, 'c'} ORDER BY t.run_id"
    )
    assert await run(mariadb, "ids uuid[], least bigint", body, ["a", "b", "c"], 1) == [("b",)]
    assert await run(mariadb, "", "SELECT run_id FROM {steps} t WHERE seq = 3 {lock t skip}") == [("c",)]


# -- every statement -----------------------------------------------------------------------------------------


UNKNOWN_TO_SQLGLOT = {
    ("postgres", "script_head"), ("postgres", "script_tail"), ("sqlite", "script_head"),
    ("postgres", "inherit"),  # a join behind the names of columns that unnest brings
    ("postgres", "start_dag_steps"),  # ON CONFLICT behind CROSS JOIN LATERAL
}  # fmt: skip
"""Statements that the databases take, as all other tests show, and that it cannot parse."""


def comparable(dialect: Dialect, text: str) -> str:
    """A statement without what sqlglot does not know of the database: character sets in JSON_TABLE, places."""
    text = re.sub(r"\?\d+", "?", re.sub(r"--[^\n]*", "", text))
    if dialect is MYSQL:
        text = text.replace("%s", "?").replace("%%", "%")
        return re.sub(r" CHARACTER SET \w+ COLLATE (\w+|/\*M.*?\*//\*.*?\*/)", "", text)
    return text


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_every_statement_is_rendered_and_parsed(dialect: Dialect) -> None:
    texts = store_sql.load_all(dialect, WORDS | WIDE.get(dialect.name, {"wide": "", "/wide": ""}))
    assert len(texts) > 100
    refused = {}
    for name, text in texts.items():
        bare = comparable(dialect, text)
        if left := re.findall(r"\{[a-z/][^{}]*\}", re.sub(r"'(?:[^']|'')*'", "''", bare)):
            refused[name] = f"left as it is: {left}"
        try:
            if (dialect.name, name) not in UNKNOWN_TO_SQLGLOT:
                sqlglot.parse(bare, read=dialect.name)
        except sqlglot.errors.SqlglotError as error:
            refused[name] = str(error)
    assert refused == {}


# -- migrations ----------------------------------------------------------------------------------------------


DEFINED = """
-- What was done.
CREATE TABLE {tries} (
    id    uuid NOT NULL PRIMARY KEY, -- new
    key   varchar(20),            -- short
    ok    boolean DEFAULT false,
    at    bigint
);
CREATE UNIQUE INDEX tries_key ON {tries} (key) WHERE key IS NOT NULL;
CREATE VIEW {activity} AS SELECT {time at} AS at, {seconds at} AS seconds, {json key} AS key FROM {tries};
"""


def defined(dialect: Dialect) -> str:
    """A migration as a database gets it."""
    return store_sql._definitions(dialect, f"-- Head.\n\n{DEFINED}", [])


def test_a_migration_has_the_types_of_each_database() -> None:
    assert defined(POSTGRES) == (
        "-- Head.\n\n-- What was done.\nCREATE TABLE {schema}.tries (\n    id    uuid NOT NULL PRIMARY KEY, -- new\n"
        "    key   text,                   -- short\n    ok    boolean DEFAULT false,\n    at    bigint\n);\n\n"
        "CREATE UNIQUE INDEX tries_key ON {schema}.tries (key) WHERE key IS NOT NULL;\n\n"
        "CREATE VIEW {schema}.activity AS SELECT to_timestamp((at)::numeric / 1000.0) AS at, "
        "(at)::numeric / 1000.0 AS seconds, {schema}.as_json(key) AS key FROM {schema}.tries;\n"
    )
    assert "    key   TEXT,                   -- short\n    ok    INTEGER DEFAULT false" in defined(SQLITE)
    assert ") WITHOUT ROWID;\n\nCREATE UNIQUE INDEX {prefix}tries_key ON {prefix}tries (key) WHERE" in defined(SQLITE)
    assert f"    `key`   VARCHAR(20) {UTF8}, -- short" in defined(MYSQL)
    assert "CREATE UNIQUE INDEX tries_key ON {prefix}tries (`key`);" in defined(MYSQL)


def test_what_one_database_adds_to_a_migration_is_where_it_says() -> None:
    own = "-- Own.\n\n-- before: activity\nSELECT 1;\n-- after: tries\nSELECT 2;\nSELECT 3;\n"
    own += "-- instead of: tries_key\nSELECT 4;"
    script = store_sql._definitions(SQLITE, f"-- Head.\n\n{DEFINED}", [own, "-- at the end\nSELECT '5;';\n"])
    words = re.findall(r"^(?:CREATE \w+ \{prefix\}\w+|SELECT.*|-- (?:Head|Own).)", script, re.MULTILINE)
    assert words == [
        "-- Head.", "-- Own.", "CREATE TABLE {prefix}tries", "SELECT 2;", "SELECT 3;", "SELECT 4;", "SELECT 1;",
        "CREATE VIEW {prefix}activity", "SELECT '5;';",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"belong to no statement: \[\('after', 'none'\)\]"):
        store_sql._definitions(SQLITE, DEFINED, ["-- after: none\nSELECT 1;"])


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_every_migration_says_what_it_is_compatible_from(dialect: Dialect) -> None:
    for number, _, text in store_sql.load_migrations(dialect):
        assert re.match(r"-- compatible from: \d+\n", text), number
        bare = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", text)
        left = set(re.findall(r"\{[a-z_ ./]+\}", bare)) - {"{schema}", "{prefix}", "{now}", "{place}"}
        assert left == set(), "left as it is"


def test_every_file_is_read() -> None:
    folder = Path(str(store_sql.FOLDER))
    read = {*store_sql.FILES, "roles.sql"}
    assert {path.name for path in folder.rglob("*.sql") if "migrations" not in path.parts} <= read


def test_a_statement_of_one_database_says_whether_it_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "runs.sql").write_text("-- name: one(n bigint)\nSELECT :n;\n-- name: two\nSELECT 2;\n")
    own = tmp_path / "postgres" / "runs.sql"
    monkeypatch.setattr(store_sql, "FOLDER", tmp_path)
    own.write_text("-- override: two\nSELECT 22;\n-- name: three\nSELECT $1;\n")
    texts = {name: source.body for name, source in store_sql.sources(POSTGRES).items()}
    assert texts == {"one": "SELECT :n", "two": "SELECT 22", "three": "SELECT $1"}
    own.write_text("-- name: two\nSELECT 22;\n")
    with pytest.raises(ValueError, match="two of postgres is there for all databases: say that it overrides it"):
        store_sql.sources(POSTGRES)
    own.write_text("-- override: four\nSELECT 4;\n")
    with pytest.raises(ValueError, match="four of postgres overrides nothing"):
        store_sql.sources(POSTGRES)


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_nothing_of_another_dialect_is_left(dialect: Dialect) -> None:
    """What is not of the language would only be found when the statement is executed."""
    strange = {
        "sqlite": r"\$\d|::|\{schema\}|\bunnest\(|= ANY\(|\bLATERAL\b|\bGREATEST\(|\bLEAST\(",
        "postgres": r"\?\d|\{prefix\}|\bjson_each\(|\bINDEXED BY\b",
        "mysql": r"\$\d|\?\d|::|\{schema\}|\bunnest\(|= ANY\(|\bON CONFLICT\b|\bexcluded\.|\bMATERIALIZED\b|\bNO KEY\b",
    }[dialect.name]
    texts = store_sql.load_all(dialect, WORDS)
    bare = {name: re.sub(r"--[^\n]*", "", text) for name, text in texts.items()}
    assert [name for name, text in bare.items() if re.search(strange, text)] == []
