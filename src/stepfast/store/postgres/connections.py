"""Connections to Postgres: how they are made, kept for one service, and noticed when they break."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from ...cancellation import raise_if_cancelled, requests
from ...errors import AppClosed, ConfigurationError, DatabaseUnavailable, sentence
from ...model.urls import DatabaseUrl, is_shown_in, redact
from ...settings import Settings
from ..lock_timeout import Breaks
from .engines import FACTS, PLAIN, recognize, refuse_by_host
from .errors import translate
from .own_pool import arguments
from .transactions import close_quietly, closing, drop, give_back, is_gone


class Continuity:
    """Knows whether the server is still the same; one for all connections of a store."""

    def __init__(self) -> None:
        self.breaks = Breaks()
        self.started: int | None = None
        """When the server was started (microseconds), as last seen."""

    def met(self, started: int | None) -> None:
        """A connection leads to a server that was started then."""
        before, self.started = self.started, started
        if before is not None and before != started:
            self.breaks.tell()

    def broke(self) -> None:
        """A connection is gone."""
        self.breaks.tell()


_ARRAYS = {"bool": (1000, 16), "int2": (1005, 21), "int4": (1007, 23), "int8": (1016, 20), "uuid": (2951, 2950)}
"""Name of the element, number of the array, number of the element. The driver knows text[] already."""

_TYPES = [
    {
        "oid": oid, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "basetype": None, "elemtype": element,
        "elemdelim": b",", "range_subtype": None, "attrtypoids": None, "attrnames": None, "elemtype_name": name,
    }
    for name, (oid, element) in _ARRAYS.items()
]  # fmt: skip


def know_arrays(connection: Any) -> Any:
    """The connection, whose driver has no reason left to ask. A driver with other rooms inside asks as before."""
    with contextlib.suppress(AttributeError, TypeError, KeyError):
        connection._protocol.get_settings().register_data_types(_TYPES)
    return connection


SEARCH_PATH = "pg_catalog, pg_temp"
"""For sessions that are ours alone. Connections on which users' own code works keep theirs."""

_TOKEN = re.compile(
    r"(?P<skip>--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\")"  # comments, texts and quoted names stay as they are
    r"|(?<![\w.$])(?:(?P<alias>AS\s+[a-z_]\w*)|(?P<call>[a-z_]\w*))(?=\()"
)
"""A call is a word in small letters right before its parenthesis. What grammar puts there (ANY, COALESCE) is in
capitals; behind an alias are the names of columns."""


@functools.lru_cache(maxsize=1024)
def qualify(sql: str) -> str:
    """The statement with ``pg_catalog.`` before each function that it calls. It is remembered, because every store of a
    process asks for the same hundred statements, and looking through them takes longer than connecting."""
    return _TOKEN.sub(lambda found: _prefix(found) + found[0], sql)


def _prefix(found: re.Match[str]) -> str:
    call = found["call"]
    if call is None or call == "extract":  # its arguments are grammar, and the grammar means the one of pg_catalog
        return ""
    if call == "unnest" and _takes_several(found.string, found.end()):
        return ""  # grammar too: it means one unnest of pg_catalog for each argument, but only if written like this
    return "pg_catalog."


def _takes_several(sql: str, start: int) -> bool:
    """Whether there is more than one argument between the parenthesis at ``start`` and its end."""
    depth = 0
    for found in re.finditer(r"'(?:[^']|'')*'|[(),\[\]]", sql[start:]):
        if found[0] in "([":
            depth += 1
        elif found[0] in ")]":
            depth -= 1
            if depth == 0:
                return False
        elif found[0] == "," and depth == 1:
            return True
    return False


DUTIES = ("flush", "claim", "limited", "start", "keyed", "sweep", "mail", "notify")
"""Each has a connection of its own, made when it is first needed."""
HELD = len(DUTIES) + 2
"""Connections that an event loop holds at most beside its pools: one for each duty, one to listen, the heartbeat's."""

_NOT_MADE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver met the server's farewell where it expected an answer
)
"""Errors of a connection that could not be made; the next attempt may succeed."""

