"""A second pair of eyes inside the database: triggers that log every change of a run and every record, in the same
transaction, with the claim that the run had at that moment. And the reading of all rows when a storm is over.

The triggers belong to the tests and are made after the tables; the product knows nothing of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import asyncpg

from stepfast.cancellation import raise_if_cancelled, requests
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.transactions import run
from tests.judge.evidence import Evidence, Letter, Move, Row, Run, Step, Try, Write

_MOVE = ("run", "claim", "old_claim", "status", "old_status", "worker", "old_worker", "attempt", "old_attempt",
         "losses", "old_losses", "due", "wakes", "ends", "asked")  # fmt: skip
_WRITE = ("what", "run", "position", "claim", "run_claim", "value", "branch", "kind", "status", "old_status")

POSTGRES = """
CREATE SCHEMA audit;
CREATE TABLE audit.moves (
    n bigserial PRIMARY KEY, at bigint, run text, claim integer, old_claim integer, status text, old_status text,
    worker text, old_worker text, attempt integer, old_attempt integer, losses integer, old_losses integer, due bigint,
    wakes integer, ends integer, asked text);
CREATE TABLE audit.writes (
    n bigserial PRIMARY KEY, at bigint, what text, run text, position integer, claim integer, run_claim integer,
    value text, branch text, kind text, status text, old_status text);
CREATE TABLE audit.workers (id text PRIMARY KEY, pid integer);
CREATE TABLE audit.rows (n bigserial PRIMARY KEY, run text, branch text, position integer, nonce text);

CREATE FUNCTION audit.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

CREATE FUNCTION audit.run_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO audit.moves (at, run, claim, old_claim, status, old_status, attempt, old_attempt, losses,
                                 old_losses, due, wakes, ends)
        VALUES (audit.clock(), NEW.id, 0, 0, NEW.status, '', 0, 0, 0, 0,
                CASE WHEN NEW.place IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes, NEW.ends);
    ELSE
        INSERT INTO audit.moves (at, run, claim, old_claim, status, old_status, worker, old_worker, attempt,
                                 old_attempt, losses, old_losses, due, wakes, ends, asked)
        VALUES (audit.clock(), NEW.id, NEW.claim, OLD.claim, NEW.status, OLD.status, NEW.worker, OLD.worker,
                NEW.attempt, OLD.attempt, NEW.losses, OLD.losses,
                CASE WHEN NEW.place IS NULL AND NEW.worker IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes,
                NEW.ends, NEW.asked);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON stepfast.runs FOR EACH ROW EXECUTE FUNCTION audit.run_changed();

CREATE FUNCTION audit.recorded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE record stepfast.steps;
BEGIN
    record := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO audit.writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    SELECT audit.clock(), CASE TG_OP WHEN 'INSERT' THEN 'step+' WHEN 'DELETE' THEN 'step-' ELSE 'step~' END,
           record.run_id, record.position, record.claim,
           (SELECT claim FROM stepfast.runs WHERE id = record.run_id), record.output, record.branch, record.kind,
           record.status, CASE WHEN TG_OP = 'UPDATE' THEN OLD.status END;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OF claim, seq, name, kind, status, output, error OR DELETE ON stepfast.steps
FOR EACH ROW EXECUTE FUNCTION audit.recorded();

CREATE FUNCTION audit.tried() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.writes (at, what, run, position, claim, run_claim, branch, kind, status)
    SELECT audit.clock(), 'try+', NEW.run_id, NEW.position, NEW.claim,
           (SELECT claim FROM stepfast.runs WHERE id = NEW.run_id), NEW.branch, 'try', 'failed';
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT ON stepfast.tries FOR EACH ROW EXECUTE FUNCTION audit.tried();

CREATE FUNCTION audit.registered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.workers VALUES (NEW.id, NEW.pid) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT ON stepfast.workers FOR EACH ROW EXECUTE FUNCTION audit.registered();
"""

_CLOCK = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
SQLITE = f"""
CREATE TABLE audit_moves (
    n INTEGER PRIMARY KEY, at, run, claim, old_claim, status, old_status, worker, old_worker, attempt, old_attempt,
    losses, old_losses, due, wakes, ends, asked);
