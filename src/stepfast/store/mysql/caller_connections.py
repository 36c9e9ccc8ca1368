"""Connections that callers bring along: of asyncmy, aiomysql, PyMySQL and mysqlclient, also those of SQLAlchemy.

What is done for one call is one savepoint of the caller's transaction. A caller's session may see the database as it
was when its transaction began, so what it does not find is looked for on a connection of our own as well.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ...caller_thread import beside_the_loop, refuse_without_loop
from ...cancellation import raise_if_cancelled, requests
from ...errors import ConfigurationError, DatabaseUnavailable
from ...model.names import SIGNAL_ID
from ...model.records import Answer, Mail
from ...model.status import NO_SUCH_STEP
from ...model.transitions.signals import way_to_signal
from ..alchemy import beneath, comes_from, kind_of
from ..answers import mailbox_full
from ..flows.base import Flow, ask
from .driver import Driver, Statement
from .errors import translate
from .transactions import callers_transaction, is_gone, run

_ASYNC, _SYNC = ("asyncmy", "aiomysql"), ("pymysql", "MySQLdb")
_ACCEPTED = (
    "connection= takes a connection of asyncmy's, aiomysql's, PyMySQL's or mysqlclient's, or a SQLAlchemy Session, "
    "Connection, AsyncSession or AsyncConnection over one of these, with the database that Stepfast works on"
)
_IDENTITY = "SELECT DATABASE(), @@hostname, @@port, @@datadir, @@character_set_client"
_SAVEPOINT = "stepfast_call"
_IN_TRANSACTION = 1
"""The bit of the server's status that says so."""


class Theirs:
    """A connection of a caller with the words of ours; its own class of cursors does not apply."""

    def __init__(self, connection: Any, package: str) -> None:
        self.connection = connection
        self.package = package
        self.kind = sys.modules[f"{package}.cursors"].Cursor

    def cursor(self) -> _Cursor:
        """A cursor whose rows are tuples."""
        return _Cursor(self)

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        theirs = self.connection
        if self.package == "asyncmy":
            return is_gone(theirs)
        if self.package == "aiomysql":
            return bool(theirs.closed)
        return not theirs.open

    async def commits_each(self) -> bool:
        """Whether each statement commits by itself now: it is set so, and no transaction is open."""
        if not self.connection.get_autocommit():
            return False
        status = getattr(self.connection, "server_status", None)
        if status is None:  # mysqlclient does not tell
            return not (await run(self, "SELECT @@in_transaction"))[0][0]
        return not status & _IN_TRANSACTION


class _Cursor:
    """Executes one statement on a caller's connection, and reads all of it."""

    description: Any = None
    rowcount = 0
    _result: Any = None
    _rows: Sequence[Any] = ()

    def __init__(self, theirs: Theirs) -> None:
        self._theirs = theirs

    async def execute(self, text: str, values: Any = None) -> None:
        """In its event loop, or in a thread beside it."""
        if self._theirs.package in _ASYNC:
            await self._execute(text, values)
        else:
            await beside_the_loop(lambda: self._block(text, values), self._theirs.connection.close)

    async def fetchall(self) -> Sequence[Any]:
        """The rows."""
        return self._rows

    async def _execute(self, text: str, values: Any) -> None:
        made = self._theirs.connection.cursor(self._theirs.kind)
        cursor = await made if inspect.isawaitable(made) else made
        try:
            await cursor.execute(text, values)
            self._note(cursor, await cursor.fetchall() if cursor.description else ())
        finally:
            done = cursor.close()
            if inspect.isawaitable(done):
                await done

    def _block(self, text: str, values: Any) -> None:
        with contextlib.closing(self._theirs.connection.cursor(self._theirs.kind)) as cursor:
            cursor.execute(text, values)
            self._note(cursor, cursor.fetchall() if cursor.description else ())

    def _note(self, cursor: Any, rows: Sequence[Any]) -> None:
        self.description, self.rowcount, self._rows = cursor.description, cursor.rowcount, rows
        if self._theirs.package == "MySQLdb":
            self._result = SimpleNamespace(message=(self._theirs.connection.info() or "").encode())
        else:
            self._result = SimpleNamespace(message=cursor._result.message)


Ours = Callable[..., Awaitable[list[Any]]]


