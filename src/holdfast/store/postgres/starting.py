"""Starting runs on Postgres: many by one statement, on our own connection or in a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...model.records import NewRun, RunShape
from .callers import within
from .connections import Line


class Starts:
    """Inserts runs."""

    def __init__(self, line: Line, keyed_line: Line, statements: dict[str, str], batch: int) -> None:
        self._line = line
        self._keyed_line = keyed_line
        self._sql = statements
        self._batch = batch

    async def start(self, runs: Sequence[NewRun]) -> list[str]:
        """All or none. Starts with keys go over a line of their own: they may have to wait for somebody's commit."""
        keyed = any(run.key is not None for run in runs)
        async with (self._keyed_line if keyed else self._line).use() as connection:
            groups = _groups(runs)
            if len(groups) == 1 and not keyed and not groups[0][0].tags and len(runs) <= self._batch:
                await self._insert(connection, *groups[0])
                return [run.id for run in runs]
            async with connection.transaction():
                await self._insert_groups(connection, groups)
            return await self._resolve_keys(connection, runs) if keyed else [run.id for run in runs]

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """The same in the caller's transaction, or if there is none, in one of its own."""
        async with within(connection) as theirs:
            await self.insert(theirs, runs)
            return await self._resolve_keys(theirs, runs)

    async def insert(self, connection: Any, runs: Sequence[NewRun]) -> None:
        """The runs, inside a transaction that is open already."""
        await self._insert_groups(connection, _groups(runs))

    async def _insert_groups(self, connection: Any, groups: list[tuple[RunShape, bool, list[NewRun]]]) -> None:
        for shape, linked, group in groups:
            for first in range(0, len(group), self._batch):
                await self._insert(connection, shape, linked, group[first : first + self._batch], first)

    async def _insert(
        self, connection: Any, shape: RunShape, linked: bool, runs: Sequence[NewRun], first: int = 0
    ) -> None:
        ids = [run.id for run in runs]
        tags = msgspec.json.encode(shape.tags).decode() if shape.tags else None
        await connection.execute(
            self._sql["start_linked" if linked else "start"],
            ids,
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
            tags,
            shape.concurrency_key,
            shape.format,
            first,
            *(_links(runs) if linked else ()),
        )
        if shape.tags:
            await connection.execute(self._sql["start_tags"], ids, list(shape.tags))

    async def _resolve_keys(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        keys: dict[str, list[str]] = {}
        for run in runs:
            if run.key is not None:
                keys.setdefault(run.shape.workflow, []).append(run.key)
        found = {
            (workflow, row["key"]): str(row["id"])
            for workflow, names in keys.items()
            for row in await connection.fetch(self._sql["by_keys"], workflow, names)
        }
        return [run.id if run.key is None else found[run.shape.workflow, run.key] for run in runs]


def _groups(runs: Sequence[NewRun]) -> list[tuple[RunShape, bool, list[NewRun]]]:
    """Runs that differ only in id, input and key; apart from them those that also have a parent or an origin."""
    groups: dict[tuple[RunShape, bool], list[NewRun]] = {}
    for run in runs:
        linked = run.parent is not None or run.origin is not None
        groups.setdefault((run.shape, linked), []).append(run)
    return [(shape, linked, group) for (shape, linked), group in groups.items()]


def _links(runs: Sequence[NewRun]) -> list[list[Any]]:
    """Parent, its branch and position, the id it waits for, and the origin, as columns."""
    rows = [(*(run.parent or (None, None, None, None)), run.origin) for run in runs]
    return [list(column) for column in zip(*rows, strict=True)]
