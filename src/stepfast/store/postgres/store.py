"""PostgresStore: the store's protocol over asyncpg. Every duty has a file of its own; here they are put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg
import msgspec

from ...cancellation import insist, requests
from ...errors import AppClosed, ConfigurationError
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
from ...model.tags import read_tags
from ...model.tally import Believer
from ...model.url import DatabaseUrl
from ...settings import Settings
from ..flows.columns import standing_columns
from ..flows.operating import cancel_run, pause_run, resume_run, retry_run
from ..flows.requests import Flow, T
from ..flows.sweeping import unregister
from ..migrations import migrations
from ..protocol import NOTHING, Check, Delivery, Promotion, Reaping, SchemaState, Transacted, Wakeups
from ..statements import OLDEST, load_all
from .arrays import know_arrays
from .callers import Callers
from .catalogue import qualify
from .claiming import Claims
from .connections import DUTIES, Connector, Line, connect_error
from .continuity import Continuity
from .driving import Driver
from .flushing import Flusher
from .graph_reading import GraphReader
from .held_keys import HeldKeys
from .listening import Listener, encode_wakeups
from .mailing import Mailroom
from .pulse import PostgresPulse
from .schema import Schema
from .server_errors import translate
from .starting import Starts
from .sweeping import Sweeps
from .transacting import Transactions
from .transactions import PATIENCE, borrowed, close_pool, transaction

_PACKAGE = __package__ or ""
_EPOCH = "extract(epoch FROM clock_timestamp())::double precision"
_NOW = f"({_EPOCH} * 1000::double precision)::bigint"
_PLACE = f"({_EPOCH} * 1000000::double precision)::bigint"
"""Where a run that becomes ready now stands in line: in microseconds, so that starts in a row keep their order."""

_SERVER = "(extract(epoch FROM pg_postmaster_start_time())::double precision * 1000000::double precision)::bigint"
"""When the server was started: another time is another server, or the same one after a crash."""

FILES = (
    "runs.sql",
    "graphs.sql",
    "work.sql",
    "standings.sql",
    "mail.sql",
    "transact.sql",
    "schema.sql",
)
_AS_TEXT = {name: f"r.{name}::text" for name in ("id", "worker", "dag_id")}
"""The ids of a standing."""


class PostgresStore:
    """One namespace (a schema) of one Postgres database."""

    dialect = "postgres"

    def __init__(self, url: DatabaseUrl, namespace: str, settings: Settings, pool: Any = None) -> None:
        self._settings = settings
        words = {"schema": f'"{namespace}"', "now": _NOW, "place": _PLACE, "server": _SERVER}
        words |= {"listed": str(settings.listed_payload), "standing": standing_columns(_AS_TEXT)}
        self._sql = {name: qualify(text) for name, text in load_all(_PACKAGE, FILES, words).items()}
        self._channel = f"stepfast_{namespace}"
        continuity = Continuity()
        self.breaks = continuity.breaks
        self._connector = Connector(url, settings, pool)
        self._url = url.text
        self._pool: Any = pool
        self._owns_pool = pool is None
        known = [migration._replace(text=qualify(migration.text)) for migration in migrations(_PACKAGE, words)]
        self._schema = Schema(words["schema"], known, self._sql)
        self._listener = Listener(self._connector, self._channel, settings.outage_backoff_max)
        lines = self._lines = {duty: Line(self._connector, continuity) for duty in DUTIES}
        callers = self._callers = Callers(self._sql["identity"], self._first_row)
        held = HeldKeys(self._with_connection, settings)
        self._starts = Starts(lines, held, self._sql, settings.start_batch, callers)
        driver = self._driver = Driver(self._sql, self._starts)
        self._flusher = Flusher(lines["flush"], self._sql, self._starts, driver, continuity)
        self._claims = Claims(lines["claim"], self._sql, settings)
        self._sweeps = Sweeps(lines["sweep"], self._sql, driver, continuity)
        self._mailroom = Mailroom(lines["mail"], lines["sweep"], self._sql, driver, callers, settings)
        self._graphs = GraphReader(lines["mail"], self._sql)
        self._transactions = Transactions(self._connector, self._sql, settings, len(DUTIES) + 1, continuity)

    @property
    def can_wake(self) -> bool:
        """Whether a notification has arrived here."""
        return self._listener.works

    # -- opening and the schema ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the pool; the first connection tells what is wrong, if anything is."""
        for line in self._lines.values():
            line.closed = False
        if self._pool is not None:
            self._check_pool()
            return
        options = await self._connector.options()
        try:
            self._pool = await asyncpg.create_pool(min_size=0, max_size=self._settings.pool_size, **options)
        except Exception as error:
            raise connect_error(error, self._url) from None

    def _check_pool(self) -> None:
        """A pool that is too small would make the duties wait for each other for ever."""
        needed = len(self._lines) + 2
        if self._pool.get_max_size() < needed:
            raise ConfigurationError(f"pool= must hold at least {needed} connections, not {self._pool.get_max_size()}")

    async def close(self) -> None:
        """Give every connection back: all at once, because each may have to wait for a server that says nothing."""
        pool = self._pool if self._owns_pool else None
        farewells = [self._transactions.close(), *(line.close() for line in self._lines.values())]
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*farewells, *([] if pool is None else [close_pool(pool)]))
        except TimeoutError:
            pass  # somebody still works on one
        finally:
            self.drop()

    def drop(self) -> None:
        """Give every connection up without a word to the server, also those that are in use."""
        for line in self._lines.values():
            line.closed = True
            line.drop()
        self._transactions.drop()
        if self._owns_pool and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.terminate()

    async def schema_state(self) -> SchemaState:
        """Where the tables stand."""

        async def look(connection: Any) -> SchemaState:
            await self._callers.learn(connection)
            return await self._schema.state(connection)

        state: SchemaState = await self._with_connection(look)
        return state

    async def migrate(self) -> list[str]:
        """Bring the tables up to date."""

        async def bring(connection: Any) -> list[str]:
            await self._callers.learn(connection)
            return await self._schema.migrate(connection)

        applied: list[str] = await self._with_connection(bring)
        return applied

    def migration_sql(self) -> str:
        """The same as a script."""
        return self._schema.script()

    async def reset(self) -> None:
        """Drop everything of this namespace."""
        await self._with_connection(self._schema.drop)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return self._schema.names()

    async def doctor(self) -> list[Check]:
        """Look at the server, the connection and the wake-ups."""
        wakes = await self._listener.try_once()
        found: list[Check] = await self._with_connection(
            lambda connection: self._schema.checks(connection, self._connector.behind_pooler, wakes)
        )
        return found

    # -- definitions and starts ------------------------------------------------------------------------------

    async def put_definitions(self, definitions: Sequence[Definition]) -> None:
        """In the order of their names, so that two processes never wait for each other in a circle."""

        async def put(connection: Any) -> None:
            async with transaction(connection):
                for d in sorted(definitions, key=lambda d: d.name):
                    await connection.execute(
                        self._sql["put_definition"],
                        d.name,
                        d.version,
                        d.kind,
                        d.queue,
                        d.options,
                        d.input_schema,
                        d.graph,
                    )

        await self._with_connection(put)

    async def definitions(self) -> list[Definition]:
        """The current definition of each workflow."""
        return [Definition(*row) for row in await self._fetch("definitions")]

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """All or none."""
        return await self._starts.start(runs, at_once)

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """The same in the caller's transaction."""
        return await self._starts.start_within(connection, runs)

    async def send_within(self, connection: Any, mail: Mail) -> Asked:
        """A signal in the sender's transaction."""
        return await self._mailroom.send_within(connection, mail)

    # -- reading -----------------------------------------------------------------------------------------------

    async def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        """Those of the runs that have ended."""
        return [Outcome(str(row[0]), *row[1:]) for row in await self._fetch("outcomes", list(ids))]

    async def heir(self, run_id: str) -> str:
        """The last of the runs that one went on as; itself, if it did not."""
        rows = await self._fetch("heir", run_id)
        return str(rows[0]["id"]) if rows else run_id

    async def run(self, run_id: str) -> RunRow | None:
        """One run."""
        rows = await self._fetch("run", run_id)
        return _run_row(rows[0]) if rows else None

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
        filters = (workflow, status, queue, before, reason, key, limit, since_ms, older_ms)
        name = OLDEST * oldest_first + ("runs" if tag is None else "runs_tagged")
        return [_run_row(row) for row in await self._fetch(name, *filters, *([] if tag is None else [tag]))]

    async def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """Ids of runs from the one to the other."""
        return [str(row[0]) for row in await self._fetch("ids_between", first, last, limit)]

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
        return [_worker_info(row) for row in await self._fetch("workers")]

    async def suspects(self) -> list[tuple[str, str, int]]:
        """How many runs that workers have died with stand in line."""
        return [tuple(row) for row in await self._fetch("suspects")]

    async def nodes(self, dag_id: str) -> list[NodeRow]:
        """The steps of a dag run."""
        return await self._graphs.nodes(dag_id)

    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """What the steps of dag runs see."""
        return await self._graphs.outputs(wanted)

    async def graph(self, name: str, version: str, dag_id: str) -> str | None:
        """The stored graph of a dag in a version, or the copy that this run of it brought along."""
        return await self._graphs.graph(name, version, dag_id)

    async def value(self, run_id: str, key: str) -> tuple[str, int] | None:
        """A value that the run lets others read."""
        rows = await self._fetch("value", run_id, key)
        return (rows[0]["value"], rows[0]["format"]) if rows else None

    async def values(self, run_id: str) -> list[tuple[str, str, int]]:
        """All of them, by key."""
        return [tuple(row) for row in await self._fetch("values", run_id)]

    async def seed(self, run_id: str) -> str | None:
        """The secret of a run."""
        rows = await self._fetch("seed", run_id)
        return rows[0][0] if rows else None

    # -- operators and senders -----------------------------------------------------------------------------------

    async def retry(self, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again."""
        return await self._drive(retry_run, run_id)

    async def send(self, mail: Mail, again: bool = False) -> Asked:
        """Put a signal into a run's box and wake the run."""
        asked: Asked = await self._with_connection(lambda c: self._mailroom.send(c, mail, again))
        return asked

    async def cancel(self, run_id: str) -> Asked:
        """End a run, begin its undoing, or mark it."""
        return await self._drive(cancel_run, run_id)

    async def pause(self, run_id: str) -> Asked:
        """Hold a run, or mark it."""
        return await self._drive(pause_run, run_id)

    async def resume(self, run_id: str) -> Asked:
        """Let a held run go on, or take the mark back."""
        return await self._drive(resume_run, run_id)

    # -- workers -----------------------------------------------------------------------------------------------

    async def register(self, worker: WorkerInfo) -> None:
        """A worker comes to life."""
        queues = None if worker.queues is None else msgspec.json.encode(worker.queues).decode()
        workflows = msgspec.json.encode(worker.workflows).decode()
        modules = msgspec.json.encode(worker.modules).decode()
        await self._fetch(
            "register", worker.id, worker.host, worker.pid, queues, workflows, worker.concurrency, worker.lease_ms,
            modules, worker.process,
        )  # fmt: skip

    async def worker_state(self, worker: str, state: str) -> None:
        """A worker says it is stopping."""
        await self._fetch("worker_state", worker, state)

    async def unregister(self, worker: str) -> None:
        """A worker leaves in good order; what still names it goes back in line."""
        await self._drive(unregister, worker)

    def pulse(self, patience: float = 10.0) -> PostgresPulse:
        """A heartbeat for a thread of its own."""
        return PostgresPulse(self._connector, self._sql, patience)

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
        return await self._claims.claim(worker, token, lanes, versions, limit, remembered)

    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with."""
        return await self._claims.claim_suspects(worker, token, versions, queues, room)

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal."""
        return await self._flusher.flush(worker, batch)

    async def transact(
        self, worker: str, run_id: str, claim: int, place: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, doubts: Mapping[str, Believer] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """A function's own statements and the record of its result, in one transaction."""
        return await self._transactions.transact(worker, run_id, claim, place, call, record, timeout, doubts)

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """A look into the boxes of these runs."""
        return await self._mailroom.look(looks)

    async def deliver(self, limit: int) -> Delivery:
        """Take mail that was only inserted to its runs."""
        return await self._mailroom.deliver(limit)

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Put runs back in line at once."""
        await self._sweeps.give_back(worker, held)

    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None
    ) -> Tick:
        """Which duties have work?"""
        return await self._sweeps.tick(workflows, lanes, queues)

    async def promote(self, limit: int) -> Promotion:
        """Make due sleepers ready; end what is late."""
        return await self._sweeps.promote(limit)

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers."""
        return await self._sweeps.beats(worker)

    async def expire(self, workers: Sequence[str]) -> None:
        """The leases of these workers are over."""
        await self._fetch("expire", list(workers))

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None) -> Reaping:
        """Bury dead workers, and give back what they held."""
        return await self._sweeps.reap(worker, limit, max_losses, silent)

    # -- wake-ups ----------------------------------------------------------------------------------------------

    async def notify(self, wakeups: Wakeups) -> None:
        """Wake others."""
        await self._lines["notify"].fetch(
            self._sql["notify"], self._channel, encode_wakeups(wakeups, self._listener.me)
        )

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Pass on what is heard, until cancelled."""
        await self._listener.run(heard)

    # -- plumbing ----------------------------------------------------------------------------------------------

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._with_connection(lambda c: c.fetch(self._sql[name], *arguments))
        return rows

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        result: T = await self._with_connection(lambda c: self._driver.run(c, flow(*arguments)))
        return result

    async def _first_row(self, sql: str) -> Any:
        return await self._with_connection(lambda c: c.fetchrow(sql))

    async def _with_connection(self, call: Callable[[Any], Any]) -> Any:
        pool, before = self._pool, requests()
        if pool is None:
            raise AppClosed
        try:
            async with borrowed(pool, self._settings.connect_timeout) as connection:
                return await call(know_arrays(connection))
        except Exception as error:
            insist(before)
            if self._pool is None:
                raise AppClosed from None
            raise translate(error) from None


def _run_row(row: Any) -> RunRow:
    values = dict(row)
    values["id"] = str(values["id"])
    values["tags"] = read_tags(values["tags"])
    for name in ("parent_id", "worker", "origin_id", "dag_id"):
        values[name] = None if values.get(name) is None else str(values[name])
    return RunRow(**values)


def _worker_info(row: Any) -> WorkerInfo:
    values = dict(row)
    values["id"] = str(values["id"])
    values["queues"] = None if values["queues"] is None else msgspec.json.decode(values["queues"])
    values["workflows"] = msgspec.json.decode(values["workflows"])
    values["modules"] = msgspec.json.decode(values["modules"])
    return WorkerInfo(**values)
