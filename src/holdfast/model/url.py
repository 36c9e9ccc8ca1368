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
        raise ConfigurationError("the database URL is empty; try sqlite:///holdfast.db or postgresql://user@host/name")
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        raise ConfigurationError(
            f"the database URL {redact(text)!r} has no scheme that Holdfast knows; "
            "use postgresql://…, sqlite:///file.db or sqlite:// (in memory)"
        )
    if kind == "sqlite":
        return DatabaseUrl(kind, text, _sqlite_path(rest, text))
    try:
        _ = urlsplit(text).port
    except ValueError as error:
        raise ConfigurationError(f"the database URL {redact(text)!r} cannot be read: {error}") from None
    return DatabaseUrl(kind, text)


def _sqlite_path(rest: str, text: str) -> str | None:
    rest = rest.split("?", 1)[0]
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise ConfigurationError(
            f"the SQLite URL {text!r} has a host; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return rest[1:]


def redact(text: str) -> str:
    """The URL with its password replaced by ***, also where the URL is malformed."""
    text = re.sub(r"(://[^:/?#@]*):[^/?#]*@", r"\1:***@", text)
    text = re.sub(r"(://[^:/?#@]*):.*@", r"\1:***@", text)
    return re.sub(r"((?:password|passwd|pwd|sslpassword)=)[^&\s]*", r"\1***", text, flags=re.IGNORECASE)
