"""Connections to MariaDB and MySQL: how they are made, what is set in each session, and how a service keeps one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncmy

from ...cancellation import raise_if_cancelled, requests
from ...errors import AppClosed, ConfigurationError, DatabaseUnavailable, sentence
from ...model.urls import DatabaseUrl, is_shown_in, mysql_parts, redact
from ...settings import Settings
from ..lock_timeout import Breaks
from .errors import is_not_let_in, translate
from .transactions import close_quietly, drop, is_gone, run

NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000)"
"""The database's clock in milliseconds when the statement began, in any time zone of the session."""
NOW_WHEN_LOCKED = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6)) DIV 1000)"
"""The same when a row was read, so after locks were waited for. No index serves a comparison with it; and the session's
time zone must be UTC."""

DUTIES = ("flush", "claim", "limited", "start", "keyed", "sweep", "mail")
"""Each has a connection of its own, made when it is first needed."""
HELD = len(DUTIES) + 1
"""Connections that an event loop holds at most beside its pools: one for each duty, and the heartbeat's."""

_MODE = "'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT'"
"""What does not fit is refused: some servers would cut it off without a word. And ``||`` means what it means in all
other databases."""
_SESSION = (
    "SET SESSION wait_timeout = 600, SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = {seconds}, "
    "SESSION /*M! tx_isolation *//*!80000 transaction_isolation */ = 'READ-COMMITTED', "
    "SESSION max_seeks_for_key = 1, SESSION group_concat_max_len = 1000000, "
    "SESSION /*M! max_recursive_iterations *//*!80000 cte_max_recursion_depth */ = 1000000"
    "/*M! , SESSION idle_transaction_timeout = {lease:d} */"
)
"""Rows that a vanished machine has locked are passed over by every claim for as long as they are. MariaDB can be told
to end a silent transaction, which the last comment is for; MySQL ends a silent connection. A cancelled caller drops
the connection, and a statement that waits for a lock waits on at the server: not for long. With REPEATABLE READ the
server would lock the gaps between rows as well, and workers would wait for each other; and where it thought that a look
through a small table was quicker than an index, it would lock rows that no statement named."""
_RECYCLE = 300
"""Seconds after which an idle connection is replaced, before the server ends it."""
_PREPARED = 256
"""Statements that a connection keeps prepared. Their values are sent as they are, without being escaped."""

_IN_CLUSTER = ", SESSION wsrep_sync_wait = 1"
"""What was committed by way of another node is seen by each transaction that begins after that. And in a cluster no
statements stay prepared: where a transaction was rolled back for the sake of another node's, the next statement is told
so. If that is the preparation of a statement, the driver takes it for one that cannot be prepared, sends its text, and
the rest of the transaction would be executed outside of any."""

_AT_ONCE = "/*M! 0 *//*!80000 1 */"
"""The shortest that a session may wait for a lock."""

_OLDEST_MARIADB, _OLDEST_MYSQL = (10, 6), (8, 0, 21)
"""SKIP LOCKED and JSON_TABLE came with 10.6; JSON_VALUE with 8.0.21."""


class Server(NamedTuple):
    """What is known of the server since the first connection."""

    version: str
    is_mariadb: bool
    packet: int
    """The largest statement that it takes, in bytes."""
    in_cluster: bool
    """Whether it is a node of a Galera cluster, where locks hold within the node and conflicts are found at commits."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version.removeprefix("5.5.5-"))[:3])

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {'.'.join(map(str, self.numbers))}"

    @property
    def is_old(self) -> bool:
        """Whether it is older than what the statements need."""
        return self.numbers < (_OLDEST_MARIADB if self.is_mariadb else _OLDEST_MYSQL)


def address(url: str) -> dict[str, Any]:
    """Where a URL leads, as arguments of the driver."""
    parts = mysql_parts(url)
    given = parts.parameters
    return {
        "host": parts.host, "port": parts.port, "user": parts.user, "password": parts.password, "db": parts.database,
        "unix_socket": given.get("unix_socket"), "ssl": _tls(given),
    }  # fmt: skip


def _tls(given: dict[str, str]) -> Any:
    """A context that checks the server's certificate, if the URL requests one."""
    if "ssl_ca" not in given and given.get("ssl", "false").lower() not in ("1", "true", "yes"):
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=given.get("ssl_ca"))
    except OSError:
        raise ConfigurationError(f"the file of ssl_ca cannot be read: {given.get('ssl_ca')!r}") from None


def session_options(url: str, settings: Settings, impatient: bool = False, in_cluster: bool = False) -> dict[str, Any]:
    """Arguments of the driver for a session of our own; one that is ``impatient`` waits for no lock, and one of a node
    of a Galera cluster has its own settings."""
    longest = min(settings.command_timeout, max(5.0, settings.lease / 2))
    lease = max(1, int(settings.lease))
    return address(url) | {
        "autocommit": True,  # transactions of ours are begun by name
        "charset": "utf8mb4",
        "sql_mode": _MODE,
        "init_command": _SESSION.format(seconds=_AT_ONCE if impatient else max(1, int(longest)), lease=lease)
        + (_IN_CLUSTER if in_cluster else ""),
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.command_timeout,
        "stmt_cache_size": 0 if in_cluster else _PREPARED,
    }


