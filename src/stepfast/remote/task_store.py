"""The tables of tasks and results as a remote worker uses them.

Claim, hold, record and give back, each in one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..engine.host import Clock
from ..errors import ConfigurationError, DatabaseRefused, SchemaError
from ..settings import Settings
from ..store.answers import MissingRight
from ..worker.db_retry import dutifully
from ..worker.shutdown import to_the_end
from .protocol import (
    FAILED,
    MYSQL,
    POSTGRES,
    SQS,
    ClaimedTask,
    TaskOutcome,
    TransportUrl,
    check_prefix,
    ids_of_step,
    parse_transport_url,
    refusal,
)

if TYPE_CHECKING:
    from .sqs.location import SqsLocation

PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
"""A parameter in a statement, and not a cast."""
CONNECTIONS = 4
"""Connections that a worker or a transport has at most: one to claim with, one to record with, and some to spare."""


_GRANT = "grant this user SELECT, INSERT, UPDATE and DELETE on both tables"


class Work(Protocol):
    """What can be done in one open transaction."""

    async def fetch(self, name: str, /, **given: Any) -> Sequence[Any]:
        """The rows of a statement."""
        ...

    async def execute(self, name: str, /, **given: Any) -> None:
        """A statement without rows."""
        ...

    async def put(self, name: str, /, rows: Sequence[Mapping[str, Any]]) -> None:
        """One statement for many rows."""
        ...


class Database(Protocol):
    """Tasks and results of one prefix."""

    async def open(self) -> None:
        """Connect; errors say what to do, never a password."""
        ...

    async def close(self) -> None:
        """Disconnect. A pool that the application brought along stays open."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Work]:
        """A transaction of our own, read committed, on a connection of the pool."""
        ...

    def within(self, connection: Any) -> AbstractAsyncContextManager[Work]:
        """The transaction that a caller has open on this connection."""
        ...

    async def locate(self) -> None:
        """Find out in which schema the tables are, so that they are found over any connection to this database, and
        whether they may be used."""
        ...

    async def create(self) -> bool:
        """Make the tables if they are missing; whether they were. Safe when many do it at once."""
        ...

    def script(self) -> str:
        """The statements that make the tables, for a user who has the right."""
        ...


class Location(NamedTuple):
    """Where tasks and results are: a database by its URL, or by a pool of the application, or queues; and a prefix."""

    url: TransportUrl | None
    pool: Any
    prefix: str
    queue_urls: Mapping[str, str] | None = None
    """Queues of SQS that exist already, by group."""

    @property
    def dialect(self) -> str:
        """What its server speaks."""
        if self.pool is not None:
            return _dialect_of_pool(self.pool)
        assert self.url is not None
        return self.url.dialect


def located(url: str | None, pool: Any, prefix: str, queue_urls: Mapping[str, str] | None = None) -> Location:
    """Check what a user gave."""
    if (url is None) == (pool is None):
        raise ConfigurationError("give either the URL of the database or pool=, and not both")
    found = Location(None if url is None else parse_transport_url(url), pool, check_prefix(prefix), queue_urls)
    if found.dialect != SQS and queue_urls is not None:
        raise ConfigurationError("queue_urls= names queues of SQS: it goes with a URL as sqs://eu-central-1")
    if found.url is not None and found.dialect == SQS:
        sqs_location(found)
    return found


def sqs_location(where: Location) -> SqsLocation:
    """The queues of a location that is in SQS."""
    from .sqs.location import parse_sqs_url

    assert where.url is not None
    return parse_sqs_url(where.url.text, where.prefix, where.queue_urls)


def open_database(where: Location, settings: Settings) -> Database:
    """The database of a location. Nothing is connected yet; the error for a missing driver names the extra that
    installs it."""
    extra, server = {POSTGRES: ("postgres", "PostgreSQL"), MYSQL: ("mysql", "MariaDB or MySQL")}[where.dialect]
    try:
        if where.dialect == POSTGRES:
            from .postgres import PostgresDatabase

            return PostgresDatabase(where, settings)
        from .mysql import MysqlDatabase

        return MysqlDatabase(where, settings)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{server} needs the package {error.name!r}: pip install 'stepfast[{extra}]'"
        ) from None


def missing_tables(said: str) -> SchemaError:
    """The error for tables that are not there, or not as the contract has them."""
    return SchemaError(
        f"the transport's tables are missing, or are not those of the contract ({said}): run `stepfast migrate "
        "--transport`, or let them be made (not create=False, not auto_migrate=False)"
    )


def may_not_make_tables(said: str) -> MissingRight:
    """Return the error for a user who may not make the tables."""
    return MissingRight(
        f"the database user may not make the transport's tables ({said}): run `stepfast migrate --transport` once "
        f"as a user who may, or the SQL that it prints with --sql, and {_GRANT}"
    )


def may_not_use_tables() -> MissingRight:
    """The error for a user who may not do with them all that is needed."""
    return MissingRight(f"the database user may not use the transport's tables: {_GRANT}")