_ONE_PLAN = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""A duty has few statements, each made for one plan: small sets of rows found by an index. Left to itself the planner
makes another while the tables are empty, and keeps it until they are analysed: the first minute of a new database was
three times slower. Or it plans for the values at hand and reads a whole lane, because it takes queue and workflow for
independent of each other."""


_LOOK_FOR_CLIENT = "2000"
"""Milliseconds between two looks of the server whether the client of a long statement is still there."""


class QuietConnection(asyncpg.Connection):  # type: ignore[misc]
    """Leaves out the reset query on release: nothing here changes the session, and it costs a round trip."""

    def get_reset_query(self) -> str:
        """Return no statement."""
        return ""


class Connector:
    """Knows how to connect: directly, or behind a pooler, where prepared statements must not be left behind."""

    def __init__(self, url: DatabaseUrl, settings: Settings, pool: Any = None) -> None:
        self._url = url.text
        self._of_pool = url.of_pool
        self._settings = settings
        self.shared_pool = pool
        self._pooled_server: bool | None = None
        self.engine = PLAIN
        """The kind of server, known after the first connection."""
        self._notices_absence = False
        """Whether the server can check, during a statement, whether its client is still there."""

    async def connect(self) -> Any:
        """A new connection for one duty, outside every pool."""
        options = await self.options()
        # A connection may be dead without an error having been raised: a duty must notice it well within its lease.
        options["command_timeout"] = min(self._settings.command_timeout, max(5.0, self._settings.lease / 2))
        if "server_settings" in options and self.engine.plain:
            options["server_settings"].update(_ONE_PLAN)
        return await self._connect(options)

    async def learn(self, connection: Any) -> None:
        """Find out the kind of server by a connection that was made elsewhere."""
        self.engine = recognize(await connection.fetchrow(FACTS))

    @property
    def behind_pooler(self) -> bool:
        """Whether a pooler in transaction mode seems to be between us and the server."""
        return bool(self._pooled_server)

    async def options(self) -> dict[str, Any]:
        """Arguments for asyncpg, found out with a first connection."""
        if self._pooled_server is None:
            self._pooled_server = await self._is_behind_pooler()
        return self._options()

    async def options_for_users(self) -> dict[str, Any]:
        """Arguments for asyncpg for connections on which users' own code works: with the server's own ways of planning,
        no bound on a statement, and, where sessions are ours, left as clean as they were found."""
        options = await self.options()
        options["command_timeout"] = None
        if self.behind_pooler:
            return options
        options["connection_class"] = asyncpg.Connection
        for name in ("search_path", "jit", "idle_in_transaction_session_timeout", "default_transaction_isolation"):
            del options["server_settings"][name]
        return options

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = arguments(self.shared_pool) if self._of_pool else {"dsn": self._url}
        options |= {
            "timeout": settings.connect_timeout,
            "command_timeout": settings.command_timeout,
            "connection_class": QuietConnection,
        }
        if self._pooled_server is False:
            options["server_settings"] = (options.get("server_settings") or {}) | {
                "application_name": "stepfast",
                "search_path": SEARCH_PATH,
                # A short statement must not be compiled because a plan for a large batch looked expensive.
                "jit": "off",
                # A machine that vanishes inside a transaction, or while it is sent a large claim, would keep its rows
                # locked, and from the reaper, for as long as the server believes in the connection: two hours.
                "idle_in_transaction_session_timeout": str(int(settings.lease * 1000)),
                "tcp_user_timeout": str(int(settings.lease * 1000)),
                # A single statement, too, is to see what was committed while it waited for a row.
                "default_transaction_isolation": "read committed",
            }
            if self._notices_absence:
                # A caller that is cancelled drops the connection. A statement that waits for a lock would wait on.
                options["server_settings"]["client_connection_check_interval"] = _LOOK_FOR_CLIENT
            options["max_cached_statement_lifetime"] = 0
        else:
            options["statement_cache_size"] = 0
        return options

    async def _connect(self, options: dict[str, Any]) -> Any:
        try:
            return know_arrays(await asyncpg.connect(**options))
        except Exception as error:
            raise connect_error(error, self._url) from None

    async def _is_behind_pooler(self) -> bool:
        # A pooler hands out a cancellation key of its own, so the process id in it is not the server's.
        refuse_by_host(self._url)
        async with closing(await self._connect(self._options())) as connection:
            try:
                facts = await connection.fetchrow(FACTS)
                self.engine = recognize(facts)
                if facts["pid"] != connection.get_server_pid():
                    return True
                self._notices_absence = await _can_look_for_client(connection)
                return False
            except Exception as error:
                raise translate(error) from None


async def _can_look_for_client(connection: Any) -> bool:
    """Since release 14, and where the server's operating system can tell."""
    if connection.get_server_version() < (14, 0):
        return False
    try:
        await connection.fetchval(
            "SELECT pg_catalog.set_config('client_connection_check_interval', $1, false)", _LOOK_FOR_CLIENT
        )
    except asyncpg.InvalidParameterValueError:
        return False
    return True


