"""Render the statements of ``store/sql`` for a database, once, when a store is made.

A statement is SQL that every database reads, with the rest in braces. Its first line names its arguments, in the order
in which callers give them: ``-- name: fence(worker uuid, f(id uuid, claim integer))`` takes a value and rows of two
columns. In its text:

``{runs}``
    A table, a view, by the name that it has in the namespace.
``:worker``
    A value. A type in the first line, and a cast ``::type`` in the text, are for Postgres: others store what they get.
``{rows f}``
    The rows of an argument as a table of that name; ``{in ids}`` whether a value is in a list (``ids uuid[]``).
``SELECT … FROM {each l} (SELECT … WHERE r.queue = l.queue … LIMIT :most) AS c``
    A query for each row of an argument, ``l`` (``-- name: ready(l(queue text), most)``): Postgres joins them, other
    databases execute the statement once for each row. So neither an order nor a limit holds beyond one row.
``{row r}``
    By what a row is found fastest: its rowid on SQLite, otherwise its id. It comes as ``row`` and goes as ``uuid``.
``{elements r.tags, tag}``
    The items of a JSON list as a table ``tag`` with a column ``value``; no rows, if the text is none.
``{update runs r, f} SET … {from f} WHERE …``
    Change rows by an argument. Read a column before it is set: MySQL sets them one after the other.
``{delete steps by f}``
    Delete the rows that have the values of an argument, in the columns of its names; ``AND …`` may follow, about
    other columns.
``{skip run_id, id}``, ``{upsert run_id, id} value = {new.value}``
    The end of an INSERT that finds its key taken. A SELECT before it needs a WHERE. ``{skip_any id}`` means every key.
``{lock r}``, ``{lock r skip}``, ``{lock_all r skip}``
    Lock rows for a change, or for a removal; with ``skip``, step over those that are locked.
``{same a, b}``, ``{differs a, b}``
    Compare values of which both may be NULL.
``{once}``, ``{index runs_due}``
    A part of WITH that is worked out once; an index that SQLite would not choose.
``{stamp}``
    The time in an UPDATE or a DELETE: on Postgres the time at which the statement arrived, because a cluster refuses a
    function there whose value may differ from row to row. In all other statements it is ``{now}``.
``{least}(a, b)``, ``{greatest}(a, b)``
    Of values that are not NULL.
``{field r.error, '$.type'}``, ``{joined r.id}``
    A field of a JSON text as what it says; texts of several rows as one, with blanks between them.
``{attributes r.id}``, ``{attributes_shown id}``
    The attributes of a run as one JSON object: with the letters of their types, and without them for views.
``{wide} … {/wide}``
    The columns of a result that may have hundreds of rows: SQLite returns them as one text.

Migrations (``store/sql/migrations``) are written in it too. Columns have the types of Postgres, and ``varchar(200)``: a
text that may be in an index, as long as that in characters where a database needs to know. Names of indexes are written
as they are. ``{json c}``, ``{time c}`` and ``{seconds c}`` show a column in a view. What a database adds or replaces is
in files of the same number in its own folder, in parts that say where they belong:

``-- before: runs_readable``, ``-- after: runs``, ``-- instead of: runs_worker``, ``-- at the end``
    Before, after or instead of the statement that makes the table, index or view of this name; after everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, NamedTuple

TABLES = frozenset(
    {
        "meta", "definitions", "workers", "past_workers", "known_workers", "runs", "run_tags", "claims", "steps",
        "run_attributes", "attribute_names", "tries", "progress", "mailbox", "run_values", "sleeps", "activity",
        "queues", "queue_starts", "schedules",
        "remote_steps", "audit", "dags_shown", "streams", "stream_sources", "stream_items",
        "questions", "questions_readable", "callbacks", "callbacks_readable",
        "checkpoints", "checkpoint_values", "checkpoint_writes", "session_items",
        "events", "event_order", "event_waits", "event_takes", "event_subscriptions", "event_starts", "events_readable",
        "runs_readable", "claims_readable", "steps_readable",
        "activity_readable", "progress_readable", "values_readable", "workers_readable", "schedules_readable",
        "audit_readable",
    }
)  # fmt: skip
"""The tables and views that statements name."""


class Argument(NamedTuple):
    """An argument of a statement: a value or a list of one type, or rows of columns with their types."""

    name: str
    type: str
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.columns) or 1


class Source(NamedTuple):
    """A statement as it is written."""

    arguments: tuple[Argument, ...]
    body: str

    def argument(self, name: str) -> tuple[int, Argument]:
        """Its number, from 0, and what it is."""
        for number, argument in enumerate(self.arguments):
            if argument.name == name:
                return number, argument
        raise ValueError(f"the statement has no argument {name!r}:\n{self.body}")


class Rendered(NamedTuple):
    """A statement of a database. ``order`` are the numbers of the arguments (from 0) that its places take, one after
    the other; it is empty where places are numbered. ``each`` is the number of the argument for each row of which the
    statement is to be executed: its columns come in its place."""

    text: str
    order: tuple[int, ...] = ()
    each: int | None = None


_ARGUMENT = re.compile(r"(\w+)\s*(?:\(([^)]*)\)|(\w+(?:\[\])?)?)\s*(?:,|$)")


def arguments(text: str) -> tuple[Argument, ...]:
    """What the first line of a statement says between its parentheses."""
    found = []
    for name, columns, kind in _ARGUMENT.findall(text):
        pairs = [column.split() for column in columns.split(",")] if columns else []
        found.append(Argument(name, kind, tuple((each[0], each[1]) for each in pairs)))
    return tuple(found)


_TOKEN = (
    r"(?P<skip>--[^\n]*|'(?:[^']|'')*')"
    r"|\{(?P<macro>[a-z_]+)(?:[ .](?P<words>[^{}]*))?\}"
    r"|(?<![:\w]):(?P<value>[a-z_]\w*)"
    r"|::(?P<cast>\w+(?:\[\])?)"
)
_WRITES = re.compile(r"^(INSERT|UPDATE|DELETE|\{update|\{delete)\b", re.MULTILINE)
_TARGET = re.compile(r"INSERT INTO \{(\w+)\}")


_BUSY = "WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05)"
"""Of a table whose rows change often."""


class Dialect:
    """How one database says what the language leaves open. What it does not say otherwise it says as Postgres does."""

    name = "postgres"
    token: ClassVar[re.Pattern[str]] = re.compile(_TOKEN)
    macros: ClassVar[dict[str, str]] = {
        "once": "AS MATERIALIZED", "least": "LEAST", "greatest": "GREATEST", "new": "excluded.{0}", "index": "",
        "same": "{0} IS NOT DISTINCT FROM {1}", "differs": "{0} IS DISTINCT FROM {1}",
        "skip": "ON CONFLICT ({all}) DO NOTHING", "skip_any": "ON CONFLICT DO NOTHING",
        "upsert": "ON CONFLICT ({all}) DO UPDATE\nSET",
        "lock": "FOR NO KEY UPDATE OF {0}{skip}", "lock_all": "FOR UPDATE OF {0}{skip}",
        "json": "{{schema}}.as_json({all})", "time": "to_timestamp(({all})::numeric / 1000.0)",
        "seconds": "({all})::numeric / 1000.0", "row": "{0}.id",
        "elements": "json_array_elements_text(CASE WHEN json_typeof({{schema}}.as_json({0})) = 'array' "
        "THEN {{schema}}.as_json({0}) END) AS {1}(value)",
        "attributes": "(SELECT json_object_agg(a.name, a.value)::text FROM {{run_attributes}} a "
        "WHERE a.run_id = {all})",
        "attributes_shown": "(SELECT json_object_agg(a.name, substr(a.value, 2)) FROM {{run_attributes}} a "
        "WHERE a.run_id = {all})",
    }  # fmt: skip
    """What becomes of a macro: ``{0}`` and ``{1}`` are its words, ``{all}`` is everything behind its name."""
    table = "{{schema}}.{0}"
    index = "{0}"
    types: ClassVar[dict[str, str]] = {"varchar": "text"}
    """Types that have another name in this database; ``{0}`` is a length."""
    storage: ClassVar[dict[str, str]] = {
        "runs": _BUSY, "mailbox": _BUSY, "remote_steps": _BUSY, "events": _BUSY, "event_waits": _BUSY,
        "queue_starts": "WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500)",
    }  # fmt: skip
    """What the definitions of tables end with."""

    def render(self, source: Source) -> Rendered:
        """The statement of this database. What is left in braces are words of a namespace or of the model."""
        order: list[int] = []
        return Rendered(self._render(source.body, source, order), tuple(order))

    def _render(self, text: str, source: Source, order: list[int]) -> str:
        return self.token.sub(lambda found: self._token(found, source, order), text)

    def _token(self, found: re.Match[str], source: Source, order: list[int]) -> str:
        if found["value"] is not None:
            if not source.arguments:
                return found[0]  # a statement of one database, with places of its own
            return self.place(*source.argument(found["value"]), source, order)
        if found["cast"] is not None:
            return self.cast(found["cast"])
        if found["macro"] is None:
            return self.other(found)
        macro, words = found["macro"], (found["words"] or "").strip()
        if macro in TABLES and not words:
            return self.table.format(macro)
        if macro in _BY_METHOD:
            return _BY_METHOD[macro](self, words, source, order)
        if macro not in self.macros:
            return found[0]
        first, _, skip = words.partition(" ") if macro.startswith("lock") else (words, "", "")
        parts = (first, "") if skip else re.split(r",\s*", words)
        text = self.macros[macro].format(*parts, all=words, skip=" SKIP LOCKED" if skip else "", **self.more(source))
        return self._render(text, source, order)

    def place(self, number: int, argument: Argument, source: Source, order: list[int]) -> str:
        """Where a value goes."""
        return f"${_first(number, source)}" + (f"::{argument.type}" if argument.type else "")

    def cast(self, kind: str) -> str:
        """A cast."""
        return f"::{kind}"

    def other(self, found: re.Match[str]) -> str:
        """What is not of the language."""
        return found[0]

    def more(self, source: Source) -> dict[str, str]:
        """Further words of macros."""
        return {}

    def definition(self, text: str) -> str:
        """A statement of a migration, with the comment before it. It has no arguments."""
        text = _COLUMN.sub(lambda found: found["name"] + self._type(found), text) if _TABLE.search(text) else text
        text = _INDEX.sub(lambda found: found[1] + self.index.format(found[2]), text)
        if (found := _TABLE.search(text)) and (storage := self.storage.get(found[1], self.storage.get(""))):
            text = f"{text} {storage}"
        return self.render(Source((), text)).text

    def _type(self, found: re.Match[str]) -> str:
        kind = self.types.get(found["type"], found["type"]).format(found["length"])
        rest = f"{kind}{found['rest']}"
        comment = found["comment"]  # stays in its column, if there is room
        return (
            rest
            if comment is None
            else rest.ljust(len(found[0]) - len(found["name"]) - len(comment) - 1) + " " + comment
        )

    def rows(self, name: str, source: Source, order: list[int]) -> str:
        """The rows of an argument as a table."""
        number, argument = source.argument(name)
        first = _first(number, source)
        places = ", ".join(f"${first + n}::{kind}[]" for n, (_, kind) in enumerate(argument.columns))
        return f"unnest({places}) AS {name}({', '.join(column for column, _ in argument.columns)})"

    def each(self, name: str, source: Source, order: list[int]) -> str:
        """The rows of an argument, before a query that is made for each of them."""
        return f"{self.rows(name, source, order)} CROSS JOIN LATERAL"

    def among(self, name: str, source: Source, order: list[int]) -> str:
        """A comparison with the values of a list."""
        return f"= ANY({self.place(*source.argument(name), source, order)})"

    def update(self, words: str, source: Source, order: list[int]) -> str:
        """The beginning of an UPDATE by rows."""
        table, alias, _ = re.split(r",? +", words)
        return f"UPDATE {self.table.format(table)} AS {alias}"

    def updating(self, name: str, source: Source, order: list[int]) -> str:
        """Where the rows come into it."""
        return f"FROM {self.rows(name, source, order)}"

    def delete(self, words: str, source: Source, order: list[int]) -> str:
        """A DELETE by rows."""
        table, _, name = words.split()
        columns = [column for column, _ in source.argument(name)[1].columns]
        these = columns[0] if len(columns) == 1 else f"({', '.join(columns)})"
        given = ", ".join(f"{name}.{column}" for column in columns)
        rows = self.rows(name, source, order)
        return f"DELETE FROM {self.table.format(table)} WHERE {these} IN (SELECT {given} FROM {rows})"


_BY_METHOD: dict[str, Callable[[Dialect, str, Source, list[int]], str]] = {
    "rows": lambda dialect, *given: dialect.rows(*given), "each": lambda dialect, *given: dialect.each(*given),
    "in": lambda dialect, *given: dialect.among(*given), "update": lambda dialect, *given: dialect.update(*given),
    "from": lambda dialect, *given: dialect.updating(*given), "delete": lambda dialect, *given: dialect.delete(*given),
}  # fmt: skip
"""Macros that name arguments."""


def _first(number: int, source: Source) -> int:
    """The number of the first place of an argument on Postgres, where each column of rows is an array."""
    return 1 + sum(argument.width for argument in source.arguments[:number])


_EACH = re.compile(r"\{each (\w+)\} ?")


def unrolled(source: Source) -> tuple[Source, int | None]:
    """A statement for one row of the argument that it names by ``{each …}``, for a database without LATERAL: with an
    argument for each column; and the number of that argument, if there is one."""
    found = _EACH.search(source.body)
    if found is None:
        return source, None
    number, argument = source.argument(found[1])
    columns = tuple(Argument(f"{found[1]}_{column}", kind) for column, kind in argument.columns)
    known = "|".join(column for column, _ in argument.columns)
    body = re.sub(rf"\b{found[1]}\.({known})\b", rf":{found[1]}_\1", _EACH.sub("", source.body))
    return Source((*source.arguments[:number], *columns, *source.arguments[number + 1 :]), body), number


_AS_GIVEN = re.compile(r"SELECT (\w+)\.\*((?:, '[^']*')*)\s+FROM \{rows \1\}\s+WHERE true\b")
"""Rows that are inserted as they are given, and texts behind them."""


def _values(found: re.Match[str], source: Source, place: str) -> str:
    return f"VALUES ({', '.join([place] * source.argument(found[1])[1].width)}{found[2]})"


_TABLE = re.compile(r"^CREATE TABLE \{(\w+)\}", re.MULTILINE)
_INDEX = re.compile(r"^(CREATE (?:UNIQUE )?INDEX )(\w+)", re.MULTILINE)
_COLUMN = re.compile(
    r"^(?P<name> {4}[a-z_]+ +)(?P<type>uuid|text|varchar|bigint|integer|smallint|boolean)\b(?:\((?P<length>\d+)\))?"
    r"(?P<rest>[^\n]*?)(?: *(?P<comment>--[^\n]*))?$",
    re.MULTILINE,
)
"""A column in the definition of a table."""


class Sqlite(Dialect):
    """SQLite. Rows that are written come as places, which ``execute_wide`` repeats; rows that are read, and lists, come
    as one JSON array: of values, or of arrays where there are several columns."""

    name = "sqlite"
    macros: ClassVar[dict[str, str]] = Dialect.macros | {
        "stamp": "{{now}}", "least": "min", "greatest": "max", "same": "{0} IS {1}", "differs": "{0} IS NOT {1}",
        "index": "INDEXED BY {{prefix}}{0}", "lock": "", "lock_all": "", "json": "{all}",
        "time": "strftime('%Y-%m-%d %H:%M:%f', ({all}) / 1000.0, 'unixepoch')", "seconds": "({all}) / 1000.0",
        "row": "{0}.rowid", "field": "json_extract({0}, {1})", "joined": "group_concat({all}, ' ')",
        "elements": "json_each(CASE WHEN NOT json_valid({0}) THEN '[]' WHEN json_type({0}) = 'array' THEN {0} "
        "ELSE '[]' END) AS {1}",
        "attributes": "(SELECT json_group_object(a.name, a.value) FROM {{run_attributes}} a WHERE a.run_id = {all})",
        "attributes_shown": "(SELECT json_group_object(a.name, substr(a.value, 2)) FROM {{run_attributes}} a "
        "WHERE a.run_id = {all})",
    }  # fmt: skip
    table = "{{prefix}}{0}"
    index = "{{prefix}}{0}"
    types: ClassVar[dict[str, str]] = {
        "uuid": "TEXT", "text": "TEXT", "varchar": "TEXT", "bigint": "INTEGER", "integer": "INTEGER",
        "smallint": "INTEGER", "boolean": "INTEGER",
    }  # fmt: skip
    storage: ClassVar[dict[str, str]] = dict.fromkeys(
        ("past_workers", "run_tags", "claims", "steps", "tries", "progress", "mailbox", "run_values", "remote_steps",
         "run_attributes", "attribute_names",
         "queues", "queue_starts", "audit", "streams", "stream_sources", "stream_items",
         "event_waits", "event_takes", "event_subscriptions", "event_starts", "session_items"),
        "WITHOUT ROWID",
    )  # fmt: skip

    def render(self, source: Source) -> Rendered:
        """The statement. Rows that are written as they are given need no query of their own."""
        source, each = unrolled(source)
        body = _AS_GIVEN.sub(lambda found: _values(found, source, "?"), source.body)
        return super().render(source._replace(body=body))._replace(each=each)

    def place(self, number: int, argument: Argument, source: Source, order: list[int]) -> str:
        """A numbered place; rows have one."""
        return f"?{number + 1}"

    def cast(self, kind: str) -> str:
        """None: values are stored as what they are."""
        return ""

    def rows(self, name: str, source: Source, order: list[int]) -> str:
        """Rows of places, or of one JSON array."""
        number, argument = source.argument(name)
        names = [column for column, _ in argument.columns]
        if _WRITES.search(source.body):
            places = ", ".join("?" * len(names))
            return f"(WITH {name}({', '.join(names)}) AS (VALUES ({places})) SELECT * FROM {name}) AS {name}"
        parts = [f"json_extract(value, '$[{n}]')" for n in range(len(names))] if len(names) > 1 else ["value"]
        columns = ", ".join(f"{part} AS {column}" for part, column in zip(parts, names, strict=True))
        return f"(SELECT {columns} FROM json_each(?{number + 1})) AS {name}"

    def among(self, name: str, source: Source, order: list[int]) -> str:
        """The list is JSON."""
        return f"IN (SELECT value FROM json_each({self.place(*source.argument(name), source, order)}))"


_RESERVED = "key|undo|row|rows|before|after|rank|groups|first|last|lag|over|delayed"
"""Names of columns that are words of the language in one of its versions."""


_PARTIAL = re.compile(r"\s+WHERE .*", re.DOTALL)
_NO_CHANGE = "ON DUPLICATE KEY UPDATE {target}.{0} = {target}.{0}"
_UTF8 = "CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */"
"""By code points, and with blanks at the end; each of the two servers has a name of its own for it."""
_DEFINES = re.compile(r"^(?:CREATE|ALTER) ", re.MULTILINE)
_WAITS = re.compile(r"\{lock(?:_all)? \w+\}")
"""A question that waits for locks."""
_CONDITIONS = tuple(
    (re.compile(condition), column)
    for condition, column in (
        (r"((?:\w+\.)?)place IS NOT NULL\s+AND \1losses < 2", r"\1is_ready = 1"),
        (r"((?:\w+\.)?)place IS NOT NULL\s+AND \1losses >= 2", r"\1is_suspect = 1"),
        (r"\((\w+\.)counted_attempt = \1attempt OR \([^()]*\)\)", r"\1is_resuming = 1"),
        (r"((?:\w+\.)?)worker IS NOT NULL\s+AND \1counted_attempt IS NOT NULL", r"\1is_counted = 1"),
        (r"((?:\w+\.)?)started_at IS NULL\s+AND \1completed_at IS NULL", r"\1is_unstarted = 1"),
        (r"((?:\w+\.)?)hands_on\s+AND \1completed_at IS NOT NULL", r"\1is_handing_on = 1"),
        (r"((?:\w+\.)?)unique_name IS NOT NULL\s+AND \1completed_at IS NULL", r"\1is_live = 1"),
        (r"((?:\w+\.)?)state IN \('outbox', 'sent'\)", r"\1is_open = 1"),
        (r"NOT ((?:\w+\.)?)(delivered|declared)\b", r"\1\2 = 0"),
        (r"\{index runs_dags\}", "{index runs_at_rest}"),
    )
)
"""Conditions of partial indexes, and the generated columns in place of them (sql/mysql/migrations)."""
_ORDERED = re.compile(r"\nORDER BY [\w., ]+(?=\n\{lock)")
"""The order in which rows of an argument are locked. Here it is that of the argument, which the driver sorts: an order
of the result would be made in a temporary table, when the locks are there."""
_JOINED = re.compile(r"(\{join\} \{(?!dags_shown|questions|callbacks)\w+\} (\w+))(?= ON \2\.(?:id|run_id) = \w+\.)")
"""A table that is joined by its key."""
_FOUND_BY = {
    ("questions", "run_id"): "questions_run", ("callbacks", "run_id"): "callbacks_run",
    ("event_takes", "event_id"): "event_takes_event", ("checkpoints", "thread"): "checkpoints_thread",
    ("checkpoint_values", "thread"): "checkpoint_values_thread",
    ("checkpoint_writes", "thread"): "checkpoint_writes_thread",
    ("checkpoint_writes", "owner"): "checkpoint_writes_owner",
}  # fmt: skip
"""Indexes by which rows are changed or deleted that are not found by the key of their table."""
_BEHIND = re.compile(r"\(([\w., ]+)\) > \(([:\w, ]+)\)")
"""A comparison of rows, for which these servers use no index."""


def _behind(found: re.Match[str]) -> str:
    """The same, column by column."""
    pairs = list(zip(found[1].split(", "), found[2].split(", "), strict=True))
    either = [
        " AND ".join([*(f"{name} = {value}" for name, value in pairs[:number]), f"{last} > {bound}"])
        for number, (last, bound) in enumerate(pairs)
    ]
    return f"({' OR '.join(either)})"


class Mysql(Dialect):
    """MariaDB 10.6 and MySQL 8. Rows and lists come as one JSON array, as those do that SQLite reads. Rows that are
    inserted as they are given have places (``?``), which the driver repeats. Other places have no numbers, so that the
    order of the arguments belongs to the statement, and an argument may be in it several times.
    Rows come first in each join, and tables are found by their keys: a server that reads a table as a whole, because it
    is small, locks rows of it that the statement does not mean."""

    name = "mysql"
    token: ClassVar[re.Pattern[str]] = re.compile(
        rf"{_TOKEN}|(?<![\w$`])(?P<reserved>{_RESERVED})\b(?!\()|(?P<percent>%)"
    )
    macros: ClassVar[dict[str, str]] = Dialect.macros | {
        "stamp": "{{now}}", "once": "AS", "new": "VALUES({0})", "same": "{0} <=> {1}", "differs": "NOT ({0} <=> {1})",
        "index": "FORCE INDEX ({0})", "skip": _NO_CHANGE, "skip_any": _NO_CHANGE,
        "upsert": "ON DUPLICATE KEY UPDATE", "lock": "FOR UPDATE{skip}", "lock_all": "FOR UPDATE{skip}",
        "json": "{all}", "time": "FROM_UNIXTIME(({all}) / 1000.0)", "seconds": "({all}) / 1000.0",
        "field": "JSON_VALUE({0}, {1})", "joined": "GROUP_CONCAT({all} SEPARATOR ' ')",
        "elements": "JSON_TABLE(CASE WHEN JSON_VALID({0}) AND JSON_TYPE({0}) = 'ARRAY' THEN {0} ELSE '[]' END, '$[*]' "
        f"COLUMNS (value LONGTEXT {_UTF8} PATH '$')) AS {{1}}",
        "attributes": "(SELECT JSON_OBJECTAGG(a.name, a.value) FROM {{run_attributes}} a WHERE a.run_id = {all})",
        "attributes_shown": "(SELECT JSON_OBJECTAGG(a.name, substr(a.value, 2)) FROM {{run_attributes}} a "
        "WHERE a.run_id = {all})",
    }  # fmt: skip
    table = "{{prefix}}{0}"
    types: ClassVar[dict[str, str]] = {
        "uuid": "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
        "text": f"LONGTEXT {_UTF8}",
        "varchar": f"VARCHAR({{0}}) {_UTF8}",
        "boolean": "TINYINT",
    }
    storage: ClassVar[dict[str, str]] = {"": "ENGINE = InnoDB"}

    def definition(self, text: str) -> str:
        """Without conditions of indexes: there are no partial ones. A unique index admits any number of NULLs."""
        if _INDEX.search(text):
            text = _PARTIAL.sub("", text)
        return super().definition(text).replace("%%", "%")

    def render(self, source: Source) -> Rendered:
        """The statement, and the order of its arguments."""
        source, each = unrolled(source)
        body = _BEHIND.sub(_behind, _SET.sub(_qualified, source.body)).removesuffix("\nRETURNING 1")
        body = _AS_GIVEN.sub(lambda found: _values(found, source, "?"), body)
        for condition, column in () if _DEFINES.search(body) else _CONDITIONS:
            body = condition.sub(column, body)
        body = _ORDERED.sub("", body) if "FROM {rows " in body else body
        body = _JOINED.sub(r"\1 FORCE INDEX (PRIMARY)", body)
        if _WAITS.search(body):
            body = body.replace("{now}", "{now_when_locked}")
        return super().render(source._replace(body=body))._replace(each=each)

    def place(self, number: int, argument: Argument, source: Source, order: list[int]) -> str:
        """A place, and what it takes."""
        order.append(number)
        return "%s"

    def cast(self, kind: str) -> str:
        """None: columns have types."""
        return ""

    def other(self, found: re.Match[str]) -> str:
        """Names in quotes where they need them; the sign of places twice."""
        return found[0].replace("%", "%%") if found["reserved"] is None else f"`{found[0]}`"

    def more(self, source: Source) -> dict[str, str]:
        """The table that is inserted into."""
        found = _TARGET.search(source.body)
        return {"target": self.table.format(found[1]) if found else ""}

    def rows(self, name: str, source: Source, order: list[int]) -> str:
        """Rows of a JSON array."""
        return self._table(name, *source.argument(name), source, order)

    def _table(self, alias: str, number: int, argument: Argument, source: Source, order: list[int]) -> str:
        place = self.place(number, argument, source, order)
        columns = argument.columns or (("value", argument.type.removesuffix("[]")),)
        paths = [f"$[{n}]" for n in range(len(columns))] if len(columns) > 1 else ["$"]
        each = ", ".join(
            f"`{column}` {self.types.get(kind, 'BIGINT')} PATH '{path}'"
            for (column, kind), path in zip(columns, paths, strict=True)
        )
        return f"JSON_TABLE({place}, '$[*]' COLUMNS ({each})) AS {alias}"

    def among(self, name: str, source: Source, order: list[int]) -> str:
        """The list is JSON."""
        return f"IN (SELECT value FROM {self._table('listed', *source.argument(name), source, order)})"

    def update(self, words: str, source: Source, order: list[int]) -> str:
        """The rows are joined where the UPDATE begins."""
        table, alias, name = re.split(r",? +", words)
        found = re.search(rf"\b{alias}\.(\w+) = {name}\.", source.body.partition("{from ")[2])
        key = _FOUND_BY.get((table, found[1] if found else ""), "PRIMARY")
        these = f"{self.table.format(table)} AS {alias} FORCE INDEX ({key})"
        return f"UPDATE {self.rows(name, source, order)} STRAIGHT_JOIN {these}"

    def updating(self, name: str, source: Source, order: list[int]) -> str:
        """Nothing: they are there already."""
        return ""

    def delete(self, words: str, source: Source, order: list[int]) -> str:
        """A join: what is deleted by IN is looked for in the whole table."""
        table, _, name = words.split()
        columns = [column for column, _ in source.argument(name)[1].columns]
        same = self._render(" AND ".join(f"d.{column} = {name}.{column}" for column in columns), source, order)
        key = _FOUND_BY.get((table, columns[0]), "PRIMARY")
        these = f"{self.table.format(table)} AS d FORCE INDEX ({key})"
        return f"DELETE d FROM {self.rows(name, source, order)} STRAIGHT_JOIN {these} WHERE {same}"


_SET = re.compile(r"(\{update \w+ (\w+), \w+\}\s+SET )(.*?)(?=\{from )", re.DOTALL)
"""What an UPDATE by rows sets."""
_ASSIGNED = re.compile(r"(?:^|(?<=,))(\s*)(\w+)(?= = )")


def _qualified(found: re.Match[str]) -> str:
    """The same, with the table before each column that is set: the rows may have one of the same name."""
    depth, parts = 0, [""]
    for sign in found[3]:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return found[1] + ",".join(_ASSIGNED.sub(rf"\1{found[2]}.\2", part, count=1) for part in parts)


POSTGRES, SQLITE, MYSQL = Dialect(), Sqlite(), Mysql()