class CallerDriver(Driver):
    """Asks on a caller's connection, and what is not found there once more on one of ours."""

    _ALSO_OURS = frozenset(
        {"by_keys", "earlier", "status_of", "step_named", "has_signal_id", "names_held", "which_exist"}
    )

    def __init__(self, statements: dict[str, Statement], packet: Callable[[], int | None], ours: Ours) -> None:
        super().__init__(statements, packet)
        self._ours = ours

    async def fetch(self, connection: Any, name: str, *arguments: Any, seconds: float | None = None) -> list[Any]:
        """The rows that a question brings."""
        if name == "leave_signal":
            return await self._leave_signal(connection, *arguments)
        rows = await super().fetch(connection, name, *arguments, seconds=seconds)
        wanted = len(arguments[0]) if arguments and isinstance(arguments[0], list) else 1
        if name in self._ALSO_OURS and len(rows) < wanted:
            rows += [row for row in await self._ours(name, *arguments) if row not in rows]
        return rows

    async def put(self, connection: Any, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Execute a statement for many rows. An INSERT that joins runs is not given those that are not there: a
        caller's session would lock the gap in which they are not, so also the end of the table."""
        if name in ("start_tags", "start_graphs") and rows:
            found = await super().fetch(connection, "which_exist", list({row[0] for row in rows}))
            there = {row[0] for row in found}
            rows = [row for row in rows if row[0] in there]
        return await super().put(connection, name, rows)

    async def _leave_signal(self, connection: Any, run_id: str, *given: Any) -> list[Any]:
        """Count and insert in two statements: an INSERT that reads the mailbox would lock all of it."""
        signal, name, value, written, trace, start, most = given
        [(count,)] = await super().fetch(connection, "count_signals", [run_id], most)
        if count >= most:
            return []
        left = (run_id, signal, "signal", name, value, None, written, trace, start)
        return await super().fetch(connection, "leave_mail", *left)


class Callers:
    """Lets callers' connections in, once it is known that they lead to our own database."""

    def __init__(self, ask_ours: Callable[[str], Awaitable[list[Any]]]) -> None:
        self._ask_ours = ask_ours
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were compared with ours."""

    @contextlib.asynccontextmanager
    async def within(self, connection: Any) -> AsyncIterator[Theirs]:
        """The driver's connection, in a savepoint of the transaction that its owner has open; if there is none, in a
        transaction for this call. Errors of the owner's transaction (a deadlock) come out as they are: only the owner
        can begin again. A cancellation that the driver has swallowed comes out, too."""
        before = requests()
        theirs = await _driver_connection(connection)
        if theirs.gone:
            raise DatabaseUnavailable("the connection that was passed is closed")
        try:
            await self._compare(theirs)
            async with await _joined(theirs):
                yield theirs
            raise_if_cancelled(before)
        except Exception as error:
            raise_if_cancelled(before)
            known = translate(error)
            if known is error or (isinstance(known, DatabaseUnavailable) and not theirs.gone):
                raise
            raise known from error

    async def _compare(self, theirs: Theirs) -> None:
        if theirs.connection in self._known:
            return
        [found] = await run(theirs, _IDENTITY)
        [ours] = await self._ask_ours(_IDENTITY)
        if tuple(found[:4]) != tuple(ours[:4]):
            raise ConfigurationError(
                f"connection= leads to another database ({found[0]!r}) than the one that Stepfast works on "
                f"({ours[0]!r}), or to another server: nothing was written"
            )
        if found[4] != "utf8mb4":
            raise ConfigurationError(
                f"connection= has the character set {found[4]}, which cannot carry every text: connect with "
                "charset='utf8mb4'. Nothing was written"
            )
        self._known.add(theirs.connection)


async def _joined(theirs: Theirs) -> contextlib.AbstractAsyncContextManager[None]:
    """A part of the owner's transaction; on an asynchronous connection without one, a transaction for this call."""
    if not await theirs.commits_each():
        return _savepoint(theirs)
    if theirs.package in _ASYNC:
        return callers_transaction(theirs.connection)
    raise ConfigurationError(
        "connection= commits each statement by itself (autocommit), and no transaction is open on it: nothing was "
        "written. Begin one (`connection.begin()`), or leave connection= out"
    )


@contextlib.asynccontextmanager
async def _savepoint(theirs: Theirs) -> AsyncIterator[None]:
    """All of what is done in the block, or nothing of it."""
    await run(theirs, f"SAVEPOINT {_SAVEPOINT}")
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # the server has rolled back more than that
            await run(theirs, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        raise
    await run(theirs, f"RELEASE SAVEPOINT {_SAVEPOINT}")


async def _driver_connection(connection: Any) -> Theirs:
    """The driver's connection, which may have something of SQLAlchemy's around it."""
    theirs = connection
    if _package(connection) is None:
        try:
            theirs = await beneath(connection)
        except (AttributeError, TypeError):
            raise ConfigurationError(f"{_ACCEPTED}; not {kind_of(connection)}") from None
    package = _package(theirs)
    if package is None:
        raise ConfigurationError(f"{_ACCEPTED}; not {'' if theirs is connection else 'one over '}{kind_of(theirs)}")
    if package in _ASYNC:
        refuse_without_loop()
    return Theirs(theirs, package)


def _package(connection: Any) -> str | None:
    """The driver that a connection is of."""
    known = (each for each in (*_ASYNC, *_SYNC) if comes_from(connection, each))
    return next(known, None) if hasattr(connection, "cursor") else None


def leave(mail: Mail, most: int) -> Flow[Answer]:
    """Put a signal into the box, for a sweep to deliver: no row that exists is locked or changed."""
    found = yield from ask("status_of", mail.run_id)
    if not found:
        return Answer(None)
    (status, reason, dag), whose = found[0], None
    way, key = way_to_signal(status, reason), None if mail.given is None else SIGNAL_ID + mail.given
    if way == "forward":
        [(whose,)] = yield from ask("continuation", mail.run_id)
        [(status, reason, dag)] = yield from ask("status_of", whose)
        way = way_to_signal(status, reason)
    for which in dict.fromkeys((mail.run_id, whose or mail.run_id)) if key is not None else ():
        if (yield from ask("has_signal_id", which, key)):
            return Answer(status, reason, done=True)
    if way != "take":
        return Answer(status, reason, whose=whose)
    receiver = mail.run_id
    if dag:
        steps = yield from ask("step_named", mail.run_id, mail.name)
        if not steps or way_to_signal(steps[0][1]) != "take":
            return Answer(status, NO_SUCH_STEP)
        receiver = steps[0][0]
    boxes = list(dict.fromkeys((receiver, whose or receiver)))
    [(count,)] = yield from ask("count_signals", boxes, most)
    if count >= most:
        for box in boxes:
            if (yield from ask("is_there", box, mail.id)):
                return Answer(status, reason, done=True, whose=whose)
        raise mailbox_full(boxes[-1], most)
    if key is not None and not (yield from ask("leave_signal_id", whose or mail.run_id, key)):
        return Answer(status, reason, done=True, whose=whose)
    values = (receiver, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
    yield from ask("leave_mail", *values, mail.trace, None)
    return Answer(status, reason, done=True, whose=whose)
