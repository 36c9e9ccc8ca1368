"""Database URLs: what kind, and how to show one without its password."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigurationError

_KINDS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}

_HEAD = r"^((?:.*?//+|[A-Za-z][\w+.-]*:/?|(?![^@]*//))"
"""What may stand before the user: a scheme, a misspelled one, or nothing."""
_PASSWORDS = [
    # From the colon behind the user to the last @, whatever is between.
    re.compile(_HEAD + r"[^:/?#@\s]*:).*(?=@)", re.DOTALL),
    # No @ at all: what stands in the place of the port and is none may be the password.
    re.compile(r"^(.*?//+[^:/?#@\s\[]*:)(?!\d{1,5}(?:[/?#,]|$))[^@]*$", re.DOTALL),
    re.compile(r"((?:password|passwd|pwd)\s*=\s*)(?:'[^']*'?|[^&\s]*)", re.IGNORECASE),
]


class DatabaseUrl(NamedTuple):
    """A parsed URL: the kind of store, and what that store needs of it."""

    kind: str
    text: str
    path: str | None = None
    """SQLite only: the file, or None for a database in memory."""

    def __repr__(self) -> str:
        return f"DatabaseUrl({redact(self.text)!r})"


def parse_url(text: str) -> DatabaseUrl:
    """Sort a URL by its scheme; refuse what cannot be one, never showing the password."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError("the database URL is empty; try sqlite:///stepfast.db or postgresql://user@host/name")
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        raise ConfigurationError(
            f"the database URL {redact(text)!r} has no scheme that Stepfast knows; "
            "use postgresql://…, sqlite:///file.db or sqlite:// (in memory)"
        )
    if kind == "sqlite":
        return DatabaseUrl(kind, text, _sqlite_path(rest, text))
    if not _has_readable_hosts(text):
        raise ConfigurationError(
            f"the database URL {redact(text)!r} cannot be read: its host or port is malformed; "
            f"write {scheme.lower()}://user:password@host:port/name, with %40 for an @ in the password"
        )
    return DatabaseUrl(kind, text)


def _has_readable_hosts(text: str) -> bool:
    """Postgres takes several hosts, separated by commas. What is wrong is not told here: it may be the password."""
    try:
        hosts = urlsplit(text).netloc.rpartition("@")[2].split(",")
    except ValueError:
        return False
    found = [re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(?::(\d{1,5}))?", host) for host in hosts]
    return all(match is not None and int(match[1] or 0) < 65536 for match in found)


def _sqlite_path(rest: str, text: str) -> str | None:
    rest = rest.split("?", 1)[0]
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise ConfigurationError(
            f"the SQLite URL {redact(text)!r} has a host; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return rest[1:]


def redact(text: str) -> str:
    """The URL with its password replaced by ***, also where the URL is malformed."""
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text
