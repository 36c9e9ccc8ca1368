"""Starting runs on Postgres: many by one statement, on a connection of our own or in a transaction of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import msgspec

from ...errors import DatabaseUnavailable
from ...model.ids import new_seed
from ...model.queue_config import Bound
from ...model.records import NewRun, RunShape
from ...settings import Settings
from ..answers import KeysHeld, MissingRight
from ..flows.starts import insert
from ..flows.unique import apart, start_named
from .caller_connections import Callers
from .connections import KeptConnection
from .transactions import Driver, transaction

GLANCE_MS = 100
"""Milliseconds for which a start waits for a lock where others wait behind it."""
_TURN_MS = 1000
"""Milliseconds where only those wait behind it whose keys are held too. The server's log has a line for each turn."""
_TURNS = 2
"""How many such turns there are at once."""

Start = Callable[[Any, int], Awaitable[list[str]]]
"""Starts runs on a connection, and waits for no lock longer than so many milliseconds."""


class HeldKeys:
    """A queue for first tries, and one for those who have found their key held."""

    def __init__(self, lend: Callable[[Callable[[Any], Any]], Awaitable[Any]], settings: Settings) -> None:
        self._lend = lend
        # As long as a statement may take on a connection of our own.
        self._longest = min(settings.command_timeout, max(5.0, settings.lease / 2))
        self._first = asyncio.Semaphore(1)
        self._again = asyncio.Semaphore(_TURNS)

    async def start(self, start: Start) -> list[str]:
        """Try until the key is free, or taken."""
        try:
            async with asyncio.timeout(self._longest):
                ids = await self._turn(self._first, start, GLANCE_MS)
                while ids is None:
                    ids = await self._turn(self._again, start, _TURN_MS)
                return ids
        except TimeoutError:
            raise DatabaseUnavailable(
                "the open transaction of a caller holds the key of this start, and has not ended within "
                f"{self._longest:g} s: start it again later, and look for a transaction that stays open"
            ) from None

    async def _turn(self, turns: asyncio.Semaphore, start: Start, longest_ms: int) -> list[str] | None:
        async with turns:
            try:
                ids: list[str] = await self._lend(lambda connection: start(connection, longest_ms))
            except KeysHeld:
                return None
            return ids


_PLAIN, _LINKED, _DAG = "plain", "linked", "dag"
_TRIES = 10
"""How often a start is begun again because the run that had its key was removed in between."""
Group = tuple[RunShape, str, list[NewRun]]
"""Runs of one shape, and of which kind they are."""