CREATE TABLE audit_writes (
    n INTEGER PRIMARY KEY, at, what, run, position, claim, run_claim, value, branch, kind, status, old_status);
CREATE TABLE audit_workers (id PRIMARY KEY, pid);
CREATE TABLE audit_rows (n INTEGER PRIMARY KEY, run, branch, position, nonce);
CREATE TRIGGER audit_born AFTER INSERT ON stepfast_runs BEGIN
    INSERT INTO audit_moves (at, run, claim, old_claim, status, old_status, attempt, old_attempt, losses, old_losses,
                             due, wakes, ends)
    VALUES ({_CLOCK}, NEW.id, 0, 0, NEW.status, '', 0, 0, 0, 0,
            CASE WHEN NEW.place IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes, NEW.ends);
END;
CREATE TRIGGER audit_moved AFTER UPDATE ON stepfast_runs BEGIN
    INSERT INTO audit_moves (at, run, claim, old_claim, status, old_status, worker, old_worker, attempt, old_attempt,
                             losses, old_losses, due, wakes, ends, asked)
    VALUES ({_CLOCK}, NEW.id, NEW.claim, OLD.claim, NEW.status, OLD.status, NEW.worker, OLD.worker, NEW.attempt,
            OLD.attempt, NEW.losses, OLD.losses,
            CASE WHEN NEW.place IS NULL AND NEW.worker IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes,
            NEW.ends, NEW.asked);
