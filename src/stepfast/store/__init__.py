"""The only room that knows SQL: one protocol, one module and one folder of statements per database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError
from ..model.url import DatabaseUrl
from ..settings import Settings
from .protocol import Store

__all__ = ["Store", "open_store"]


def open_store(
    url: DatabaseUrl, namespace: str, settings: Settings, pool: Any = None, now: Callable[[], int] | None = None
) -> Store:
    """The store for a URL. Nothing is connected yet; a missing driver is told by the extra that brings it. ``now`` is
    the clock of a database in memory, in milliseconds, if it is not to be that of the machine; all others have
    their own."""
    if url.kind == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(url, namespace, settings, now)
    try:
        from .postgres import PostgresStore
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"PostgreSQL needs the package {error.name!r}: pip install 'stepfast[postgres]'"
        ) from None
    return PostgresStore(url, namespace, settings, pool)