class Starts:
    """Inserts the rows of runs that are started."""

    def __init__(
        self,
        kept: dict[str, KeptConnection],
        held: HeldKeys,
        statements: dict[str, str],
        settings: Settings,
        callers: Callers,
    ) -> None:
        self._callers = callers
        self._held = held
        self._kept = kept["start"]
        self._kept_for_keys = kept["keyed"]
        self._sql = statements
        self._batch = settings.start_batch
        self._most_signals = settings.max_signals
        self.driver: Driver
        """Drives flows; it inserts runs by this."""
        self._only_inserts = False
        """Whether our user may insert runs and mail, but change no run."""

    async def start(self, runs: Sequence[NewRun], at_once: bool) -> list[str]:
        """All or none. Starts with keys or names go over a connection of their own, unless they have to wait for
        the commit of another transaction; those that have wait apart."""
        if all(run.key is None and run.unique is None for run in runs):
            return await self._start_without_keys(runs)
        try:
            return await self._start_with_keys(runs, at_once)
        except MissingRight:
            if self._only_inserts or not any(run.unique for run in runs):
                raise
        self._only_inserts = True
        return await self._start_with_keys(runs, at_once)

    async def _start_with_keys(self, runs: Sequence[NewRun], at_once: bool) -> list[str]:
        if not at_once:
            return await self._held.start(lambda connection, longest: self._start_keys(connection, runs, longest))
        async with self._kept_for_keys.use() as connection:
            return await self._start_keys(connection, runs, GLANCE_MS)

    async def _start_without_keys(self, runs: Sequence[NewRun]) -> list[str]:
        async with self._kept.use() as connection:
            groups, dag_steps = _groups(runs)
            alone = len(groups) == 1 and not (dag_steps or groups[0][0].tags) and len(runs) <= self._batch
            if alone and not any(run.attributes for run in runs):
                await self._insert(connection, *groups[0])
            else:
                async with transaction(connection):
                    await self._insert_all(connection, groups, dag_steps)
            return [run.id for run in runs]

    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """All or none, and none if too many would be ready."""
        return await self._held.start(lambda connection, longest: self._start_keys(connection, runs, longest, bound))

    async def _insert_bounded(self, connection: Any, runs: Sequence[NewRun], bound: Bound) -> dict[str, str] | None:
        count, far = self._sql["count_ready"], bound.beyond(len(runs))
        turn = f"starts {bound.queue}"
        if not await connection.fetch(self._sql["take_turn"], turn):
            await connection.execute(self._sql["make_turn"], turn)
            await connection.fetch(self._sql["take_turn"], turn)
        before = await connection.fetchval(count, bound.queue, far)
        owners = await self._insert_named(connection, runs, self._only_inserts)
        bound.check(before, await connection.fetchval(count, bound.queue, far))
        return owners

    async def _insert_named(self, connection: Any, runs: Sequence[NewRun], joins: bool) -> dict[str, str] | None:
        """The runs, in a transaction that is open; which runs those with names have become. None: to be begun again."""
        named, others = apart(runs)
        if others:
            await self.insert(connection, others)
        return (await self.driver.join(connection, start_named(named, self._most_signals, joins))) if named else {}

    async def _start_keys(
        self, connection: Any, runs: Sequence[NewRun], longest_ms: int, bound: Bound | None = None
    ) -> list[str]:
        for _ in range(_TRIES):
            try:
                async with transaction(connection, longest_ms):
                    if bound is None:
                        owners = await self._insert_named(connection, runs, self._only_inserts)
                    else:
                        owners = await self._insert_bounded(connection, runs, bound)
            except asyncpg.LockNotAvailableError:
                raise KeysHeld from None
            if owners is not None and (ids := await self._resolve_keys(connection, runs, owners)) is not None:
                return ids
        raise _keys_come_and_go()

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs in the caller's transaction, or if there is none, in one of its own."""
        async with self._callers.within(connection) as theirs:
            for _ in range(_TRIES):
                owners = await self._insert_named(theirs, runs, joins=True)
                if owners is not None and (ids := await self._resolve_keys(theirs, runs, owners)) is not None:
                    return ids
            raise _keys_come_and_go()

    async def insert(self, connection: Any, runs: Sequence[NewRun]) -> bool:
        """The runs, inside a transaction that is open already; whether all of those that have a name are new."""
        if any(run.unique is not None for run in runs):
            return await self.driver.join(connection, insert(runs))
        await self._insert_all(connection, *_groups(runs))
        return True

    async def _insert_all(self, connection: Any, groups: list[Group], dag_steps: list[NewRun]) -> None:
        for shape, kind, group in groups:
            for first in range(0, len(group), self._batch):
                await self._insert(connection, shape, kind, group[first : first + self._batch], first)
        for first in range(0, len(dag_steps), self._batch):
            await self._insert_dag_steps(connection, dag_steps[first : first + self._batch], first)
        tags = [(run.id, tag) for shape, _, group in groups if shape.tags for run in group for tag in shape.tags]
        for first in range(0, len(tags), self._batch):  # of all groups together: runs of schedules differ in their tags
            some = tags[first : first + self._batch]
            await connection.execute(self._sql["start_tags"], *map(list, zip(*some, strict=True)))
        attributes = [(run.id, *each) for _, _, group in groups for run in group for each in run.attributes]
        for first in range(0, len(attributes), self._batch):
            columns = zip(*attributes[first : first + self._batch], strict=True)
            await connection.execute(self._sql["start_attributes"], *map(list, columns))

    async def _insert(
        self, connection: Any, shape: RunShape, kind: str, runs: Sequence[NewRun], first: int = 0
    ) -> None:
        if kind == _DAG:
            await self._insert_dags(connection, shape, runs)
        else:
            await self._insert_runs(connection, shape, kind == _LINKED, runs, first)

    async def _insert_runs(
        self, connection: Any, shape: RunShape, linked: bool, runs: Sequence[NewRun], first: int
    ) -> None:
        await connection.execute(
            self._sql["start_linked_alike" if linked else "start_alike"],
            [run.id for run in runs],
            [run.input for run in runs],
            [run.key for run in runs],
            shape.workflow,
            shape.version,
            shape.queue,
            shape.priority,
            shape.delay_ms,
            shape.at_ms,
            shape.expires_ms,
            shape.deadline_ms,
            shape.max_attempts,
            shape.timeout_ms,
            _tags(shape),
            shape.concurrency_key,
            shape.format,
            first,
            *(_links(runs) if linked else ()),
            new_seed(),
        )

    async def _insert_dags(self, connection: Any, shape: RunShape, runs: Sequence[NewRun]) -> None:
        """Dag runs; their steps come after all of them."""
        await connection.execute(
            self._sql["start_dag"],
            [run.id for run in runs],
            [run.input for run in runs],
            [run.key for run in runs],
            shape.workflow,
            shape.version,
            shape.queue,
            shape.priority,
            shape.deadline_ms,
            shape.max_attempts,
            shape.timeout_ms,
            _tags(shape),
            shape.concurrency_key,
            shape.format,
            *_links(runs),
            [run.graph for run in runs],
            [run.steps for run in runs],
            new_seed(),
        )
        bring = [run for run in runs if run.graph_text is not None]
        if bring:
            await connection.execute(
                self._sql["start_graphs"], [run.id for run in bring], [run.graph_text for run in bring]
            )

    async def _insert_dag_steps(self, connection: Any, runs: Sequence[NewRun], first: int) -> None:
        """Steps of dag runs that were started in this transaction."""
        columns = zip(*(_dag_step_row(run, first + n) for n, run in enumerate(runs)), strict=True)
        await connection.execute(self._sql["start_dag_steps"], *map(list, columns), first, new_seed())

    async def _resolve_keys(self, connection: Any, runs: Sequence[NewRun], owners: dict[str, str]) -> list[str] | None:
        """Which runs have the keys, beside those that have names. None: one that had a key when
        we wanted it was removed since, and the key is free: to be started again."""
        keyed: dict[str, list[NewRun]] = {}
        for run in runs:
            if run.key is not None:
                keyed.setdefault(run.shape.workflow, []).append(run)
        for workflow, theirs in keyed.items():
            columns = [workflow] * len(theirs), [run.key for run in theirs], [run.id for run in theirs]
            found = {str(row["ours"]): row for row in await connection.fetch(self._sql["by_keys"], *columns)}
            if len(found) < len(theirs):
                return None
            owners |= {ours: str(row["id"]) for ours, row in found.items()}
            if any(row["reads"] for row in found.values()):
                await self._learn_earlier(connection, [run for run in theirs if owners[run.id] != run.id], owners)
        return [owners.get(run.id, run.id) for run in runs]

    async def _learn_earlier(self, connection: Any, runs: list[NewRun], owners: dict[str, str]) -> None:
        """What the runs were started with that have the keys of these."""
        if runs:
            rows = await connection.fetch(self._sql["earlier"], list({owners[run.id] for run in runs}))
            inputs = {str(row["id"]): (row["input"], row["format"]) for row in rows}
            for run in runs:
                run.earlier = inputs.get(owners[run.id])


