"""URLs of databases that remote steps can go over, sorted by what their server speaks."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigurationError
from ..model.urls import parse_url, redact

POSTGRES, MYSQL = "postgres", "mysql"
_MYSQL_SCHEMES = {"mysql", "mariadb", "mysql+asyncmy", "mariadb+asyncmy"}
_PARAMETERS = ("unix_socket", "ssl_ca", "ssl")
_USE = "use postgresql://user@host/name or mysql://user@host/name"


class TransportUrl(NamedTuple):
    """A database: which dialect it speaks, and its URL."""

    dialect: str
    text: str

    def __repr__(self) -> str:
        return f"TransportUrl({redact(self.text)!r})"


def parse_transport_url(text: str) -> TransportUrl:
    """Sort a URL by its scheme, and refuse what remote steps cannot go over."""
    scheme = text.strip().partition("://")[0].lower() if isinstance(text, str) else ""
    if scheme in _MYSQL_SCHEMES:
        found = TransportUrl(MYSQL, text.strip())
        mysql_options(found)
        return found
    if scheme == "sqs":
        raise ConfigurationError(f"remote steps over SQS are not supported yet; {_USE}")
    url = parse_url(text)
    if url.kind != POSTGRES:
        raise ConfigurationError(
            f"remote steps cannot go over {redact(url.text)!r}: in SQLite workers cannot pass over rows that others "
            f"hold; {_USE}"
        )
    return TransportUrl(POSTGRES, url.text)


def mysql_options(url: TransportUrl) -> dict[str, Any]:
    """The URL of a MariaDB or MySQL as arguments of its driver."""
    try:
        parts = urlsplit(url.text)
        port = parts.port or 3306
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _unreadable(url) from None
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in parts.path[1:] or "@" in (parts.username or "") + parts.path or "#" in url.text:
        raise _unreadable(url)
    for name in given:
        if name not in _PARAMETERS:
            raise ConfigurationError(
                f"the database URL {redact(url.text)!r} has a parameter that is not known here; "
                f"there are {', '.join(_PARAMETERS)}"
            )
    return {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "db": database,
        "unix_socket": given.get("unix_socket"),
        "ssl": _tls(given),
    }


def _tls(given: dict[str, str]) -> Any:
    """A context that checks the server's certificate, if one is asked for."""
    if "ssl_ca" not in given and given.get("ssl", "false").lower() not in ("1", "true", "yes"):
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=given.get("ssl_ca"))
    except OSError:
        raise ConfigurationError(f"the file of ssl_ca cannot be read: {given.get('ssl_ca')!r}") from None


def _unreadable(url: TransportUrl) -> ConfigurationError:
    return ConfigurationError(
        f"the database URL {redact(url.text)!r} cannot be read: write mysql://user:password@host:port/name, "
        "with %40 for an @ in the user or password, %2F for /, %3F for ? and %23 for #"
    )