async def create_pool(url: str, settings: Settings, size: int, in_cluster: bool = False, **others: Any) -> Any:
    """A pool of sessions of our own. Nothing is connected yet."""
    options = session_options(url, settings, in_cluster=in_cluster) | others
    return await asyncmy.create_pool(minsize=0, maxsize=size, pool_recycle=_RECYCLE, **options)


class Connector:
    """Knows how to connect, and what the server can do."""

    def __init__(self, url: DatabaseUrl, settings: Settings, impatient: bool = False) -> None:
        self.url = url.text
        self._settings = settings
        self._impatient = impatient
        self.server: Server | None = None

    @property
    def packet(self) -> int | None:
        """The largest statement that the server takes, once it was asked. In a cluster values are escaped, and half of
        them may be signs that take two bytes then."""
        if self.server is None:
            return None
        return self.server.packet // 2 if self.server.in_cluster else self.server.packet

    async def connect(self) -> Any:
        """A new connection, outside every pool."""
        known = self.server
        connection = await self._connect()
        await self._meet(connection)
        if known is None and self.in_cluster:  # it was made with the settings for other servers
            await close_quietly(connection)
            connection = await self._connect()
        return connection

    @property
    def in_cluster(self) -> bool:
        """Whether the server is a node of a Galera cluster, once it was asked."""
        return self.server is not None and self.server.in_cluster

    async def _connect(self) -> Any:
        options = session_options(self.url, self._settings, self._impatient, self.in_cluster)
        # A connection may be dead before either side knows: a duty must find out well within its lease.
        options["read_timeout"] = min(self._settings.command_timeout, max(5.0, self._settings.lease / 2))
        try:
            return await asyncmy.connect(**options)
        except Exception as error:
            raise connect_error(error, self.url) from None

    async def create_pool(self, size: int, for_users: bool = False) -> Any:
        """A pool. Connections ``for_users``, on which their own code works, have no bound on a statement, and commit
        nothing by themselves."""
        others: dict[str, Any] = {"read_timeout": None, "stmt_cache_size": 0} if for_users else {}
        if self.server is None:
            await close_quietly(await self.connect())
        return await create_pool(self.url, self._settings, size, self.in_cluster, **others)

    async def _meet(self, connection: Any) -> None:
        """Refuse a server that cannot execute our statements, before anything is written."""
        try:
            [(version, packet)] = await run(connection, "SELECT VERSION(), @@max_allowed_packet")
            in_cluster = self.in_cluster if self.server is not None else await _in_cluster(connection)
        except Exception as error:
            drop(connection)
            raise translate(error) from None
        self.server = Server(version, "mariadb" in version.lower(), int(packet), in_cluster)
        if self.server.is_old:
            drop(connection)
            raise ConfigurationError(
                f"the database at {redact(self.url)} is {self.server.name}: Stepfast needs MariaDB 10.6 or later, or "
                "MySQL 8.0.21 or later"
            )


async def _in_cluster(connection: Any) -> bool:
    """Whether the server is a node of a Galera cluster."""
    return ("wsrep_on", "ON") in await run(connection, "SHOW GLOBAL VARIABLES LIKE 'wsrep\\_on'")


class KeptConnection:
    """One connection kept for one duty, so that a busy neighbour never makes it wait. Reconnects when broken."""

    def __init__(self, connector: Connector, breaks: Breaks) -> None:
        self._connector = connector
        self._breaks = breaks
        self._was_open = False
        self._used_at = 0.0
        self._lock = asyncio.Lock()
        self._connection: Any = None
        self.closed = False
        """Whether the store is: no caller may connect again."""

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """The connection, exclusively. Errors come out translated; a broken connection is thrown away."""
        before = requests()
        async with self._lock:
            connection = await self._open()
            try:
                yield connection
                raise_if_cancelled(before)
            except Exception as error:
                known = translate(error)
                if isinstance(known, DatabaseUnavailable) and is_gone(connection):
                    self.drop()
                raise_if_cancelled(before)
                raise known from None
            except BaseException:
                self._was_open = False  # we leave, because our caller was cancelled: the server has not
                self.drop()  # the statement may still be under way
                raise
            finally:
                self._used_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Disconnect in good order."""
        self.closed = True
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await close_quietly(connection)

    def drop(self) -> None:
        """Disconnect at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._was_open and not self.closed:
                self._breaks.tell()
            drop(connection)

    async def _open(self) -> Any:
        if self._is_idle():
            idle, self._connection = self._connection, None
            await close_quietly(idle)  # in good order: nothing broke
            self._was_open = False
        if not self.closed and (self._connection is None or is_gone(self._connection)):
            connection = await self._connector.connect()
            if self._was_open:
                self._breaks.tell()
            self._connection, self._was_open = connection, True
        if self.closed:
            self.drop()
            raise AppClosed
        return self._connection

    def _is_idle(self) -> bool:
        """Whether the server is about to end it, because it was not used for long."""
        unused = asyncio.get_running_loop().time() - self._used_at
        return self._connection is not None and unused > _RECYCLE and not is_gone(self._connection)


def connect_error(error: Exception, url: str) -> Exception:
    """Why no connection could be made, in one sentence, without the password."""
    known = translate(error)
    if not isinstance(known, DatabaseUnavailable):
        return known
    where, said = redact(url), sentence(error)
    if is_not_let_in(error):
        return DatabaseUnavailable(f"the database at {where} refused the user or password, or does not exist")
    if is_shown_in(said, url):
        said = type(error).__name__
    return DatabaseUnavailable(f"the database at {where} cannot be reached, or cannot do it now: {said}")
