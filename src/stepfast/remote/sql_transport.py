"""The SQL transport: steps for workers elsewhere are rows of the database that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..errors import ConfigurationError, DatabaseRefused
from ..settings import Settings
from .protocol import DEFAULT_PREFIX, LONGEST, SQS, Result, Task, check_group, check_prefix, check_step_name
from .task_store import Database, Location, Work, located, open_database

_NOT_OPEN = "the transport is not open: use `async with`, or await its open()"


class SqlTransport:
    """The transport of remote steps in a database. ``contract/`` says how its tables are used.

    One engine for each prefix: those of others delete results that they do not know.
    """

    def __init__(
        self,
        url: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        *,
        pool: Any = None,
        create: bool | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.settings = Settings.from_environment() if settings is None else settings
        self._own_settings = settings
        self.create = create
        """Whether it makes its tables when it is opened. None: unless it is in the database of an application with
        ``auto_migrate=False``."""
        self._location = None if url is None and pool is None else _in_a_database(located(url, pool, prefix))
        self._database: Database | None = None
        self._joins = False

    @property
    def homeless(self) -> bool:
        """Whether it has no database of its own, and uses that of an application."""
        return self._location is None

    def copy(self, create: bool | None = None, settings: Settings | None = None) -> SqlTransport:
        """A transport to the same tables that is not open: connections belong to one event loop. Without settings of
        its own it has these: the lease must be the same as that of the application, which looks for leftovers."""
        create = self.create if create is None else create
        other = SqlTransport(prefix=self.prefix, create=create, settings=self._own_settings or settings)
        other._location = self._location
        return other

    def at_home_in(self, url: str, pool: Any = None) -> SqlTransport:
        """Return a transport in the database of an application, which joins its transactions."""
        other = self.copy()
        other._location = located(None if pool is not None else url, pool, self.prefix)
        other._joins = True
        return other

    async def open(self) -> None:
        """Connect, and make the tables unless they are made by hand (``create``)."""
        if self._location is None:
            raise ConfigurationError("SqlTransport has no database of its own: give its URL, or pool=")
        database = open_database(self._location, self.settings)
        await database.open()
        try:
            if self.create is not False:
                await database.create()
            if self._joins:
                await database.locate()
        except BaseException:
            await database.close()
            raise
        self._database = database

    async def close(self) -> None:
        """Disconnect. A pool that was given stays open."""
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def __aenter__(self) -> SqlTransport:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Send tasks out, all in one transaction."""
        rows = [_row(task) for task in sorted(tasks, key=lambda task: task.step_id)]
        if not rows:
            return
        retried = {task.step_id: task.attempt for task in tasks if task.attempt > 1}
        async with self._work(connection) as work:
            if retried:
                await _make_way(work, retried)
            await work.put("put_tasks", rows)

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far."""
        if not step_ids:
            return []
        async with self._work(connection) as work:
            return [Result(*row) for row in await work.fetch("results", ids=tuple(step_ids))]

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Take away exactly these results."""
        if not results:
            return
        seen = {(result.step_id, result.status, result.created_at) for result in results}
        async with self._work(connection) as work:
            rows = await work.fetch("lock_results", ids=tuple(result.step_id for result in results))
            ids = tuple(row[0] for row in rows if tuple(row) in seen)
            if ids:
                await work.execute("delete_results", ids=ids)

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back what no worker has begun, or what its worker has left lying for longer than a lease."""
        if not step_ids:
            return []
        async with self._work(connection) as work:
            lease = int(self.settings.lease * 1000)
            ids = [row[0] for row in await work.fetch("not_begun", ids=tuple(step_ids), lease=lease)]
            if ids:
                await work.execute("delete_tasks", ids=tuple(ids))
        return ids

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, whose tasks no worker has begun."""
        if not step_ids:
            return []
        async with self._work(None) as work:
            return [row[0] for row in await work.fetch("unclaimed", ids=tuple(step_ids))]

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, of which there is neither a task nor a result."""
        if not step_ids:
            return []
        async with self._work(None) as work:
            present = {row[0] for row in await work.fetch("present", ids=tuple(step_ids))}
        return [step_id for step_id in step_ids if step_id not in present]

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of what has lain there for longer than a lease."""
        async with self._work(None) as work:
            rows = await work.fetch("leftovers", after=after, most=limit, lease=int(self.settings.lease * 1000))
        return [row[0] for row in rows]

    async def create_tables(self) -> bool:
        """Make the tables if they are missing; whether they were."""
        if self._database is None:
            raise ConfigurationError(_NOT_OPEN)
        return await self._database.create()

    def script(self) -> str:
        """The statements that make the tables."""
        if self._location is None:
            raise ConfigurationError("SqlTransport has no database of its own: give its URL, or pool=")
        return open_database(self._location, self.settings).script()

    def _work(self, connection: Any) -> AbstractAsyncContextManager[Work]:
        if self._database is None:
            raise ConfigurationError(_NOT_OPEN)
        return self._database.transaction() if connection is None else self._database.within(connection)


def _in_a_database(where: Location) -> Location:
    if where.dialect == SQS:
        raise ConfigurationError("SqlTransport goes over a database; over SQS it is SqsTransport(region)")
    return where


async def _make_way(work: Work, attempts: dict[str, int]) -> None:
    """Remove the failures and the tasks of earlier attempts, also tasks that a worker holds."""
    ids = tuple(sorted(attempts))
    older = [row[0] for row in await work.fetch("lock_tasks", ids=ids) if row[1] < attempts.get(row[0], 0)]
    if older:
        await work.execute("delete_tasks", ids=tuple(older))
    failures = [row[0] for row in await work.fetch("lock_failures", ids=ids)]
    if failures:
        await work.execute("delete_results", ids=tuple(failures))


def _row(task: Task) -> dict[str, object]:
    """The columns of a task, refused if one of them would be cut off."""
    if len(task.step_id) > LONGEST or len(task.run_id) > LONGEST:
        raise DatabaseRefused(f"the id of a remote step has more than {LONGEST} characters: {task.step_id[:40]!r}…")
    return {
        "step_id": task.step_id,
        "run_id": task.run_id,
        "seq": task.seq,
        "name": check_step_name(task.name),
        "grp": check_group(task.group),
        "input": "null" if task.input is None else task.input,
        "attempt": task.attempt,
    }