def _dialect_of_pool(pool: Any) -> str:
    drivers = {kind.__module__.partition(".")[0] for kind in type(pool).__mro__ if hasattr(pool, "acquire")}
    if "asyncpg" in drivers:
        return POSTGRES
    if "asyncmy" in drivers:
        return MYSQL
    raise ConfigurationError(
        f"pool= takes a pool of asyncpg or asyncmy, not {type(pool).__module__}.{type(pool).__name__}"
    )


Key = tuple[str, int]
"""A step's id and the attempt."""
_READING_MS = 10_000
"""An engine that claimed a result longer ago than this has read it, or is gone."""


class Recorded(NamedTuple):
    """What became of outcomes: those that were written, and those that are put off. Of all others the task is not this
    worker's any more."""

    written: set[Key]
    put_off: set[Key]


class TaskSource(Protocol):
    """One worker's view of one group, be it in tables or in a queue."""

    long_polls: bool
    """Whether a claim waits until there is a task, so that a worker need not pause between two."""

    async def open(self) -> None:
        """Connect, and make what is missing, if that is wanted."""
        ...

    async def close(self) -> None:
        """Disconnect from what is its own."""
        ...

    async def claim(self, most: int) -> list[ClaimedTask]:
        """Take up to so many tasks, the oldest first."""
        ...

    async def renew(self, keys: Sequence[Key]) -> set[Key]:
        """Hold tasks for another lease; those that are still held."""
        ...

    async def give_back(self, keys: Sequence[Key]) -> None:
        """Let others have them at once."""
        ...

    async def give_back_unknown(self, known: Sequence[Key]) -> None:
        """Let others have what is held without the worker's knowledge: the answer to a claim was lost."""
        ...

    async def record(self, outcomes: Sequence[TaskOutcome], overdue: Collection[str] = ()) -> Recorded:
        """Write results and end their tasks."""
        ...


class Serving:
    """One worker's view of one group, in tables."""

    long_polls = False

    def __init__(self, database: Database, worker: str, group: str, lease: float, *, create: bool = True) -> None:
        self._database = database
        self._create = create
        self._worker = worker
        self._group = group
        self._lease_ms = int(lease * 1000)

    async def open(self) -> None:
        """Connect, and make the tables unless another process does."""
        try:
            await self._database.open()
            if self._create:
                await self._database.create()
        except BaseException:
            await to_the_end(self._database.close)
            raise

    async def close(self) -> None:
        """Disconnect."""
        await self._database.close()

    async def claim(self, most: int) -> list[ClaimedTask]:
        """Take up to so many tasks, the oldest first."""
        async with self._database.transaction() as work:
            rows = await work.fetch("due", grp=self._group, lease=self._lease_ms, most=most)
            if not rows:
                return []
            await work.execute("stamp", worker=self._worker, ids=tuple(row[0] for row in rows))
        return sorted((ClaimedTask(*row) for row in rows), key=lambda task: (task.created_at, task.seq))

    async def renew(self, keys: Sequence[Key]) -> set[Key]:
        """Hold tasks for another lease; those that are still held."""
        async with self._database.transaction() as work:
            held = await self._held(work, keys)
            if held:
                await work.execute("stamp", worker=self._worker, ids=_ids(held))
        return set(held)

    async def give_back(self, keys: Sequence[Key]) -> None:
        """Let others have them at once."""
        async with self._database.transaction() as work:
            held = await self._held(work, keys)
            if held:
                await work.execute("let_go", ids=_ids(held))

    async def give_back_unknown(self, known: Sequence[Key]) -> None:
        """Let others have what names this worker without its knowledge: the answer to a claim was lost."""
        async with self._database.transaction() as work:
            rows = await work.fetch("named", worker=self._worker, grp=self._group)
            unknown = {(row[0], row[1]) for row in rows} - set(known)
            if unknown:
                await work.execute("let_go", ids=_ids(unknown))

    async def record(self, outcomes: Sequence[TaskOutcome], overdue: Collection[str] = ()) -> Recorded:
        """Write results and end their tasks, as one. A result is postponed while an engine is reading the failure of an
        earlier attempt, because the engine then deletes that row; unless its step is ``overdue``."""
        async with self._database.transaction() as work:
            held = await self._held(work, [outcome.key for outcome in outcomes])
            busy = await self._make_way(work, held, overdue)
            kept = {outcome.key: outcome for outcome in outcomes if outcome.key in held and outcome.step_id not in busy}
            if kept:
                await work.put("put_results", [_row(outcome, *held[key]) for key, outcome in kept.items()])
                await work.execute("delete_tasks", ids=_ids(kept))
        return Recorded(set(kept), held.keys() - kept.keys())

    async def _make_way(self, work: Work, keys: Iterable[Key], overdue: Collection[str]) -> set[str]:
        """Remove the failures of earlier attempts, but not those that an engine is reading."""
        retried = [key for key in keys if key[1] > 1]
        rows = await work.fetch("lock_failures", ids=_ids(retried)) if retried else ()
        busy = {row[0] for row in rows if row[1] is not None and row[1] < _READING_MS} - set(overdue)
        failures = tuple(row[0] for row in rows if row[0] not in busy)
        if failures:
            await work.execute("delete_results", ids=failures)
        return busy

    async def _held(self, work: Work, keys: Sequence[Key]) -> dict[Key, tuple[str, int]]:
        """Run and number of those that still name this worker and this attempt; their rows are locked."""
        rows = await work.fetch("held", worker=self._worker, ids=_ids(keys)) if keys else ()
        wanted = set(keys)
        found = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        return {key: row for key, row in found.items() if key in wanted}


