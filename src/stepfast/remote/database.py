"""One face for the databases that tasks and results lie in, so that what is done to them is written once.

A dialect brings its statements in ``.sql`` files, with parameters written as ``:name``, and a way to
begin transactions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from ..cancellation import insist, requests
from ..errors import ConfigurationError, SchemaError
from ..settings import Settings
from ..store.store import MissingRight
from .names import check_prefix
from .transport_url import MYSQL, POSTGRES, TransportUrl, parse_transport_url

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
"""A parameter in a statement, and not a cast."""
CONNECTIONS = 4
"""Connections that a worker or a transport has at most: one to claim with, one to record with, and some to spare."""


_GRANT = "grant this user SELECT, INSERT, UPDATE and DELETE on both tables"


class Work(Protocol):
    """What can be done in one open transaction."""

    async def fetch(self, name: str, /, **given: Any) -> Sequence[Any]:
        """The rows of a statement."""
        ...

    async def execute(self, name: str, /, **given: Any) -> None:
        """A statement without rows."""
        ...

    async def put(self, name: str, /, rows: Sequence[Mapping[str, Any]]) -> None:
        """One statement for many rows."""
        ...


class Database(Protocol):
    """Tasks and results of one prefix."""

    async def open(self) -> None:
        """Connect; errors say what to do, never a password."""
        ...

    async def close(self) -> None:
        """Disconnect. A pool that the application brought along stays open."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Work]:
        """A transaction of our own, read committed, on a connection of the pool."""
        ...

    def within(self, connection: Any) -> AbstractAsyncContextManager[Work]:
        """The transaction that a caller has open on this connection."""
        ...

    async def locate(self) -> None:
        """Find out in which schema the tables are, so that they are found over any connection to this database, and
        whether they may be used."""
        ...

    async def create(self) -> bool:
        """Make the tables if they are missing; whether they were. Safe when many do it at once."""
        ...

    def script(self) -> str:
        """What makes the tables, to be run by somebody who may."""
        ...


class Location(NamedTuple):
    """Where tasks and results lie: a database by its URL, or by a pool of the application's own; and a prefix."""

    url: TransportUrl | None
    pool: Any
    prefix: str

    @property
    def dialect(self) -> str:
        """What its server speaks."""
        if self.pool is not None:
            return _dialect_of_pool(self.pool)
        assert self.url is not None
        return self.url.dialect


def located(url: str | None, pool: Any, prefix: str) -> Location:
    """Check what a user gave."""
    if (url is None) == (pool is None):
        raise ConfigurationError("give either the URL of the database or pool=, and not both")
    found = Location(None if url is None else parse_transport_url(url), pool, check_prefix(prefix))
    assert found.dialect
    return found


def open_database(where: Location, settings: Settings) -> Database:
    """The database of a location. Nothing is connected yet; a missing driver is told by the extra that brings it."""
    extra, server = {POSTGRES: ("postgres", "PostgreSQL"), MYSQL: ("mysql", "MariaDB or MySQL")}[where.dialect]
    try:
        if where.dialect == POSTGRES:
            from .postgres import PostgresDatabase

            return PostgresDatabase(where, settings)
        from .mysql import MysqlDatabase

        return MysqlDatabase(where, settings)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{server} needs the package {error.name!r}: pip install 'stepfast[{extra}]'"
        ) from None


@contextmanager
def translated(meaning: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise what an error of the driver means; or the cancellation that it hides."""
    before = requests()
    try:
        yield
    except Exception as error:
        insist(before)
        raise meaning(error) from None


def missing_tables(said: str) -> SchemaError:
    """The error for tables that are not there, or not as the contract has them."""
    return SchemaError(
        f"the transport's tables are missing, or are not those of the contract ({said}): run `stepfast migrate "
        "--transport`, or let them be made (not create=False, not auto_migrate=False)"
    )


def may_not_make_tables(said: str) -> MissingRight:
    """The error for a user who may not make them: somebody else can, once."""
    return MissingRight(
        f"the database user may not make the transport's tables ({said}): let somebody who may run `stepfast migrate "
        f"--transport` once, or what it prints with --sql, and {_GRANT}"
    )


def may_not_use_tables() -> MissingRight:
    """The error for a user who may not do with them all that is needed."""
    return MissingRight(f"the database user may not use the transport's tables: {_GRANT}")


def _dialect_of_pool(pool: Any) -> str:
    drivers = {kind.__module__.partition(".")[0] for kind in type(pool).__mro__ if hasattr(pool, "acquire")}
    if "asyncpg" in drivers:
        return POSTGRES
    if "asyncmy" in drivers:
        return MYSQL
    raise ConfigurationError(
        f"pool= takes a pool of asyncpg or asyncmy, not {type(pool).__module__}.{type(pool).__name__}"
    )