class KeptConnection:
    """One connection kept for one duty, so that a busy neighbour never makes it wait. Reconnects when broken."""

    def __init__(self, connector: Connector, continuity: Continuity | None = None) -> None:
        self._connector = connector
        self._continuity = continuity
        self._was_open = False
        self._lock = asyncio.Lock()
        self._connection: Any = None
        self.closed = False
        """Whether the store is: no connection may be made any more."""

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """The connection, exclusively. Errors come out translated; a broken connection is thrown away."""
        before = requests()
        async with self._lock:
            connection = await self._open()
            try:
                yield connection
            except Exception as error:
                known = translate(error)
                if isinstance(known, DatabaseUnavailable):
                    self.drop()
                raise_if_cancelled(before)
                raise known from None
            except BaseException:
                self._was_open = False  # we leave, because our caller was cancelled: the server has not
                self.drop()  # the statement may still be under way
                raise

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """Rows of one statement."""
        async with self.use() as connection:
            rows: list[Any] = await connection.fetch(sql, *arguments)
            return rows

    async def close(self) -> None:
        """Disconnect in good order."""
        self.closed = True
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                pool = self._connector.shared_pool
                await (close_quietly(connection) if pool is None else give_back(pool, connection))

    def drop(self) -> None:
        """Disconnect at once. A pool that the connection came from knows of it by itself."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._was_open:
                self._tell_of_break()
            drop(connection)

    async def _open(self) -> Any:
        if not self.closed and (self._connection is None or is_gone(self._connection)):
            pool = self._connector.shared_pool
            connection = await (self._connector.connect() if pool is None else _acquire(pool))
            if pool is None:
                connection.add_termination_listener(self._terminated)
            if self._was_open:
                self._tell_of_break()
            self._connection, self._was_open = connection, True
        if self.closed:
            self.drop()
            raise AppClosed
        return self._connection

    def _terminated(self, connection: Any) -> None:
        """The server, or the network, has closed it, perhaps while it was idle."""
        if connection is self._connection:
            self._tell_of_break()

    def _tell_of_break(self) -> None:
        if self._continuity is not None and not self.closed:
            self._continuity.broke()


async def _acquire(pool: Any) -> Any:
    try:
        return know_arrays(await pool.acquire())
    except Exception as error:
        raise translate(error) from None


def connect_error(error: Exception, url: str) -> Exception:
    """Why no connection could be made, in one sentence, without the password."""
    where = redact(url)
    if isinstance(error, (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError)):
        return DatabaseUnavailable(f"the database at {where} refused the user or password")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return DatabaseUnavailable(f"the database at {where} does not exist{_because(error, url)}")
    if isinstance(error, ValueError):  # about the address itself; what it says of it may be the password
        return ConfigurationError(
            f"the database URL {where} cannot be used: the driver cannot make sense of its hosts, ports or parameters"
        )
    if isinstance(error, _NOT_MADE):
        return DatabaseUnavailable(f"the database at {where} cannot be reached{_because(error, url)}")
    return error


def _because(error: Exception, url: str) -> str:
    """What the server or the system says, unless it repeats what is not to be shown."""
    reason = sentence(error)
    return f" ({type(error).__name__})" if is_shown_in(reason, url) else f": {reason}"