END;
CREATE TRIGGER audit_recorded AFTER INSERT ON stepfast_steps BEGIN
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    VALUES ({_CLOCK}, 'step+', NEW.run_id, NEW.position, NEW.claim,
            (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.output, NEW.branch, NEW.kind,
            NEW.status, NULL);
END;
CREATE TRIGGER audit_changed AFTER UPDATE OF claim, seq, name, kind, status, output, error ON stepfast_steps BEGIN
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    VALUES ({_CLOCK}, 'step~', NEW.run_id, NEW.position, NEW.claim,
            (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.output, NEW.branch, NEW.kind,
            NEW.status, OLD.status);
END;
CREATE TRIGGER audit_forgotten AFTER DELETE ON stepfast_steps BEGIN
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    VALUES ({_CLOCK}, 'step-', OLD.run_id, OLD.position, OLD.claim,
            (SELECT claim FROM stepfast_runs WHERE id = OLD.run_id), OLD.output, OLD.branch, OLD.kind,
            OLD.status, NULL);
END;
CREATE TRIGGER audit_tried AFTER INSERT ON stepfast_tries BEGIN
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, branch, kind, status)
    VALUES ({_CLOCK}, 'try+', NEW.run_id, NEW.position, NEW.claim,
            (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.branch, 'try', 'failed');
END;
CREATE TRIGGER audit_registered AFTER INSERT ON stepfast_workers BEGIN
    INSERT OR IGNORE INTO audit_workers VALUES (NEW.id, NEW.pid);
END;
"""


_MICROSECONDS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6))"


def _differs(*names: str) -> str:
    """Whether an UPDATE has changed one of these columns. An INSERT that finds its key taken fires the triggers of an
    UPDATE there, and has changed nothing."""
    return f"NOT ({' AND '.join(f'NEW.{name} <=> OLD.{name}' for name in names)})"


_MOVED = _differs("claim", "status", "worker", "attempt", "losses", "place", "visible_at", "wakes", "ends", "asked")
_CHANGED = _differs("claim", "seq", "name", "kind", "status", "output", "error")
# Triggers insert VALUES: an INSERT … SELECT keeps the counter of the table locked until the statement has ended that
# fired them, and two statements would wait for each other.
MARIADB = f"""
CREATE TABLE audit_moves (
    n bigint AUTO_INCREMENT PRIMARY KEY, at bigint, run text, claim integer, old_claim integer, status text,
    old_status text, worker text, old_worker text, attempt integer, old_attempt integer, losses integer,
    old_losses integer, due bigint, wakes integer, ends integer, asked text)

CREATE TABLE audit_writes (
    n bigint AUTO_INCREMENT PRIMARY KEY, at bigint, what text, run text, position integer, claim integer,
    run_claim integer, value longtext, branch text, kind text, status text, old_status text)

CREATE TABLE audit_workers (id char(36) PRIMARY KEY, pid integer)

CREATE TABLE audit_rows (
    n bigint AUTO_INCREMENT PRIMARY KEY, run text, branch text, position integer, nonce text)

CREATE TRIGGER audit_born AFTER INSERT ON stepfast_runs FOR EACH ROW
    INSERT INTO audit_moves (at, run, claim, old_claim, status, old_status, attempt, old_attempt, losses, old_losses,
                             due, wakes, ends)
    VALUES ({_MICROSECONDS}, NEW.id, 0, 0, NEW.status, '', 0, 0, 0, 0,
            CASE WHEN NEW.place IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes, NEW.ends)

CREATE TRIGGER audit_moved AFTER UPDATE ON stepfast_runs FOR EACH ROW
    IF {_MOVED} THEN
        INSERT INTO audit_moves (at, run, claim, old_claim, status, old_status, worker, old_worker, attempt,
                                 old_attempt, losses, old_losses, due, wakes, ends, asked)
        VALUES ({_MICROSECONDS}, NEW.id, NEW.claim, OLD.claim, NEW.status, OLD.status, NEW.worker, OLD.worker,
                NEW.attempt, OLD.attempt, NEW.losses, OLD.losses,
                CASE WHEN NEW.place IS NULL AND NEW.worker IS NULL THEN NEW.visible_at * 1000 END, NEW.wakes,
                NEW.ends, NEW.asked);
    END IF

CREATE TRIGGER audit_recorded AFTER INSERT ON stepfast_steps FOR EACH ROW
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    VALUES ({_MICROSECONDS}, 'step+', NEW.run_id, NEW.position, NEW.claim,
            (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.output, NEW.branch, NEW.kind, NEW.status, NULL)

CREATE TRIGGER audit_changed AFTER UPDATE ON stepfast_steps FOR EACH ROW
    IF {_CHANGED} THEN
        INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
        VALUES ({_MICROSECONDS}, 'step~', NEW.run_id, NEW.position, NEW.claim,
                (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.output, NEW.branch, NEW.kind, NEW.status,
                OLD.status);
    END IF

CREATE TRIGGER audit_forgotten AFTER DELETE ON stepfast_steps FOR EACH ROW
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, value, branch, kind, status, old_status)
    VALUES ({_MICROSECONDS}, 'step-', OLD.run_id, OLD.position, OLD.claim,
            (SELECT claim FROM stepfast_runs WHERE id = OLD.run_id), OLD.output, OLD.branch, OLD.kind, OLD.status, NULL)

CREATE TRIGGER audit_tried AFTER INSERT ON stepfast_tries FOR EACH ROW
    INSERT INTO audit_writes (at, what, run, position, claim, run_claim, branch, kind, status)
    VALUES ({_MICROSECONDS}, 'try+', NEW.run_id, NEW.position, NEW.claim,
            (SELECT claim FROM stepfast_runs WHERE id = NEW.run_id), NEW.branch, 'try', 'failed')

CREATE TRIGGER audit_registered AFTER INSERT ON stepfast_workers FOR EACH ROW
    INSERT IGNORE INTO audit_workers VALUES (NEW.id, NEW.pid)
"""


class Database:
    """The database of a storm, looked at past the product."""

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self.kind = self._url.kind
        self.is_postgres = self.kind == "postgres"
        self.order = "n"
        """How what the triggers wrote is ordered."""

    async def watch(self) -> None:
        """Make the triggers; the tables must be there."""
        if self.kind == "mysql":
            for statement in MARIADB.strip().split("\n\n"):
                await self._fetch_mysql(statement)
            return
        await self.execute(POSTGRES if self.is_postgres else SQLITE)

    async def execute(self, script: str) -> None:
        """Statements without parameters or results."""
        if not self.is_postgres:
            with contextlib.closing(self._open()) as database:
                database.executescript(script)
            return
        connection = await asyncpg.connect(self._url.text)
        try:
            await connection.execute(script)
        finally:
            await connection.close()

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows. ``[runs]`` stands for a table of the product, ``{moves}`` for one of the audit's."""
        dots = '"stepfast".', "audit."
        if not self.is_postgres:
            dots = "stepfast_", "audit_"
        text = sql.replace("[", dots[0]).replace("]", "").replace("{", dots[1]).replace("}", "")
        if self.kind == "mysql":
            return await self._fetch_mysql(re.sub(r"\b(key|undo)\b", r"`\1`", text).replace("random()", "rand()"))
        if not self.is_postgres:
            database = self._open()
            try:
                return database.execute(text).fetchall()
            finally:
                database.close()
        async with asyncio.timeout(20):  # a session that is terminated under our hands may never answer
            connection = await self._connected()
            try:
                return [tuple(row) for row in await connection.fetch(text)]
            finally:
                connection.terminate()

    async def _fetch_mysql(self, sql: str) -> list[tuple[Any, ...]]:
        before = requests()
        connection = await Connector(self._url, Settings()).connect()
        try:
            return await run(connection, sql)
        finally:
            connection.close()
            raise_if_cancelled(before)  # before Python 3.12 the driver may swallow it

    async def _connected(self) -> Any:
        """A session of the server, which may just have been killed and be starting up."""
        while True:
            try:
                return await asyncpg.connect(self._url.text)
            except asyncpg.CannotConnectNowError:
                await asyncio.sleep(0.05)

    async def collect(self, evidence: Evidence) -> None:
        """Put every row into the evidence."""
        evidence.runs = [
            _run(row)
            for row in await self.fetch(
                "SELECT id, workflow, status, reason, key, output, claim, "
                "worker IS NOT NULL OR place IS NOT NULL OR visible_at IS NOT NULL, parent_id, parent_branch, "
                "parent_position, origin_id, input, error FROM [runs]"
            )
        ]
        evidence.steps = [
            Step(str(row[0]), *row[1:])
            for row in await self.fetch(
                "SELECT run_id, position, name, claim, seq, status, output, completed_at * 1000, branch, kind, undo "
                "FROM [steps]"
            )
        ]
        evidence.tries = [  # an error begins with a brace, which stands for a schema here
            Try(str(row[0]), *row[1:])
            for row in await self.fetch(
                "SELECT run_id, position, claim, attempt, number, completed_at * 1000, branch, "
                """COALESCE(error LIKE '_"type":"StepTimeout"%', false), """
                """COALESCE(error LIKE '_"type":"WaitTimeout"%', false) FROM [tries]"""
            )
        ]
        evidence.rows = [
            Row(*row) for row in await self.fetch("SELECT run, branch, position, nonce FROM {rows} ORDER BY n")
        ]
        evidence.letters = [
            Letter(str(row[0]), *row[1:]) for row in await self.fetch("SELECT run_id, kind, name, value FROM [mailbox]")
        ]
        evidence.values = {
            (str(run_id), key): value
            for run_id, key, value in await self.fetch("SELECT run_id, key, value FROM [run_values]")
        }
        tables = ("progress", "run_tags", "mailbox", "run_values")
        evidence.others = [
            (table, str(run_id)) for table in tables for (run_id,) in await self.fetch(f"SELECT run_id FROM [{table}]")
        ]
        columns = ", ".join(_MOVE)
        evidence.moves = [
            Move(row[0], **dict(zip(_MOVE, row[1:], strict=True)))
            for row in await self.fetch(f"SELECT at, {columns} FROM {{moves}} ORDER BY {self.order}")
        ]
        columns = ", ".join(_WRITE)
        evidence.writes = [
            Write(*row) for row in await self.fetch(f"SELECT at, {columns} FROM {{writes}} ORDER BY {self.order}")
        ]
        evidence.workers = dict(await self.fetch("SELECT id, pid FROM {workers}"))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(str(self._url.path), timeout=30, isolation_level=None)


def _run(row: Sequence[Any]) -> Run:
    """Ids are text on one database, and of a class of their own on the other."""
    run_id, workflow, status, reason, key, output, claim, held, parent, branch, position, origin, given, error = row
    return Run(
        str(run_id), workflow, status, reason, key, output, claim, bool(held), _text(parent), branch, position,
        _text(origin), given, error,
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