def _ids(keys: Iterable[Key]) -> tuple[str, ...]:
    return tuple(sorted(key[0] for key in keys))


def _row(outcome: TaskOutcome, run_id: str, seq: int) -> dict[str, object]:
    return {
        "step_id": outcome.step_id,
        "run_id": run_id,
        "seq": seq,
        "status": outcome.status,
        "output": outcome.output,
        "error": outcome.error,
        "started_at": outcome.started_at,
    }


_MOST = 500
"""Results in one transaction."""
_BYTES = 1024 * 1024
"""About how many bytes one transaction carries: a packet of MySQL's takes 16 MB by default, and quoting can double."""

_PUT_OFF = 5.0
"""Seconds for which a result is put off at most because an engine reads what an earlier attempt left in its row."""
_AGAIN = 0.05
"""Seconds until it is tried again."""


class Recorder:
    """Writes outcomes, in the order in which they came."""

    def __init__(
        self, serving: TaskSource, settings: Settings, logger: logging.Logger, clock: Clock, written: Callable[[], None]
    ) -> None:
        self._serving = serving
        self._longest = settings.outage_backoff_max
        self._logger = logger
        self._clock = clock
        self._written = written
        self._waiting: list[TaskOutcome] = []
        self._writing: list[TaskOutcome] = []
        self._later: dict[Key, tuple[float, TaskOutcome]] = {}
        """What was put off, and since when."""
        self._news = asyncio.Event()
        self.emptied = asyncio.Event()
        """Set while nothing waits."""
        self.emptied.set()

    def add(self, outcome: TaskOutcome) -> None:
        """Take an outcome that is to be written with the next batch."""
        self._waiting.append(outcome)
        self.emptied.clear()
        self._news.set()

    @property
    def unrecorded(self) -> list[Key]:
        """Tasks that are done and still held."""
        return [*self._later, *(outcome.key for outcome in (*self._writing, *self._waiting))]

    async def run(self) -> None:
        """Write for as long as the worker works."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                self._writing, self._waiting = _portion(self._waiting)
                await self._write(self._writing)
                self._writing = []
                self._written()
            if not self._later:
                self.emptied.set()

    async def _write(self, outcomes: list[TaskOutcome]) -> None:
        """Write them; if the database takes one of them for unfit, the others do not hang on it."""
        try:
            recorded = await dutifully(
                lambda: self._serving.record(outcomes, self._overdue()),
                "recording results",
                self._logger,
                self._clock,
                self._longest,
                refusable=True,
            )
        except DatabaseRefused as error:
            if len(outcomes) > 1:
                half = len(outcomes) // 2
                await self._write(outcomes[:half])
                await self._write(outcomes[half:])
            else:
                await self._refused(outcomes[0], error)
            return
        for outcome in outcomes:
            if outcome.key in recorded.put_off:
                self._put_off(outcome)
                continue
            self._later.pop(outcome.key, None)
            if outcome.key not in recorded.written:
                self._logger.warning(
                    "the result of step %s, attempt %d, is not written: its task is gone, or another worker's",
                    *outcome.key, extra=ids_of_step(outcome.step_id),
                )  # fmt: skip

    def _overdue(self) -> set[str]:
        """Steps whose results have been put off for long enough."""
        limit = self._clock.now() - _PUT_OFF
        return {key[0] for key, (since, _) in self._later.items() if since < limit}

    def _put_off(self, outcome: TaskOutcome) -> None:
        since = self._later[outcome.key][0] if outcome.key in self._later else self._clock.now()
        self._later[outcome.key] = since, outcome
        self._clock.after(_AGAIN, self.add, outcome)

    async def _refused(self, outcome: TaskOutcome, error: DatabaseRefused) -> None:
        """The step fails, and says why; unless it is this very sentence that is not taken."""
        told = refusal(f"the transport does not take the result: {error}")
        self._later.pop(outcome.key, None)
        failure = TaskOutcome(outcome.step_id, outcome.attempt, FAILED, None, told, outcome.started_at)
        if outcome.status == FAILED and outcome.output is None and outcome.error == told:
            ids = ids_of_step(outcome.step_id)
            self._logger.error("step %s: %s; its task is left to others", outcome.step_id, error, extra=ids)
        else:
            await self._write([failure])


def _portion(waiting: list[TaskOutcome]) -> tuple[list[TaskOutcome], list[TaskOutcome]]:
    """What goes out now, and what is left for the next time."""
    size = 0
    for count, outcome in enumerate(waiting):
        if count == _MOST or (count and size + outcome.size > _BYTES):
            return waiting[:count], waiting[count:]
        size += outcome.size
    return waiting, []
