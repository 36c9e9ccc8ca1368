"""Database URLs: what kind of database they name, and how they are shown without their password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from ..errors import ConfigurationError

HIDDEN = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NO_SLASHES = re.compile(r"(?:sqlite|postgres(?:ql)?|mysql|mariadb)(?:\+\w+)?:(?!//)", re.IGNORECASE)
"""A scheme with too few slashes behind it. What follows is shown if it can only be the name of a file."""
_USER = re.compile(r"[\w.~%+-]*")
_HOSTS = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]|[\w.%-]*)(?::\d{1,5})?(?:,(?:\[[0-9A-Fa-f:.%]*\]|[\w.%-]*)(?::\d{1,5})?)*")
_PATH = re.compile(r"/?[^@?#:\s]*")
_PLAIN = re.compile(r"[\w./-]*")
_OPEN_PARAMETERS = frozenset(
    [
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "target_session_attrs",
        "application_name",
        "connect_timeout",
        "search_path",
        "options",
        "gssencmode",
        "channel_binding",
        "krbsrvname",
        "mode",
    ]
)
"""Parameters whose values may be shown. All others may hold a secret, under any name."""

_WORDS = [
    # From the colon behind a user to the last @ of the same word.
    re.compile(r"(//[^\s:]*:)[^\s]*(?=@)"),
    re.compile(r"(\b[\w.%-]+:)[^\s/][^\s]*(?=@)"),
    re.compile(r"((?:pass(?:word|wd|phrase)?|pwd|secret|token)\s*=\s*)(?:'[^']*'?|\"[^\"]*\"?|[^&\s]+)", re.IGNORECASE),
]
_PAIR = re.compile(r"([\w%+-]*%[\w%+-]*)=([^&\s]+)")


def redact(url: str) -> str:
    """The URL, with what may be secret in it replaced by ``***``."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        known = _NO_SLASHES.match(url)
        if known is None:
            return url if _PLAIN.fullmatch(url) else HIDDEN
        is_file = known[0].lower().startswith("sqlite") and _PLAIN.fullmatch(url, known.end())
        return url if is_file else known[0] + HIDDEN
    rest = url[scheme.end() :]
    if scheme[0].lower().startswith("sqlite") and rest.startswith("/"):
        return url  # a file has no password
    return scheme[0] + _shown(rest)


def scrub(text: str) -> str:
    """A sentence of another program, with what looks like a password in it replaced."""
    for pattern in _WORDS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _PAIR.sub(lambda pair: pair[0] if _is_open(pair[1]) else f"{pair[1]}={HIDDEN}", text)


def is_shown_in(text: str, url: str) -> bool:
    """Whether a text has something of a URL in it that is not to be shown."""
    return any(secret in text for secret in _secrets(url))


def _shown(rest: str) -> str:
    """What follows the scheme: the user before the last @, hosts, path and parameters."""
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    who = (user if _USER.fullmatch(user) else HIDDEN) + (colon and f":{HIDDEN}") + at
    hosts = re.split(r"[/?#]", where, maxsplit=1)[0]
    if _HOSTS.fullmatch(hosts) is None:
        return who + HIDDEN
    path, question, parameters = where[len(hosts) :].partition("?")
    path = path if _PATH.fullmatch(path) else f"/{HIDDEN}"
    return who + hosts + path + question + "&".join(map(_parameter, parameters.split("&") if question else ()))


def _parameter(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or _PLAIN.fullmatch(name) is None:
        return HIDDEN
    return pair if _is_open(name) and "#" not in value else f"{name}={HIDDEN}"


def _is_open(name: str) -> bool:
    return unquote_plus(name).lower() in _OPEN_PARAMETERS


def _secrets(url: str) -> Iterator[str]:
    """The passwords of a URL, as they are written and as they are meant; also what may be one."""
    rest = url.partition("://")[2] or url
    found = [rest.rpartition("@")[0].partition(":")[2], rest.partition("@")[0].partition(":")[2]]
    for pair in rest.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if not _is_open(name):
            found.append(value)
    for secret in found:
        if secret:
            yield from {secret, unquote(secret), unquote_plus(secret)}


_KINDS = {
    "postgresql": "postgres", "postgres": "postgres", "sqlite": "sqlite", "mysql": "mysql", "mariadb": "mysql",
}  # fmt: skip
_DRIVERS = {"postgres": ("asyncpg",), "sqlite": ("aiosqlite", "pysqlite"), "mysql": ("asyncmy",)}
"""What SQLAlchemy's URLs name behind a plus, and we need not be told."""
_WHY_NOT = {
    "libsql": ", because its package for Python does not say what kind an error is, and cannot stop a statement; "
    "a file of libSQL is a SQLite file, which sqlite:///file.db opens",
}
_KNOWN_OTHERS = {
    "libsql": "libSQL is", "sqs": "SQS is", "cockroachdb": "CockroachDB is", "mssql": "SQL Server is",
    "oracle": "Oracle is", "mongodb": "MongoDB is", "redis": "Redis is",
}  # fmt: skip
_PARAMETERS = ("unix_socket", "ssl_ca", "ssl")
"""What a URL of MariaDB or MySQL may say behind its question mark."""


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
    if kind == "mysql":
        mysql_parts(text)
    return DatabaseUrl(kind, text)


class MysqlParts(NamedTuple):
    """Where a URL of MariaDB or MySQL leads."""

    host: str
    port: int
    user: str
    password: str
    database: str
    parameters: dict[str, str]

    def __repr__(self) -> str:
        return f"MysqlParts({self.host!r}, {self.port!r}, {self.user!r}, '{HIDDEN}', {self.database!r})"


def mysql_parts(text: str) -> MysqlParts:
    """Take a URL apart, for a driver that does not read URLs."""
    try:
        parts = urlsplit(text)
        port = parts.port or 3306
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _mysql_unreadable(text) from None
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in parts.path[1:] or "@" in (parts.username or "") + parts.path or "#" in text:
        raise _mysql_unreadable(text)
    for name in given:
        if name not in _PARAMETERS:
            raise ConfigurationError(
                f"the database URL {redact(text)!r} has a parameter that is not known here; "
                f"there are {', '.join(_PARAMETERS)}"
            )
    who = (unquote(parts.username or ""), unquote(parts.password or ""))
    return MysqlParts(parts.hostname or "localhost", port, *who, database, given)


def _mysql_unreadable(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the database URL {redact(text)!r} cannot be read: write mysql://user:password@host:port/name, "
        "with %40 for an @ in the user or password, %2F for /, %3F for ? and %23 for #"
    )


def _not_ours(text: str, name: str, driver: str) -> str:
    use = "use postgresql://…, mysql://…, sqlite:///file.db or sqlite:// (in memory)"
    if driver:
        return f"the database URL {redact(text)!r} names a driver that Stepfast does not work with; {use}"
    if name in _KNOWN_OTHERS:
        why = _WHY_NOT.get(name, "")
        return f"the database URL {redact(text)!r} cannot be used: {_KNOWN_OTHERS[name]} not supported{why}; {use}"
    return f"the database URL {redact(text)!r} has no scheme that Stepfast knows; {use}"


def _is_readable(text: str) -> bool:
    """Whether all read it alike, the driver too. Postgres takes several hosts, separated by commas. What is
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