def _keys_come_and_go() -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "other runs took the key or the name of this start and gave it up again, at every try; start it again"
    )


def _groups(runs: Sequence[NewRun]) -> tuple[list[Group], list[NewRun]]:
    """Runs that differ only in id, input and key; apart from them those that also have a parent, an origin or a
    trace, and dag runs. And steps of dag runs, which may all be of different shapes."""
    groups: dict[tuple[RunShape, str], list[NewRun]] = {}
    dag_steps: list[NewRun] = []
    shape, kind, group = None, _PLAIN, list[NewRun]()
    for run in runs:
        if run.dag_step is not None:
            dag_steps.append(run)
            continue
        linked = run.parent is not None or run.origin is not None or run.trace is not None
        its = _DAG if run.steps else _LINKED if linked else _PLAIN
        if run.shape is not shape or its is not kind:  # mostly all are alike, and a shape is large to compare
            shape, kind = run.shape, its
            group = groups.setdefault((shape, kind), [])
        group.append(run)
    return [(shape, kind, group) for (shape, kind), group in groups.items()], dag_steps


def _tags(shape: RunShape) -> str | None:
    return msgspec.json.encode(shape.tags).decode() if shape.tags else None


def _dag_step_row(run: NewRun, ordinal: int) -> tuple[Any, ...]:
    """In the order of the statement's arrays."""
    shape, dag_step = run.shape, run.dag_step
    assert dag_step is not None
    return (
        run.id,
        shape.workflow,
        shape.version,
        shape.queue,
        shape.priority,
        shape.delay_ms,
        shape.at_ms,
        shape.expires_ms,
        shape.deadline_ms,
        shape.max_attempts,
        shape.timeout_ms,
        shape.concurrency_key,
        shape.format,
        run.input,
        run.graph,
        dag_step.dag_id,
        dag_step.name,
        dag_step.pending,
        ordinal,
    )


def _links(runs: Sequence[NewRun]) -> list[list[Any]]:
    """Parent, its branch and position, the id it waits for, the origin and the trace, as columns."""
    rows = [(*(run.parent or (None, None, None, None)), run.origin, run.trace) for run in runs]
    return [list(column) for column in zip(*rows, strict=True)]
