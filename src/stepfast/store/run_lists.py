"""Lists of runs, in which dag runs have the status of their steps, and not that of their rows, which is running.

A dag run whose steps all wait, for an approval say, is shown as waiting, and one that is put off as queued. Nothing is
written for that: it is read off the steps, and only where a run that is read is a dag run under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.attributes import Attribute, read_attributes
from ..model.names import read_tags
from ..model.rows import RunRow
from ..model.status import QUEUED, RUNNING, WAITING
from .flows.base import Rows
from .sql import COUNT, OLDEST

if TYPE_CHECKING:
    from .queries import Queries

_ELSEWISE = frozenset({QUEUED, WAITING})
"""As what a dag run may be shown beside what its row says."""


_PAGE = 1000
EVERY = 2**31 - 1
"""Rows, where there is no bound."""


class Shown(NamedTuple):
    """How a dag run is shown."""

    id: str
    status: str
    waiting_for: str | None
    due_at: int | None


class Filters(NamedTuple):
    """What a list of runs is narrowed by; None: not by that."""

    workflow: str | None
    status: str | None
    queue: str | None
    before: str | None
    reason: str | None
    key: str | None
    limit: int
    since: int | None
    older: int | None
    tag: str | None
    attributes: tuple[Attribute, ...] = ()
    parent: str | None = None
    first: str | None = None
    """The least id, and the greatest."""
    last: str | None = None

    @property
    def usual(self) -> tuple[Any, ...]:
        """Those that every statement takes, in their order."""
        return self[:9]

    @property
    def way(self) -> tuple[str, tuple[Any, ...]] | None:
        """How runs are found that have attributes, a parent or ids in a range: the end of the statement's name, and the
        values it begins with. None: in the other ways."""
        if self.attributes:
            return "with_attributes", tuple(self.attributes[0])
        if self.parent is not None:
            return "of_parent", (self.parent,)
        return None if self.first is None else ("between", (self.first, self.last))

    def along(self, far: int) -> tuple[Any, ...]:
        """The arguments of that statement, which reads so many rows at most."""
        more = (*self.attributes[0], len(self.attributes), Rows(self.attributes)) if self.attributes else ()
        return *self.usual, self.tag, self.parent, self.first, self.last, far, *more


class RunLists:
    """Reads lists of runs, of which some are shown otherwise than their rows say."""

    def __init__(self, store: Queries) -> None:
        self._store = store

    async def _rows(self, filters: Filters, oldest_first: bool) -> list[RunRow]:
        """A page of runs by what their rows say."""
        if filters.way is None:
            return [run_row(row) for row in await self._store._page(filters, oldest_first)]
        name = f"{OLDEST * oldest_first}runs_{filters.way[0]}"
        ids = [row[0] for row in await self._store._fetch(name, *filters.along(EVERY))]
        rows = {row.id: row for row in await self.named(ids)} if ids else {}
        return [rows[run_id] for run_id in ids if run_id in rows]

    async def _count(self, filters: Filters) -> int:
        """How many runs there are by what their rows say."""
        if filters.way is None:
            return await self._store._count(filters)
        rows = await self._store._fetch(f"{COUNT}runs_{filters.way[0]}", *filters.along(EVERY))
        return int(rows[0][0])

    async def named(self, ids: Sequence[str]) -> list[RunRow]:
        """The runs with these ids, as lists have them."""
        return [run_row(row) for row in await self._store._fetch("runs_named", list(ids))]

    async def shown(self, ids: Sequence[str]) -> list[Shown]:
        """How those of these runs are shown that are dag runs under way."""
        return [Shown(*row) for row in await self._store._fetch("dags_shown", list(ids))]

    async def shown_as(self, status: str, before: str | None, limit: int, oldest_first: bool) -> list[Shown]:
        """The first dag runs beyond one that are shown with a status."""
        name = OLDEST * oldest_first + "dags_shown_as"
        return [Shown(*row) for row in await self._store._fetch(name, status, before, limit)]

    async def page(self, filters: Filters, oldest_first: bool) -> list[RunRow]:
        """A page of runs by the status that they are shown with."""
        found = await self._by_rows(filters, oldest_first)
        if filters.status in _ELSEWISE:
            found += await self._by_steps(filters, filters.status, oldest_first)
            found.sort(key=lambda row: row.id, reverse=not oldest_first)
        return found[: filters.limit]

    async def count_shown(self, filters: Filters) -> int:
        """How many runs are shown so, on all pages together."""
        number = await self._count(filters)
        if filters.status in _ELSEWISE:
            return number + await self._count_by_steps(filters, filters.status)
        if filters.status == RUNNING:
            for status in sorted(_ELSEWISE):
                number -= await self._count_by_steps(filters, status)
        return number

    async def _count_by_steps(self, filters: Filters, status: str) -> int:
        """How many dag runs are shown so while their rows say that they run."""
        number, wanted = 0, filters._replace(limit=_PAGE)
        while rows := await self._by_steps(wanted, status, False):
            number += len(rows)
            wanted = wanted._replace(before=rows[-1].id)
        return number

    async def show(self, rows: Sequence[RunRow]) -> None:
        """Put into rows how they are shown."""
        dags = {row.id: row for row in rows if row.status == RUNNING and row.graph is not None and row.dag_id is None}
        for each in await self.shown(list(dags)) if dags else ():
            _put(dags[each.id], each)

    async def _by_rows(self, filters: Filters, oldest_first: bool) -> list[RunRow]:
        """The runs whose rows have the status that is asked for, but for those that are shown otherwise."""
        found: list[RunRow] = []
        while True:
            rows = await self._rows(filters, oldest_first)
            await self.show(rows)
            found += [row for row in rows if filters.status in (None, row.status)]
            if len(rows) < filters.limit or len(found) >= filters.limit:
                return found
            filters = filters._replace(before=rows[-1].id)

    async def _by_steps(self, filters: Filters, status: str, oldest_first: bool) -> list[RunRow]:
        """Dag runs that are shown so while their rows say otherwise."""
        found: list[RunRow] = []
        before = filters.before
        while len(found) < filters.limit:
            shown = await self.shown_as(status, before, filters.limit, oldest_first)
            rows = {row.id: row for row in await self.named([each.id for each in shown])} if shown else {}
            for each in shown:
                row = rows.get(each.id)
                if row is not None and row.status == RUNNING and fits(filters, row):
                    _put(row, each)
                    found.append(row)
            if len(shown) < filters.limit:
                break
            before = shown[-1].id
        return found


def _put(row: RunRow, shown: Shown) -> None:
    if shown.status in _ELSEWISE:
        row.status, row.visible_at = shown.status, shown.due_at
        row.waiting_for = shown.waiting_for if shown.status == WAITING else None


def fits(filters: Filters, row: RunRow) -> bool:
    """Whether a run is in a list, its status and its place in it aside."""
    wanted = filters.workflow, filters.queue, filters.reason, filters.key
    has = row.workflow, row.queue, row.reason, row.key
    age = row.now_ms - row.created_at
    return (
        all(want in (None, value) for want, value in zip(wanted, has, strict=True))
        and (filters.tag is None or filters.tag in row.tags)
        and all(row.attributes.get(each.name) == each.value for each in filters.attributes)
        and filters.parent in (None, row.parent_id)
        and (filters.first is None or filters.last is None or filters.first <= row.id <= filters.last)
        and (filters.since is None or age <= filters.since)
        and (filters.older is None or age > filters.older)
    )


def run_row(row: Sequence[Any]) -> RunRow:
    """The columns come in the order of the fields."""
    run = RunRow(*row)
    run.tags = read_tags(None if run.tags is None else str(run.tags))
    run.attributes = read_attributes(None if run.attributes is None else str(run.attributes))
    run.ready, run.undoing, run.large_output = bool(run.ready), bool(run.undoing), bool(run.large_output)
    return run
