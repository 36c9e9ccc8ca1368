"""Who is about while a storm rages: senders of signals, operators who cancel, pause and resume, and callers who start
and signal inside transactions of their own. Each writes down what it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import asyncmy
import asyncpg

from stepfast import DatabaseUnavailable, InvalidState, Stepfast
from stepfast.cancellation import raise_if_cancelled, requests
from stepfast.model.urls import mysql_parts
from tests.faults.composing import LISTENERS
from tests.judge.ledger import Ledger, now

TROUBLE = (
    DatabaseUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError,
    TimeoutError, sqlite3.OperationalError, asyncmy.errors.MySQLError,
)  # fmt: skip
"""What a caller hears when the database is away."""


# -- transactions of one's own -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def own_transaction(app: Stepfast) -> AsyncIterator[tuple[Any, bool]]:
    """A connection with a transaction begun, and whether it will be rolled back in the end."""
    rolled_back = random.random() < 0.4
    if app.url.kind == "postgres":
        connection = await asyncpg.connect(app.url.text, timeout=3, command_timeout=3)
        try:
            transaction = connection.transaction()
            await transaction.start()
            yield connection, rolled_back
            await (transaction.rollback() if rolled_back else transaction.commit())
        finally:
            connection.terminate()
    elif app.url.kind == "mysql":
        parts, before = mysql_parts(app.url.text), requests()
        where = {"host": parts.host, "port": parts.port, "user": parts.user, "db": parts.database, "charset": "utf8mb4"}
        theirs = await asyncmy.connect(**where, connect_timeout=3, read_timeout=3)
        try:
            yield theirs, rolled_back
            await (theirs.rollback() if rolled_back else theirs.commit())
        finally:
            theirs.close()
            raise_if_cancelled(before)  # before Python 3.12 the driver may swallow it
    else:
        database = sqlite3.connect(str(app.url.path), timeout=0, isolation_level=None)
        try:
            await _begin(database)
            yield database, rolled_back
            database.execute("ROLLBACK" if rolled_back else "COMMIT")
        finally:
            database.close()


async def _begin(database: sqlite3.Connection) -> None:
    """Without blocking the event loop: whoever holds the lock may need it to go on."""
    async with asyncio.timeout(30):
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                await asyncio.sleep(0.01)


async def start_within(app: Stepfast, ledger: Ledger, workflow: str, input: Any, options: dict[str, Any]) -> None:
    """Start a run as part of a transaction, and write down whether that was committed or rolled back."""
    async with own_transaction(app) as (connection, rolled_back):
        run = await app.start(workflow, input, connection=connection, **options)
        if rolled_back:
            ledger.unwanted(run.id)
    if not rolled_back:
        ledger.started(run.id, workflow, None)


# -- senders -------------------------------------------------------------------------------------------------------


class Sender:
    """Sends signals one after the other, each to the end of the chain that a run has become."""

    def __init__(self, app: Stepfast, ledger: Ledger, name: str, within: float = 0.1) -> None:
        self._app = app
        self._ledger = ledger
        self._name = name
        self._within = within
        """How often a signal is part of a transaction, which may be rolled back."""
        self._number = 0
        self._goes_on_as: dict[str, str] = {}

    async def send(self, run_id: str, name: str) -> bool:
        """One signal; False, if the run has ended."""
        while run_id in self._goes_on_as:
            run_id = self._goes_on_as[run_id]
        try:
            if random.random() < self._within:
                await self._send_within(run_id, name)
            else:
                nonce = self._next(run_id, name)
                await self._app.signal(run_id, name, nonce)
                self._ledger.signalled(nonce)
        except TROUBLE:
            return True
        except InvalidState:
            return await self._follow(run_id)
        return True

    async def _send_within(self, run_id: str, name: str) -> None:
        """As part of a transaction. If that is rolled back, nobody may ever hear of it: then it is not written down."""
        async with own_transaction(self._app) as (connection, rolled_back):
            nonce = f"rolled back {secrets.token_hex(8)}" if rolled_back else self._next(run_id, name)
            await self._app.signal(run_id, name, nonce, connection=connection)
        if not rolled_back:
            self._ledger.signalled(nonce)

    def _next(self, run_id: str, name: str) -> str:
        self._number += 1
        return self._ledger.signal(run_id, name, self._name, self._number)

    async def _follow(self, run_id: str) -> bool:
        """Whether the run goes on as another."""
        try:
            info = await self._app.get(run_id).info()
        except TROUBLE:
            return True
        if info.reason == "continued":
            self._goes_on_as[run_id] = info.output
        return info.reason == "continued"


async def keep_signalling(app: Stepfast, ledger: Ledger, name: str, pause: float = 0.03) -> None:
    """Send signals to runs that listen, as long as there are any."""
    sender, deaf = Sender(app, ledger, name), set()
    while True:
        listeners = [s for s in ledger.starts() if s.workflow in LISTENERS and s.run not in deaf][-60:]
        for start in random.sample(listeners, min(8, len(listeners))):
            if not await sender.send(start.run, random.choice(LISTENERS[start.workflow])):
                deaf.add(start.run)
            await asyncio.sleep(random.random() * pause)
        await asyncio.sleep(pause)


# -- operators -----------------------------------------------------------------------------------------------------


async def wish(app: Stepfast, ledger: Ledger, run_id: str, what: str) -> None:
    """Ask for something, and write down what was said."""
    run, at = app.get(run_id), now()
    granted: bool | None = None
    try:
        await getattr(run, what)()
        granted = True
    except InvalidState:
        granted = False
    except TROUBLE:
        pass
    finally:  # also when the storm is over before the answer
        ledger.wish(run_id, what, granted, at)


async def keep_meddling(app: Stepfast, ledger: Ledger, unfinished: Any, pause: float = 0.1) -> None:
    """Cancel some runs, pause and resume others. ``unfinished`` tells of runs that have not ended, children too."""
    while True:
        for run_id in await unfinished():
            what = random.choices(("cancel", "pause", "resume"), (2, 5, 5))[0]
            await wish(app, ledger, run_id, what)
            if what == "pause" and random.random() < 0.5:
                await asyncio.sleep(random.random() * 0.2)
                await wish(app, ledger, run_id, "resume")
        await asyncio.sleep(random.random() * 2 * pause)
