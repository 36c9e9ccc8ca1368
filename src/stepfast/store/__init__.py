"""The only room that knows SQL: one protocol, one module and one folder of statements per database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..documents import cite
from ..errors import ConfigurationError
from ..model.urls import DatabaseUrl
from ..settings import Settings
from .store import Store

__all__ = ["Store", "open_store", "pool_url"]


def open_store(
    url: DatabaseUrl, namespace: str, settings: Settings, pool: Any = None, now: Callable[[], int] | None = None
) -> Store:
    """The store for a URL. Nothing is connected yet; for a missing driver the error names the extra that brings it.
    ``now`` is the clock of a database in memory, in milliseconds, if it is not to be that of the machine; all others
    have their own."""
    if url.kind == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(url, namespace, settings, now)
    if url.kind == "mysql":
        try:
            from .mysql.store import MysqlStore
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"MariaDB and MySQL need the package {error.name!r}: pip install 'stepfast[mysql]'"
            ) from None
        return MysqlStore(url, namespace, settings)
    try:
        from .postgres import PostgresStore
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"PostgreSQL needs the package {error.name!r}: pip install 'stepfast[postgres]'"
        ) from None
    return PostgresStore(url, namespace, settings, pool)


def pool_url(pool: Any, url: DatabaseUrl | None) -> DatabaseUrl:
    """The database of an application with a pool of its own: that of the URL, if one is named, otherwise the pool's.
    Refuse what is no pool of asyncpg's, and the URL of another kind of database."""
    try:
        from .postgres import own_pool
    except ModuleNotFoundError:
        own_pool = None  # type: ignore[assignment]  # without the driver there is no pool of it
    if own_pool is None or not own_pool.is_pool(pool):
        raise ConfigurationError(_not_a_pool(pool))
    if url is None:
        return own_pool.address(pool)
    if url.kind != "postgres":
        raise ConfigurationError(
            f"pool= is a pool of PostgreSQL connections, and the URL {url.text!r} names another kind of database. "
            "Leave the URL out, also STEPFAST_URL: the pool says which database it is"
        )
    return url


def _not_a_pool(pool: Any) -> str:
    kinds = {kind.__module__.partition(".")[0] for kind in type(pool).__mro__}
    name = f"pool= takes a pool of asyncpg's, not {type(pool).__module__}.{type(pool).__qualname__}"
    if "sqlalchemy" in kinds:
        return (
            f"{name}. Give the engine's URL, Stepfast(engine.url.render_as_string(hide_password=False)): Stepfast then "
            "has connections of its own, and app.start(…, connection=session) joins the transactions of its sessions"
        )
    if {"psycopg", "psycopg_pool", "psycopg2"} & kinds:
        return (
            f'{name}. Give the URL of its database, Stepfast("postgresql://…"): Stepfast then has connections of its '
            "own, and app.start(…, connection=connection) joins the transactions of psycopg's connections"
        )
    page = cite("operations#a-pool-of-your-own")
    return f"{name}; write pool = await asyncpg.create_pool(…), or give the URL alone ({page})"
