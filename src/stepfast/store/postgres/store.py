"""PostgresStore: the contract of a store over asyncpg, on PostgreSQL 12 or later."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg

from ...cancellation import raise_if_cancelled, requests
from ...errors import AppClosed, DatabaseUnavailable
from ...model.queue_config import Bound
from ...model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    BeatAnswer,
    Claimed,
    FlushAnswer,
    HasRecordCount,
    Held,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    StepDone,
    Tick,
)
from ...model.status import RUNNING
from ...model.urls import DatabaseUrl
from ...settings import Settings
from ..answers import NOTHING, Check, MissingRight, SchemaState, Transacted, TransportConnection, Wakeups
from ..dialects import POSTGRES
from ..flows import signals
from ..flows.base import Flow, T, schedule_columns, standing_columns
from ..flows.claims import in_order, with_history
from ..flows.events import NewEvent
from ..migrations import migrations
from ..readonly import MOST_ROWS, BaseGlance, TableSize, TookTooLong
from ..run_lists import Filters
from ..sql import COUNT, OLDEST, load_all
from ..store import Store
from . import own_pool, schema
from .caller_connections import Callers
from .connections import DUTIES, Connector, Continuity, KeptConnection, connect_error, know_arrays, qualify
from .ctx_transaction import Transactions
from .errors import translate
from .flush import Flusher
from .notifications import Listener, encode_wakeups
from .schema import Roles, Schema
from .signals import Mailboxes
from .starts import HeldKeys, Starts
from .tables import PostgresTables
from .transactions import PATIENCE, Driver, as_columns, borrowed, close_pool, close_quietly, closing, drop, glancing


class PostgresPulse:
    """Synchronous heartbeats over a connection of their own."""

    def __init__(self, connector: Connector, statements: dict[str, str], patience: float) -> None:
        self._connector = connector
        self._beat = statements["beat"]
        self._held = statements["held"]
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        return self._loop.run_until_complete(self._beat_once(worker, running))

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._loop.run_until_complete(close_quietly(self._connection))
        self._loop.close()

    async def _beat_once(self, worker: str, running: int) -> BeatAnswer:
        try:
            async with asyncio.timeout(self._patience):
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connector.connect()
                alive = await self._connection.fetchval(self._beat, worker, running)
                if alive is None:
                    return BeatAnswer(False)
                rows = await self._connection.fetch(self._held, worker)
                return BeatAnswer(True, [Held(str(row[0]), row[1], row[2]) for row in rows])
        except Exception as error:
            known = translate(error)
            if isinstance(known, DatabaseUnavailable) and self._connection is not None:
                drop(self._connection)
                self._connection = None
            raise known from None


_AT_ONCE = 2
"""Questions that are asked at once: the other connections of the pool are for those who work."""


class PostgresGlance(BaseGlance):
    """Asks over connections of the store's pool."""

    dialect = "postgres"

    def __init__(
        self, statements: dict[str, str], schema: str, settings: Settings, with_connection: Callable[..., Any],
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self._sql = statements
        self._schema = schema
        self._with_connection = with_connection
        self._patience = patience
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def _ask(self, name: str, *arguments: Any) -> list[Any]:
        sql = _bounded(self._sql[name])

        async def put(connection: Any) -> list[Any]:
            try:
                async with glancing(connection, int(self._patience * 1000)):
                    rows: list[Any] = await connection.fetch(sql, *arguments)
                    return rows
            except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
                raise TookTooLong(self._patience) from None

        patience = asyncio.timeout(self._patience)
        try:
            async with patience, self._room:
                patience.reschedule(None)
                found: list[Any] = await self._with_connection(put)
        except TimeoutError:
            if not patience.expired():
                raise
            # Others wait for a slow database already: one more that waits is of no use.
            raise TookTooLong(self._patience) from None
        return found

    async def sizes(self) -> list[TableSize]:
        """How large the tables are, with their indexes and what is stored beside them."""
        return [TableSize(*row) for row in await self._fetch("glance_sizes", self._schema)]


@functools.lru_cache(maxsize=256)
def _bounded(sql: str) -> str:
    """A question as one that brings a bounded number of rows."""
    return f"SELECT * FROM (\n{sql}\n) AS looked LIMIT {MOST_ROWS}"


class Claims:
    """Takes runs over one connection of its own."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], settings: Settings, driver: Driver) -> None:
        self._kept = kept
        self._sql = statements
        self._settings = settings
        self._driver = driver

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        again: bool,
        remembered: Mapping[str, int],
    ) -> list[Claimed]:
        """Ready runs of these lanes. After a lost reply (``again``), first what that call took."""
        most = self._settings.claim_bytes
        if len(lanes) == 1:
            (queue, workflow, priority), mark = lanes[0]
            args: tuple[Any, ...] = (versions[workflow], queue, workflow, priority, mark, limit, most)
            return await self._take(worker, token, "claim_lane", args, again, remembered)
        columns = (
            [lane.queue for lane, _ in lanes],
            [lane.workflow for lane, _ in lanes],
            [lane.priority for lane, _ in lanes],
            [mark for _, mark in lanes],
            [versions[lane.workflow] for lane, _ in lanes],
        )
        return await self._take(worker, token, "claim_lanes", (*columns, limit, most), again, remembered)

    async def _take(
        self, worker: str, token: int, name: str, args: tuple[Any, ...], again: bool, remembered: Mapping[str, int]
    ) -> list[Claimed]:
        async with self._kept.use() as connection:
            rows = []
            if again:
                rows = await connection.fetch(self._sql["claimed"], worker, token)
            if not rows:
                rows = await connection.fetch(self._sql[name], worker, token, *args)
            claimed = [Claimed(*row) for row in rows]
            if any(run.claim > 1 or not run.seed for run in claimed):
                await self._driver.join(connection, with_history(worker, claimed, remembered, self._settings))
        return in_order(claimed)


class Sweeps:
    """Sweeps over one connection of its own."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], continuity: Continuity) -> None:
        self._continuity = continuity
        self._kept = kept
        self._sql = statements

    async def tick(
        self, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None, schedules: Sequence[str]
    ) -> Tick:
        """Which duties have work?"""
        served = None if queues is None else list(queues)
        known = None if workflows is None else list(workflows)
        row = (await self._kept.fetch(self._sql["tick"], lanes, known, served, list(schedules)))[0]
        self._continuity.met(row["server"])
        columns = (row[name] or () for name in ("queues", "workflows", "priorities"))
        found = list(zip(map(Lane, *columns), row["limited"] or (), strict=True))
        due, schedule = row["next_due"], row["next_schedule"]
        return Tick(
            now_ms=row["now_ms"],
            due=due is not None and due <= row["now_ms"],
            next_due_ms=None if due is None else due - row["now_ms"],
            suspects=row["suspects"],
            lanes=[lane for lane, limited in found if not limited],
            mail=row["mail"],
            names=row["names"],
            limited=[lane for lane, limited in found if limited],
            gated=frozenset(row["gated"] or ()),
            paused=frozenset(row["paused"] or ()),
            limited_suspects=row["limited_suspects"] or [],
            schedule_ms=None if schedule is None else schedule - row["now_ms"],
            remote=row["remote"],
            events=row["events"],
            start_ms=None if row["next_start"] is None else row["next_start"] - row["now_ms"],
        )


_EPOCH = "extract(epoch FROM clock_timestamp())::double precision"
_NOW = f"({_EPOCH} * 1000::double precision)::bigint"
_STAMP = _NOW.replace("clock_timestamp", "statement_timestamp")
_PLACE = f"({_EPOCH} * 1000000::double precision)::bigint"
"""The place in its queue of a run that becomes ready now: in microseconds, so that starts in a row keep their order."""

_SERVER = "(extract(epoch FROM pg_postmaster_start_time())::double precision * 1000000::double precision)::bigint"
"""When the server was started: another time is another server, or the same one after a crash."""

_FRESH = (
    "(r.counted_attempt IS DISTINCT FROM GREATEST(r.attempt, r.first_attempt) "
    "AND NOT (r.graph IS NOT NULL AND r.dag_id IS NULL))"
)
"""Whether a claim of the run begins an attempt, which a rate counts: a dag run that is finished begins none."""

_WENT_ON = """CASE WHEN r.output ~ '^"[0-9a-f-]{36}"$' THEN substr(r.output, 2, 36)::uuid END"""
"""The id of the run that one with the reason 'continued' continued as."""

_AS_TEXT = {name: f"r.{name}::text" for name in ("id", "worker", "dag_id")}
"""The ids of a standing."""


class PostgresStore(Store):
    """One namespace (a schema) of one Postgres database."""

    dialect = "postgres"

    def __init__(self, url: DatabaseUrl, namespace: str, settings: Settings, pool: Any = None) -> None:
        super().__init__(settings)
        words = {"schema": f'"{namespace}"', "now": _NOW, "stamp": _STAMP, "place": _PLACE, "server": _SERVER}
        self._channel = words["channel"] = f"stepfast_{namespace}"
        words |= {"listed": str(settings.list_payload_limit), "standing": standing_columns(_AS_TEXT)}
        words |= {"schedule": schedule_columns({"last_run": "s.last_run::text"})}
        words |= {"fresh": _FRESH, "went_on": _WENT_ON, "join": "JOIN", "wide": "", "/wide": ""}
        self._sql = {name: qualify(text) for name, text in load_all(POSTGRES, words).items()}
        self._quoted = words["schema"]
        continuity = self._continuity = Continuity()
        self.breaks = continuity.breaks
        self._connector = Connector(url, settings, pool)
        self._url, self._of_pool = url.text, url.of_pool
        self._pool: Any = pool
        self._owns_pool = pool is None
        self._only_leaves = False
        """Whether our user may insert mail, but change no run."""
        known = [migration._replace(text=qualify(migration.text)) for migration in migrations(POSTGRES, words)]
        self._roles = Roles(namespace, words["schema"], known)
        self._schema = Schema(words["schema"], known, self._sql, self._roles)
        self._listener = Listener(self._connector, self._channel, settings.outage_backoff_max)
        kept = self._kept = {duty: KeptConnection(self._connector, continuity) for duty in DUTIES}
        callers = self._callers = Callers(self._sql["identity"], self._first_row)
        held = HeldKeys(self._with_connection, settings)
        self._starts = Starts(kept, held, self._sql, settings, callers)
        driver = self._driver = self._starts.driver = Driver(self._sql, self._starts)
        self._flusher = Flusher(kept["flush"], self._sql, driver, continuity)
        self._claims = Claims(kept["claim"], self._sql, settings, driver)
        self._sweeps = Sweeps(kept["sweep"], self._sql, continuity)
        self._mailroom = Mailboxes(kept["mail"], self._sql, callers, settings)
        self._transactions = Transactions(self._connector, self._sql, settings, len(DUTIES) + 1, continuity)

    @property
    def can_wake(self) -> bool:
        """Whether a notification has arrived here."""
        return self._listener.works

    # -- opening and the schema ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the pool; the first connection tells what is wrong, if anything is."""
        for each in self._kept.values():
            each.closed = False
        if self._pool is not None:
            await self._check_pool()
        else:
            options = await self._connector.options()
            try:
                self._pool = await asyncpg.create_pool(min_size=0, max_size=self._settings.pool_size, **options)
            except Exception as error:
                raise connect_error(error, self._url) from None
        if self._routes:
            self._sql["now"] = self._sql["now_of_node"]
            self._driver.joins = self._flusher.at_once = False

    @property
    def _routes(self) -> bool:
        return self._connector.engine.routes

    async def _check_pool(self) -> None:
        """Refuse a pool of the caller's that cannot carry the duties, or leads elsewhere than the URL by which the
        heartbeat connects."""
        own_pool.check_usable(self._pool, len(self._kept) + 2)
        if self._of_pool:
            await self._with_connection(self._connector.learn)
            return
        async with closing(await self._connector.connect()) as connection:
            ours = await connection.fetchrow(self._sql["identity"])
        own_pool.refuse_other_database(ours, await self._first_row(self._sql["identity"]))

    async def close(self) -> None:
        """Give every connection back: all at once, because each may have to wait for a server that says nothing."""
        pool = self._pool if self._owns_pool else None
        farewells = [self._transactions.close(), *(each.close() for each in self._kept.values())]
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*farewells, *([] if pool is None else [close_pool(pool)]))
        except TimeoutError:
            pass  # one is still used
        finally:
            self.drop()

    def drop(self) -> None:
        """Give every connection up without a word to the server, also those that are in use."""
        for each in self._kept.values():
            each.closed = True
            each.drop()
        self._transactions.drop()
        if self._owns_pool and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.terminate()

    async def schema_state(self) -> SchemaState:
        """The state of the tables."""

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
        """The migrations as a script."""
        return self._schema.script()

    def roles_sql(self) -> str:
        """A script that makes roles of least privilege."""
        return self._roles.script()

    async def reset(self) -> None:
        """Drop everything of this namespace."""
        await self._with_connection(self._schema.drop)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return self._schema.names()

    def tables(self) -> PostgresTables:
        """The tables as rows of values."""
        return PostgresTables(self._quoted, self._schema.tables(), self._with_connection)

    async def doctor(self) -> list[Check]:
        """Look at the server, the connection and the wake-ups."""
        wakes = await self._listener.try_once()
        found: list[Check] = await self._with_connection(
            lambda connection: schema.checks(
                connection,
                self._sql["server_facts"],
                self._quoted,
                self._connector.engine,
                self._connector.behind_pooler,
                wakes,
            )
        )
        return found

    def glance(self, patience: float) -> PostgresGlance:
        """Questions of those who watch."""
        return PostgresGlance(self._sql, self._quoted, self._settings, self._with_connection, patience)

    # -- definitions and starts ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """Start all of these runs, or none of them."""
        return await self._starts.start(runs, at_once)

    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """Start all of these runs, or none of them if too many would be ready."""
        return await self._starts.start_bounded(runs, bound)

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs in the caller's transaction. New names of attributes have one of their own."""
        if attributes := [attribute for run in runs for attribute in run.attributes]:
            await self.name_attributes(attributes)
        return await self._starts.start_within(connection, runs)

    # -- senders -------------------------------------------------------------------------------------------------

    async def send(self, mail: Mail, again: bool = False, check: bool = False) -> Answer:
        """Put a signal into a run's mailbox and wake the run: usually by one statement, otherwise by the flow. A caller
        that sends again asks first whether it was taken. A user who may change no run leaves delivery to a sweep."""

        async def leave(connection: Any) -> Answer:
            return await self._mailroom.leave(connection, mail, again)

        async def put(connection: Any) -> Answer:
            unusual = again or mail.given is not None or self._routes
            answer = None if unusual else await self._mailroom.send_usual(connection, mail, check)
            if answer is None:
                flow = signals.send(mail, again, self._settings.max_signals, check)
                answer = await self._driver.run(connection, flow)
            return answer

        try:
            answer: Answer = await self._with_connection(leave if self._only_leaves else put)
        except MissingRight:
            self._only_leaves = True
            answer = await self._with_connection(leave)
        return answer

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """A signal in the sender's transaction."""
        return await self._mailroom.send_within(connection, mail)

    async def publish_within(self, connection: Any, rows: Sequence[NewEvent], pairs: Sequence[tuple[str, str]]) -> bool:
        """Events in the caller's transaction. Subscriptions have one of their own: they may be there already, and
        changing them would make others wait for the caller."""
        if pairs:
            await self.subscribe(pairs)
        async with self._callers.within(connection) as theirs:
            await theirs.execute(self._sql["publish"], *map(list, zip(*rows, strict=True)))
        return True

    # -- workers -----------------------------------------------------------------------------------------------

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
        if self._routes:
            return await super().claim(worker, token, lanes, versions, limit, remembered)
        again = self._last_claims.is_repeated(worker, token)
        return await self._claims.claim(worker, token, lanes, versions, limit, again, remembered)

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write a batch of the journal, fenced."""
        return await self._flusher.flush(worker, batch)

    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """A function's own statements and the record of its result, in one transaction."""
        return await self._transactions.transact(worker, run_id, claim, address, call, record, timeout, unverified)

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """A look into the boxes of these runs."""
        return await self._mailroom.look(looks)

    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None,
        schedules: Sequence[str] = (),
    ) -> Tick:  # fmt: skip
        """Which duties have work?"""
        if self._routes:
            return await super().tick(worker, workflows, lanes, queues, schedules)
        return await self._sweeps.tick(workflows, lanes, queues, schedules)

    # -- remote steps ------------------------------------------------------------------------------------------

    def carry(self, carrier: TransportConnection) -> None:
        """The transport takes part in transactions from now on."""
        self._driver.carrier = carrier

    # -- wake-ups ----------------------------------------------------------------------------------------------

    async def notify(self, wakeups: Wakeups) -> None:
        """Wake workers and waiters of other processes."""
        await self._kept["notify"].fetch(self._sql["notify"], self._channel, encode_wakeups(wakeups, self._listener.me))

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Pass on what is heard, until cancelled."""
        await self._listener.run(heard)

    # -- plumbing ----------------------------------------------------------------------------------------------

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._with_connection(lambda c: c.fetch(self._sql[name], *as_columns(arguments)))
        return rows

    async def _fetch_of_dags(self, name: str, *arguments: Any) -> list[Any]:
        return await self._kept["mail"].fetch(self._sql[name], *arguments)

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        result: T = await self._with_connection(lambda c: self._driver.run(c, flow(*arguments)))
        return result

    async def _on(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        async with self._kept[duty].use() as connection:
            return await self._driver.run(connection, flow(*arguments))

    async def _look(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        async with self._kept[duty].use() as connection:
            return await self._driver.join(connection, flow(*arguments))

    def _met(self, started: int | None) -> None:
        self._continuity.met(started)

    async def _page(self, filters: Filters, oldest_first: bool) -> list[Any]:
        return await self._listed(OLDEST * oldest_first, filters)

    async def _count(self, filters: Filters) -> int:
        return int((await self._listed(COUNT, filters))[0][0])

    async def _listed(self, which: str, filters: Filters) -> list[Any]:
        if filters.tag is not None:
            return await self._fetch(which + "runs_tagged", *filters.usual, filters.tag)
        return await self._fetch(which + ("runs_running" if filters.status == RUNNING else "runs"), *filters.usual)

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
            raise_if_cancelled(before)
            if self._pool is None:
                raise AppClosed from None
            raise translate(error) from None
