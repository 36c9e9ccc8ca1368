"""SqliteStore: the store's protocol over one file. Claims, flushes, sweeps and threads have files of their own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...model.records import (
    NO_CALL,
    NO_DOUBTS,
    ActivityRow,
    Asked,
    Batch,
    Beat,
    CallKey,
    Claimed,
    DagOutputs,
    Definition,
    FlushAnswer,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    NodeRow,
    Outcome,
    ProgressRow,
    RunRow,
    StepDone,
    StepRecord,
    Tick,
    WorkerInfo,
)
from ...model.tally import Believer
from ...model.url import DatabaseUrl
from ...settings import Settings
from ..breaks import Breaks
from ..flows.columns import standing_columns
from ..flows.mailing import deliver, send
from ..flows.operating import cancel_run, pause_run, resume_run, retry_run
from ..flows.requests import Flow
from ..flows.sweeping import give_back_held, promote, reap, unregister
from ..migrations import migrations, refuse_too_new
from ..protocol import NOTHING, Check, Delivery, Promotion, Reaping, SchemaState, Transacted, Wakeups
from ..statements import OLDEST, load_all
from . import graph_reading, health, mailing, sweeping, within
from .claiming import Claims
from .connections import connect, turn_to_wal
from .driving import drive
from .flushing import flush
from .guard import GuardedConnection
from .jobs import T, Work
from .listening import LOOK, Bell
from .pulse import SqlitePulse
from .reading import page_statement, run_row, worker_info
from .schema import Schema
from .starting import start
from .threads import ConnectionThread, Reader
from .transacting import Undone, transact
from .troubles import Troubles, closed
from .writer import Writer

_PACKAGE = __package__ or ""
_FILES = ("runs.sql", "work.sql", "standings.sql", "waiting.sql", "graphs.sql", "schema.sql")
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"
"""Milliseconds, rounded: the fraction of a day is not exact, and cut off it is a millisecond early every other time."""


_SIZE = "octet_length" if sqlite3.sqlite_version_info >= (3, 43) else "length"
"""How large a payload is. The newer function does not read it for that."""


_LARGE = 64 * 1024
"""A payload above this is read by itself instead of in one text with many others, which SQLite bounds at 1e9 bytes."""


class SqliteStore:
    """One namespace (a table prefix) of one SQLite file, or of a database in memory."""

    dialect = "sqlite"
    can_wake = True

    def __init__(self, url: DatabaseUrl, namespace: str, settings: Settings) -> None:
        self.breaks = Breaks()
        self._path = url.path
        self._ours = f"{namespace}_meta"
        self._settings = settings
        self._troubles = Troubles(url.path, namespace, settings.command_timeout)
        words = {"prefix": f"{namespace}_", "now": _NOW, "size": _SIZE, "large": str(_LARGE)}
        words |= {"listed": str(settings.listed_payload), "standing": standing_columns()}
        self._sql = load_all(_PACKAGE, _FILES, words)
        self._schema = Schema(migrations(_PACKAGE, words), self._sql)
        self._claims = Claims(self._sql, settings)
        self._bell = Bell()
        self._writer: Writer | None = None
        self._reader: ConnectionThread | None = None
        self._opening = threading.Lock()

    # -- opening and the schema -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect the writer and, for a file, a reader beside it. In memory there is but one connection. Several event
        loops may do so at once: the first begins, and all of them wait."""
        with self._opening:
            if self._writer is None or self._reader is None:
                self._writer, self._reader = self._threads()
            writer, reader = self._writer, self._reader
        try:
            await asyncio.wrap_future(writer.connected)
            await asyncio.wrap_future(reader.connected)
        except Exception:
            if self._writer is writer:
                self.drop()  # whoever comes next begins anew
            raise

    def _threads(self) -> tuple[Writer, ConnectionThread]:
        """Both begin at once; the reader looks at the file when the writer has."""
        patience, path, ours = self._settings.command_timeout, self._path, self._ours
        writer = Writer(
            "stepfast-sqlite-writer",
            lambda: connect(path, patience, ours=ours, factory=GuardedConnection),
            self._troubles,
            patience,
            watched=lambda: path is not None and self._bell.heard,
            others_wrote=self._bell.ring,
        )

        def connect_reader() -> sqlite3.Connection:
            writer.connected.result()
            return connect(path, patience, ours=ours, read_only=True)

        writer.start()
        if path is None:
            return writer, writer
        reader = Reader("stepfast-sqlite-reader", connect_reader, self._troubles, patience)
        reader.start()
        return writer, reader

    async def close(self) -> None:
        """Finish what waits. The threads do so by themselves, also if nobody waits for them any more."""
        writer = self._writer
        self.drop()
        if writer is not None:
            await asyncio.wrap_future(writer.ended)

    def drop(self) -> None:
        """The same without waiting. The writer goes last, and tidies the write-ahead log away."""
        with self._opening:
            writer, reader = self._writer, self._reader
            self._writer = self._reader = None
        if reader is not None:
            reader.finish()
        if writer is not None and reader is not None and reader is not writer:
            reader.ended.add_done_callback(lambda _: writer.finish())

    async def schema_state(self) -> SchemaState:
        """Where the tables stand."""
        return await self._read(self._schema.state)

    async def migrate(self) -> list[str]:
        """Bring the tables up to date; a glance first, so that a process that finds nothing to do takes no lock."""
        state = await self.schema_state()
        refuse_too_new(state)
        if not state.pending:
            return []
        try:
            await asyncio.to_thread(turn_to_wal, self._path, self._settings.command_timeout)
        except sqlite3.Error as error:
            raise self._troubles.explain(error) from None
        return await self._write(self._schema.migrate)

    def migration_sql(self) -> str:
        """The same as a script."""
        return self._schema.script()

    async def reset(self) -> None:
        """Drop everything of this namespace."""
        await self._write(self._schema.drop)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return self._schema.names()

    async def doctor(self) -> list[Check]:
        """Look at the library, the file and the clock."""
        return await self._read(lambda database: health.checks(database, self._path, self._sql["now"]))

    # -- definitions and starts -----------------------------------------------------------------------------

    async def put_definitions(self, definitions: Sequence[Definition]) -> None:
        """Store what the code declares."""
        rows = [(d.name, d.version, d.kind, d.queue, d.options, d.input_schema, d.graph) for d in definitions]
        await self._write(lambda database: _nothing(database.executemany(self._sql["put_definition"], rows)))

    async def definitions(self) -> list[Definition]:
        """The current definition of each workflow."""
        return [Definition(*row) for row in await self._fetch("definitions")]

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """All or none: a job that fails is rolled back to its savepoint."""
        return await self._write(lambda database: start(database, self._sql, runs))

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """The same on the caller's connection, in the caller's thread."""
        return await within.start_within(connection, self._sql, runs, self._troubles)

    async def send_within(self, connection: Any, mail: Mail) -> Asked:
        """A signal on the caller's connection, to be delivered after the commit."""
        return await within.send_within(connection, self._sql, mail, self._troubles, self._settings.max_signals)

    # -- reading --------------------------------------------------------------------------------------------

    async def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        """Those of the runs that have ended. One job for all, so that asking for many costs one hop."""
        statement = self._sql["outcome"]

        def look(database: sqlite3.Connection) -> list[Outcome]:
            return [Outcome(*row) for run_id in ids for row in database.execute(statement, (run_id,)).fetchall()]

        return await self._read(look)

    async def heir(self, run_id: str) -> str:
        """The last of the runs that one went on as; itself, if it did not."""
        rows = await self._fetch("heir", run_id)
        return str(rows[0][0]) if rows else run_id

    async def run(self, run_id: str) -> RunRow | None:
        """One run."""
        rows = await self._fetch("run", run_id)
        return run_row(rows[0]) if rows else None

    async def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        key: str | None = None,
        before: str | None = None,
        limit: int = 50,
        since_ms: int | None = None,
        older_ms: int | None = None,
        oldest_first: bool = False,
    ) -> list[RunRow]:
        """A page of runs."""
        filters = {
            "workflow": workflow,
            "status": status,
            "queue": queue,
            "tag": tag,
            "reason": reason,
            "key": key,
            "before": before,
            "limit": limit,
            "since": since_ms,
            "older": older_ms,
        }
        statement = self._sql[OLDEST * oldest_first + page_statement(tag, status, workflow)]
        rows: list[Any] = await self._read(lambda database: database.execute(statement, filters).fetchall())
        return [run_row(row) for row in rows]

    async def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """Ids of runs from the one to the other."""
        return [row[0] for row in await self._fetch("ids_between", first, last, limit)]

    async def unread(self, run_id: str, limit: int = 20) -> list[tuple[str, int]]:
        """Signals that a run has not taken."""
        return [(row[0], row[1]) for row in await self._fetch("unread", run_id, limit)]

    async def awaited(self, run_id: str, signal: str) -> list[str | None]:
        """The plans of open waits for a signal."""
        return [row[0] for row in await self._fetch("awaited", run_id, signal)]

    async def steps(self, run_id: str, after: tuple[str, int] = ("", -1), limit: int = 1000) -> list[StepRecord]:
        """A page of recorded outcomes."""
        return [StepRecord(*row) for row in await self._fetch("steps", run_id, *after, limit)]

    async def progress(self, run_id: str) -> list[ProgressRow]:
        """What is under way."""
        return [ProgressRow(*row) for row in await self._fetch("progress", run_id)]

    async def activity(self, run_id: str, after: CallKey = NO_CALL, limit: int = 10_000) -> list[ActivityRow]:
        """A page of calls."""
        return [ActivityRow(*row) for row in await self._fetch("activity", run_id, *after, limit)]

    async def workers(self) -> list[WorkerInfo]:
        """Every worker."""
        return [worker_info(row) for row in await self._fetch("workers")]

    async def suspects(self) -> list[tuple[str, str, int]]:
        """How many runs that workers have died with stand in line."""
        return [tuple(row) for row in await self._fetch("count_suspects")]

    async def nodes(self, dag_id: str) -> list[NodeRow]:
        """The steps of a dag run."""
        return await self._read(lambda database: graph_reading.nodes(database, self._sql, dag_id))

    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """What the steps of dag runs see."""
        return await self._read(lambda database: graph_reading.dag_outputs(database, self._sql, wanted))

    async def graph(self, name: str, version: str, dag_id: str) -> str | None:
        """The stored graph of a dag in a version, or the copy that this run of it brought along."""
        [(text,)] = await self._fetch("graph", name, version, dag_id)
        return None if text is None else str(text)

    async def value(self, run_id: str, key: str) -> tuple[str, int] | None:
        """A value that the run lets others read."""
        rows = await self._fetch("value", run_id, key)
        return tuple(rows[0]) if rows else None

    async def values(self, run_id: str) -> list[tuple[str, str, int]]:
        """All of them, by key."""
        return [tuple(row) for row in await self._fetch("values", run_id)]

    async def seed(self, run_id: str) -> str | None:
        """The secret of a run."""
        rows = await self._fetch("seed", run_id)
        return rows[0][0] if rows else None

    # -- operators and senders ------------------------------------------------------------------------------

    async def retry(self, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again."""
        return await self._drive(retry_run, run_id)

    async def send(self, mail: Mail, again: bool = False) -> Asked:
        """Put a signal into a run's mailbox and wake the run."""
        return await self._drive(send, mail, again, self._settings.max_signals)

    async def cancel(self, run_id: str) -> Asked:
        """End a run, begin its undoing, or mark it."""
        return await self._drive(cancel_run, run_id)

    async def pause(self, run_id: str) -> Asked:
        """Hold a run, or mark it."""
        return await self._drive(pause_run, run_id)

    async def resume(self, run_id: str) -> Asked:
        """Let a held run go on."""
        return await self._drive(resume_run, run_id)

    # -- workers --------------------------------------------------------------------------------------------

    async def register(self, worker: WorkerInfo) -> None:
        """A worker comes to life."""
        queues = None if worker.queues is None else msgspec.json.encode(worker.queues).decode()
        workflows = msgspec.json.encode(worker.workflows).decode()
        lease = worker.lease_ms
        await self._execute(
            "register",
            worker.id,
            worker.host,
            worker.pid,
            queues,
            workflows,
            worker.concurrency,
            lease,
            msgspec.json.encode(worker.modules).decode(),
            worker.process,
            lease,
        )

    async def worker_state(self, worker: str, state: str) -> None:
        """A worker says it is stopping."""
        await self._execute("worker_state", state, worker)

    async def unregister(self, worker: str) -> None:
        """A worker leaves in good order; what still names it goes back in line."""
        await self._drive(unregister, worker)

    def pulse(self, patience: float = 10.0) -> SqlitePulse:
        """A heartbeat for a thread of its own."""
        if self._writer is None:
            raise closed()
        return SqlitePulse(self._writer, self._sql, patience)

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        remembered: Mapping[str, int] = NOTHING,
    ) -> list[Claimed]:
        """Ready runs of these lanes."""
        return await self._write(
            lambda database: self._claims.claim(database, worker, token, lanes, versions, limit, remembered)
        )

    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with."""
        return await self._write(
            lambda database: self._claims.claim_suspects(database, worker, token, versions, queues, room)
        )

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal."""
        return await self._write(lambda database: flush(database, self._sql, worker, batch))

    async def transact(
        self, worker: str, run_id: str, claim: int, place: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, doubts: Mapping[str, Believer] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """Call a function in the writer's transaction. What it raises is raised here as it is, and outside of any
        ``except``, so that nothing is added to it. There are no doubts: a file loses no commits."""
        try:
            return await self._write(
                lambda db: transact(db, self._sql, worker, run_id, claim, place, call, record, timeout)
            )
        except Undone as undone:
            cause = undone.cause
        raise cause

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """A look into the mailboxes of these runs."""
        return await self._read(lambda database: mailing.mail(database, self._sql, looks, self._settings.mail_bytes))

    async def deliver(self, limit: int) -> Delivery:
        """Take mail that was only inserted to its runs."""
        return await self._drive(deliver, limit)

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Put runs back in line at once."""
        await self._drive(give_back_held, worker, held)

    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None
    ) -> Tick:
        """Which duties have work?"""
        return await self._read(
            lambda database: sweeping.tick(database, self._sql, self._claims, workflows, lanes, queues)
        )

    async def promote(self, limit: int) -> Promotion:
        """Make due sleepers ready; end what expired."""
        return await self._drive(promote, limit)

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers."""
        return await self._read(lambda database: sweeping.beats(database, self._sql, worker))

    async def expire(self, workers: Sequence[str]) -> None:
        """The leases of these workers are over."""
        await self._execute("expire", msgspec.json.encode(list(workers)).decode())

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None) -> Reaping:
        """Bury dead workers, and give back what they held."""
        return await self._drive(reap, worker, limit, max_losses, silent)

    # -- wake-ups -------------------------------------------------------------------------------------------

    async def notify(self, wakeups: Wakeups) -> None:
        """Tell the other event loops of this process. The commit itself is what the writers of other processes look
        for."""
        self._bell.tell(wakeups)

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Pass on what is heard, until cancelled."""
        ticket = self._bell.add(heard)
        try:
            await self._write(lambda database: None)  # the writer begins to look around once it knows of a listener
            heard(LOOK)
            await asyncio.Event().wait()
        finally:
            self._bell.remove(ticket)

    # -- plumbing -------------------------------------------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        if self._writer is None:
            raise closed()
        return await self._writer.do(work)

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """A flow is made when it begins: a job may have to begin again."""
        return await self._write(lambda database: drive(database, self._sql, flow(*arguments)))

    async def _read(self, work: Work[T]) -> T:
        if self._reader is None:
            raise closed()
        return await self._reader.do(work)

    async def _execute(self, name: str, *arguments: Any) -> None:
        await self._write(lambda database: _nothing(database.execute(self._sql[name], arguments)))

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        return await self._read(lambda database: database.execute(self._sql[name], arguments).fetchall())


def _nothing(_: object) -> None:
    """For statements that bring nothing back."""
