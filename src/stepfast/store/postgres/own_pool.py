"""A pool that the caller made: whether it can be used, to which database it leads, and how to connect as it does.

The heartbeat works in another event loop than the pool, and listening keeps a connection for good: both connect by
themselves, with the URL if there is one, otherwise with the arguments that the pool was made with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg

from ...errors import ConfigurationError
from ...model.urls import DatabaseUrl

_CHOSEN_HERE = frozenset({
    "loop", "timeout", "command_timeout", "connection_class", "record_class", "statement_cache_size",
    "max_cached_statement_lifetime", "max_cacheable_statement_size",
})  # fmt: skip
"""Arguments of a connection that every connection of Stepfast's own has its own values for."""


def is_pool(pool: Any) -> bool:
    """Whether it is a pool of the driver's."""
    return isinstance(pool, asyncpg.Pool)


def address(pool: Any) -> DatabaseUrl:
    """The database of a pool as it is shown: user, host, port and name."""
    return DatabaseUrl("postgres", _shown(arguments(pool)), of_pool=True)


def arguments(pool: Any) -> dict[str, Any]:
    """What the pool passes to ``asyncpg.connect``, without what is chosen here. Read each time, because
    ``set_connect_args`` may have changed it."""
    positional, named = getattr(pool, "_connect_args", None), getattr(pool, "_connect_kwargs", None)
    own = getattr(pool, "_connect", asyncpg.connect) not in (asyncpg.connect, asyncpg.connection.connect)
    if own or not isinstance(positional, Sequence) or len(positional) > 1 or not isinstance(named, Mapping):
        raise ConfigurationError(
            "pool= does not say how it connects (it has a connect= of its own): name its database as well, as in "
            "Stepfast(url, pool=pool); the heartbeat and listening connect by that URL"
        )
    dsn = {"dsn": positional[0]} if positional else {}
    return dsn | {name: value for name, value in named.items() if name not in _CHOSEN_HERE}


def check_usable(pool: Any, needed: int) -> None:
    """Refuse a pool that is too small, which would make the duties wait for each other for ever, and one of another
    event loop."""
    if pool.get_max_size() < needed:
        raise ConfigurationError(f"pool= must hold at least {needed} connections, not {pool.get_max_size()}")
    if getattr(pool, "_loop", None) not in (None, asyncio.get_running_loop()):
        raise ConfigurationError(
            "pool= belongs to another event loop than the one that uses the application. Make the pool in this one; or "
            "give the URL alone, which works in every event loop and in app.sync"
        )
    if not getattr(pool, "_initialized", True):
        raise ConfigurationError("pool= is not open: write pool = await asyncpg.create_pool(…)")


def refuse_other_database(ours: Any, theirs: Any) -> None:
    """Compare the identities of the database of the URL and of the pool's."""
    if [*ours.values()] != [*theirs.values()]:
        raise ConfigurationError(
            f"pool= leads to another database ({theirs['name']!r}) than the URL ({ours['name']!r}), or to another "
            "server. Leave the URL out, also STEPFAST_URL: the pool says which database it is"
        )


def _shown(given: dict[str, Any]) -> str:
    """A URL of what may be shown. What is left out comes from the environment, as the driver has it."""
    dsn = given.get("dsn")
    try:
        parts = urlsplit(dsn if isinstance(dsn, str) else "")
        named = {"user": parts.username, "database": parts.path.lstrip("/") or None}
        hosts: Any = parts.netloc.rpartition("@")[2] or None
    except ValueError:
        parts, named, hosts = urlsplit(""), {}, None
    named |= {name: given[name] for name in ("user", "database") if given.get(name)}
    if given.get("host") or given.get("port"):
        hosts = _hosts(given.get("host") or (parts.hostname if hosts else None), given.get("port"))
    user, database = (quote(str(named.get(name) or ""), safe="") for name in ("user", "database"))
    socket = f"?host={quote(str(hosts), safe='/')}" if str(hosts or "").startswith("/") else ""
    return f"postgresql://{user}{'@' if user else ''}{'' if socket else hosts or ''}/{database}{socket}"


def _hosts(host: Any, port: Any) -> str:
    hosts = [host] if isinstance(host, str) or host is None else [*host]
    ports = [*port] if isinstance(port, Sequence) and not isinstance(port, str) else [port] * len(hosts)
    if len(hosts) == 1 and str(hosts[0]).startswith("/"):
        return str(hosts[0])
    pairs = zip(hosts, ports, strict=False)
    return ",".join(f"{each or 'localhost'}{'' if number is None else f':{number}'}" for each, number in pairs)
