"""Database URLs: what kind of database, and what its store needs of it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .redacting import redact

_KINDS = {"postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite"}
_DRIVERS = {"postgres": ("asyncpg",), "sqlite": ("aiosqlite", "pysqlite")}
"""What SQLAlchemy's URLs name behind a plus, and we need not be told."""
_KNOWN_OTHERS = {
    "mysql": "MariaDB and MySQL are", "mariadb": "MariaDB and MySQL are", "libsql": "libSQL is", "sqs": "SQS is",
    "cockroachdb": "CockroachDB is", "mssql": "SQL Server is", "oracle": "Oracle is", "mongodb": "MongoDB is",
    "redis": "Redis is",
}  # fmt: skip


class DatabaseUrl(NamedTuple):
    """A parsed URL: the kind of store, and what that store needs of it."""

    kind: str
    text: str
    path: str | None = None
    """SQLite only: the file, or None for a database in memory."""
    of_pool: bool = False
    """Postgres only: the text is for people to read; how to connect is known to the pool of the application."""

    def __repr__(self) -> str:
        return f"DatabaseUrl({redact(self.text)!r})"


def parse_url(text: str) -> DatabaseUrl:
    """Sort a URL by its scheme; refuse what cannot be one, never showing the password."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError("the database URL is empty; try sqlite:///stepfast.db or postgresql://user@host/name")
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    name, _, driver = scheme.lower().partition("+")
    kind = _KINDS.get(name) if separator else None
    if kind is None or (driver and driver not in _DRIVERS[kind]):
        raise ConfigurationError(_not_ours(text, name if separator else "", driver if kind else ""))
    if driver:
        text = f"{name}://{rest}"
    if kind == "sqlite":
        return DatabaseUrl(kind, text, _sqlite_path(rest, text))
    if not _is_readable(text):
        raise ConfigurationError(
            f"the database URL {redact(text)!r} cannot be read: its user, host, port or parameters are malformed; "
            f"write {name}://user:password@host:port/name, with %40 for an @ in the user or password, %2F for /, "
            "%3F for ? and %23 for #"
        )
    return DatabaseUrl(kind, text)


def _not_ours(text: str, name: str, driver: str) -> str:
    use = "use postgresql://…, sqlite:///file.db or sqlite:// (in memory)"
    if driver:
        return f"the database URL {redact(text)!r} names a driver that Stepfast does not work with; {use}"
    if name in _KNOWN_OTHERS:
        return f"the database URL {redact(text)!r} cannot be used: {_KNOWN_OTHERS[name]} not supported; {use}"
    return f"the database URL {redact(text)!r} has no scheme that Stepfast knows; {use}"


def _is_readable(text: str) -> bool:
    """Whether everybody reads it alike, the driver too. Postgres takes several hosts, separated by commas. What is
    wrong is not told: it may be the password, with characters in it that end the user or the host."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    who, _, hosts = parts.netloc.rpartition("@")
    if "@" in who or "@" in parts.path or "#" in text:
        return False
    if not all(re.fullmatch(r"[\w.%-]+=.*", pair, re.DOTALL) for pair in parts.query.split("&") if pair):
        return False
    found = [re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(?::(\d{1,5}))?", host) for host in hosts.split(",")]
    return all(match is not None and int(match[1] or 0) < 65536 for match in found)


def _sqlite_path(rest: str, text: str) -> str | None:
    if "?" in rest:
        raise ConfigurationError(
            f"the SQLite URL {redact(text)!r} has parameters behind its question mark, and Stepfast takes none: "
            "write sqlite:///file.db alone"
        )
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise ConfigurationError(
            f"the SQLite URL {redact(text)!r} has a host; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return rest[1:]
