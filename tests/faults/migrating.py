"""A migration that is killed half way, at every statement: a program of its own, because it forks.

    python -m tests.faults.migrating URL EVERY BEGUN

For each statement that the migration sends (every EVERY-th of them), a process begins it and kills itself just before
that statement. Then the tables must be as they were before, or whole; and migrating once more must make them whole.
With BEGUN = 1 the tables are there before; the killed migration is a further one. Prints how many were tried.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import asyncpg

from stepfast import Stepfast
from stepfast.store.migrations import Migration
from stepfast.store.postgres import schema as postgres_schema
from stepfast.store.sql import fill
from stepfast.store.sqlite import schema as sqlite_schema

_CATALOGUE = """
    SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || coalesce(column_default, '')
      FROM information_schema.columns WHERE table_schema = $1
    UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = $1
    UNION ALL SELECT 'function ' || proname || ' ' || pg_get_function_arguments(oid) FROM pg_proc
     WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
"""


class Place:
    """Where one trial finds tables of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._postgres = url.startswith("postgresql")
        self._name = name
        self.url = url if self._postgres else f"{url}/{name}.db"
        self.namespace = name if self._postgres else "stepfast"

    async def migrate(self) -> list[str]:
        """What was applied."""
        app = Stepfast(self.url, self.namespace, auto_migrate=False)
        try:
            return await app.migrate()
        finally:
            await app.close()

    async def tables(self) -> list[str]:
        """Everything that a migration makes, in words."""
        if self._postgres:
            connection = await asyncpg.connect(self.url)
            try:
                rows = [row[0] for row in await connection.fetch(_CATALOGUE, self._name)]
            finally:
                await connection.close()
        else:
            database = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            rows = [f"{name} {sql}" for name, sql in database.execute("SELECT name, sql FROM sqlite_master")]
            database.close()
        return sorted(re.sub(rf"\b{self._name}\b", "here", row) for row in rows)


_MORE = """
ALTER TABLE {meta} ADD COLUMN more integer;
CREATE TABLE {more} (id integer PRIMARY KEY);
CREATE INDEX {index} ON {more} (id) WHERE id > 1;
UPDATE {meta} SET more = 1;
DROP INDEX {there};
CREATE INDEX {index}_2 ON {more} (id);
"""


_further = False
"""Whether the code has the further migration."""


def patch() -> None:
    """Let stores have the further migration when it is wanted."""
    for kind in (postgres_schema.Schema, sqlite_schema.Schema):
        kind.__init__ = _adding(kind.__init__)  # type: ignore[method-assign]


def _adding(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        if not _further:
            return
        [meta] = re.findall(r"CREATE TABLE (\S+meta) ", self._known[0].text)
        [index] = re.findall(r"CREATE INDEX (\S*)runs_dags ON", self._known[0].text)
        words = {"meta": meta, "more": meta.removesuffix("meta") + "more", "index": f"{index}more_index"}
        words["there"] = meta.removesuffix("meta") + "runs_dags"
        self._known = [*self._known, Migration(len(self._known) + 1, "more", fill(_MORE, words), 1)]

    return made


def killed(place: Place, number: int) -> bool:
    """Whether the process died before the statement of this number; False, if there are not so many."""
    child = os.fork()
    if child == 0:
        _die_before(number)
        try:
            asyncio.run(place.migrate())
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _die_before(number: int) -> None:
    """Every statement on the way to a database counts, whoever sends it."""
    left = number

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    connect: Callable[..., Any] = sqlite3.connect

    def counted(*arguments: Any, **named: Any) -> Any:
        database = connect(*arguments, **named)
        database.set_trace_callback(count)
        return database

    setattr(sqlite3, "connect", counted)  # noqa: B010 - its type is that of the original alone
    for name in ("execute", "fetch", "fetchval"):
        setattr(asyncpg.Connection, name, _counting(getattr(asyncpg.Connection, name), count))


def _counting(call: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    async def counted(*arguments: Any, **named: Any) -> Any:
        count()
        return await call(*arguments, **named)

    return counted


def prepared(url: str, name: str, begun: bool) -> tuple[Place, list[str]]:
    """A place, and the tables that are there."""
    global _further
    place, _further = Place(url, name), False
    if begun:
        asyncio.run(place.migrate())
    _further = begun
    return place, asyncio.run(place.tables())


def main(url: str, every: int, begun: bool) -> str:
    """Try all of them."""
    patch()
    model, _ = prepared(url, "killed_never", begun)
    assert asyncio.run(model.migrate())
    whole = asyncio.run(model.tables())
    number, tried, was_whole = 1, 0, 0
    while True:
        place, before = prepared(url, f"killed_{number}", begun)
        if not killed(place, number):
            return f"{tried} killed before one of {number - 1} statements, {was_whole} of them when all was done"
        found = asyncio.run(place.tables())
        assert found in (before, whole), f"killed before statement {number}, it left a part"
        asyncio.run(place.migrate())
        mended = asyncio.run(place.tables())
        assert mended == whole, f"killed before statement {number}: {sorted(set(mended) ^ set(whole))[:4]}"
        tried, was_whole, number = tried + 1, was_whole + (found == whole), number + every


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"))
