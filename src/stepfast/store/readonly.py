"""Bounded queries for consoles and monitors: answers are shared for a moment, and given up after a few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple

from ..errors import StepfastError
from ..model.records import RUN_ITSELF, StepRecord
from ..model.rows import ActivityRow, RunRow
from ..model.status import AT_REST, FAILED, QUEUED, RUNNING, WAITING
from ..settings import Settings
from .answers import Alike, RunCount
from .flows import limits
from .flows.base import Ask, Flow, T
from .queries import Queries
from .run_lists import Filters, RunLists, fits
from .sql import OLDEST

_TIMES = 20
"""An answer holds for so many times what it took to find: a question takes a twentieth of one connection at most."""
_LONGEST = 60.0
"""But no longer than a minute."""
_MOST = 500
"""Answers that are kept. The oldest go first."""


class CacheContext:
    """What one visitor has been given: how old it is, and how old it may be."""

    def __init__(self) -> None:
        self.floor = -inf
        """Nothing that was asked before is to be given, unless it takes long to find."""
        self.oldest = inf
        """When the oldest answer was asked for that was given."""


CACHE_CONTEXT: ContextVar[CacheContext | None] = ContextVar("stepfast_cache_context", default=None)
"""Of the visitor who is being served."""


class _Kept(NamedTuple):
    answer: Any
    until: float
    began: float
    slow: bool


class Remembered:
    """The answers of one process, within one event loop."""

    def __init__(self, fresh: float) -> None:
        self._fresh = fresh
        self._kept: dict[object, _Kept] = {}
        self._under_way: dict[object, tuple[asyncio.Task[Any], float]] = {}
        self.asked = 0
        """Questions that were put to the database so far."""

    async def get(self, key: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer that still holds, or a new one."""
        kept, context = self._kept.get(key), CACHE_CONTEXT.get()
        if kept is not None and _holds(kept, context):
            return kept.answer
        if key in self._under_way:
            task, began = self._under_way[key]
        else:
            task, began = asyncio.create_task(self._ask(key, ask)), time.monotonic()
            self._under_way[key] = task, began
            task.add_done_callback(lambda done: self._ended(key, done))
        if context is not None:
            context.oldest = min(context.oldest, began)
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Something was changed, and is to be seen: nothing that was asked before holds."""
        self._kept.clear()
        self._under_way.clear()

    async def _ask(self, key: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        self.asked += 1
        began = time.monotonic()
        answer = await ask()
        now = time.monotonic()
        if self._is_asking(key, asyncio.current_task()):
            self._tidy(now)
            holds = _TIMES * (now - began)
            until = now + min(max(self._fresh, holds), _LONGEST)
            self._kept[key] = _Kept(answer, until, began, holds > self._fresh)
        return answer

    def _tidy(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            del self._kept[key]
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]

    def _is_asking(self, key: object, task: asyncio.Task[Any] | None) -> bool:
        return key in self._under_way and self._under_way[key][0] is task

    def _ended(self, key: object, task: asyncio.Task[Any]) -> None:
        if self._is_asking(key, task):
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # retrieved: its caller may be gone


def _holds(kept: _Kept, context: CacheContext | None) -> bool:
    """Whether an answer is still good for a visitor, who is then told how old it is."""
    if time.monotonic() >= kept.until:
        return False
    if context is None:
        return True
    if kept.began < context.floor and not kept.slow:
        return False
    context.oldest = min(context.oldest, kept.began)
    return True


FAR = 50_000
"""Rows that are looked at for a page of a list, where no index knows what it is narrowed by."""
MOST_ROWS = 10_001
"""Rows that one question brings at most: those that are counted, and one by which it is known that there are more."""
_DAGS = 1000
"""Dag runs under way that are looked at for how they are shown."""
_DEBOUNCED = 10_000
"""Of the newest runs so many are looked at for a key that starts were debounced by: no index holds those that began."""


class TookTooLong(StepfastError):
    """A question was given up, because the database needed too long for it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database needed more than {seconds:g} s for this question, and it was given up: narrow it down, "
            "or try again when less is going on"
        )


class FoundRuns(NamedTuple):
    """Runs that were found, and how far they were looked for."""

    ids: list[str]
    reached: str | None
    """The run at which the look ended before there were enough; None: there were, or there is nothing beyond."""


class UnreadSignal(NamedTuple):
    """A signal that a run has not taken."""

    id: str
    name: str
    sent_at: int
    delivered: bool
    size: int | None
    value: str | None
    """None: it is large."""
    format: int


class StreamPart(NamedTuple):
    """An item of a stream, for people."""

    number: int
    attempt: int
    restarted: bool
    value: str | None
    """None: it is large, or the end of the stream."""
    format: int
    sent_at: int
    size: int | None
    """None: it is the end of the stream."""


class LeanStep(NamedTuple):
    """A record without the payloads that are large, and how large they are."""

    record: StepRecord
    output_size: int | None
    arguments_size: int | None


class TableSize(NamedTuple):
    """How large a table is, as far as the database knows without looking through it."""

    name: str
    rows: int | None
    bytes: int | None
    of_indexes: int | None
    dead: int | None
    """Rows that a vacuum will take away."""


class BaseGlance(Queries):
    """The part of a glance that is the same on every database."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._named = {}
        self.remembered = Remembered(settings.console_query_cache)

    async def _ask(self, name: str, *arguments: Any) -> Sequence[Any]:
        """Put a question to the database."""
        raise NotImplementedError

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        """The answer to a question, which may have been asked by another caller a moment ago."""
        rows: Sequence[Any] = await self.remembered.get(
            (name, repr(arguments)), lambda: self._ask(name, *arguments)
        )  # fmt: skip
        return rows

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Flows write, but for one that measures a queue."""
        allowed: object = limits.measure
        if flow is not allowed:
            raise AssertionError("a glance writes nothing")
        steps, answer = flow(*arguments), None
        try:
            while True:
                request = steps.send(answer)
                assert isinstance(request, Ask), "a glance writes nothing"
                answer = await self._fetch(request.name, *request.arguments)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _sweep(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise AssertionError("a glance writes nothing")

    def _way(self, filters: Filters) -> tuple[str, str | None]:
        """Along what runs are looked for, and by which value; a database may know more ways."""
        if filters.tag is not None:
            return "tagged", filters.tag
        return ("at_rest", filters.status) if filters.status in AT_REST else ("runs", None)

    async def _page(self, filters: Filters, oldest_first: bool) -> Sequence[Any]:
        found, _ = await self._rows(filters, FAR, oldest_first)
        ids = sorted(found, reverse=not oldest_first)[: filters.limit]
        rows = {row[0]: row for row in await self._fetch("runs_named", ids)} if ids else {}
        return [rows[run_id] for run_id in ids if run_id in rows]

    async def stream_part(self, run_id: str, name: str, low: int, high: int, large: int) -> list[StreamPart]:
        """The items of a stream after one number and up to another."""
        rows = await self._fetch("glance_stream", run_id, name, low, high, large)
        return [StreamPart(*row)._replace(restarted=bool(row[2])) for row in rows]

    # -- finding runs ----------------------------------------------------------------------------------------------

    async def find(self, filters: Filters, far: int, oldest_first: bool = False) -> FoundRuns:
        """The first runs that the filters let through, looking at ``far`` rows at most."""
        found, reached = await self._rows(filters, far, oldest_first)
        ids = await self._as_shown(filters, found, oldest_first)
        return FoundRuns(sorted(ids, reverse=not oldest_first)[: filters.limit], reached)

    async def _rows(self, filters: Filters, far: int, oldest_first: bool) -> tuple[dict[str, bool], str | None]:
        """Runs by what their rows say, with whether they are dag runs under way; and where the look ended."""
        turn = OLDEST * oldest_first
        along = filters.way
        if along is None:
            found = await self._by_indexes(turn, filters, (*filters.usual, far, filters.tag))
            if found is not None:
                return found, None
            way, value = self._way(filters)
            values: tuple[Any, ...] = () if value is None else (value,)
            rows = await self._fetch(f"{turn}glance_{way}", *filters.usual, far, filters.tag)
        else:
            way, values = along
            rows = await self._fetch(f"{turn}runs_{way}", *filters.along(far))
        reached = None
        if len(rows) < filters.limit:
            end = [filters.before, far, *values]
            ends = await self._fetch(f"{turn}glance_end_{way}", *end)
            reached = next((last for last, seen in ends if seen == far), None)
        return {row[0]: bool(row[1]) for row in rows}, reached

    async def _by_indexes(self, turn: str, filters: Filters, looked: Sequence[Any]) -> dict[str, bool] | None:
        """Runs that have places of their own to be found in: those of a key, those that are held or in a queue."""
        if filters.tag is not None:
            return None
        if filters.key is not None:
            rows = await self._fetch(f"{turn}glance_keyed", *looked)
            rows = [*rows, *await self._fetch(f"{turn}glance_runs", *looked[:9], _DEBOUNCED, None)]
            return {row[0]: bool(row[1]) for row in rows}
        if filters.status == RUNNING:
            return {row[0]: bool(row[1]) for row in await self._fetch(f"{turn}glance_running", *looked)}
        if filters.status == QUEUED:
            rows = await self._fetch(f"{turn}glance_queued", *looked[:9], MOST_ROWS, None)
            if not rows or rows[0][2]:
                return {row[0]: False for row in rows}
        return None

    async def _as_shown(self, filters: Filters, found: dict[str, bool], oldest_first: bool) -> list[str]:
        """The runs, of those found, that are shown with the status that is asked for; and dag runs that are shown with
        it while their rows say otherwise."""
        if filters.status is None:
            return list(found)
        lists = RunLists(self)
        dags = [run_id for run_id, is_dag in found.items() if is_dag][:_DAGS]
        otherwise = {each.id for each in await lists.shown(dags) if each.status != filters.status} if dags else set()
        ids = [run_id for run_id in found if run_id not in otherwise]
        if filters.status in (QUEUED, WAITING):
            limit = min(filters.limit, _DAGS)
            name = f"{OLDEST * oldest_first}glance_dags_as"
            shown = await self._fetch(name, filters.status, filters.before, limit, _DAGS)
            rows = await lists.named([row[0] for row in shown]) if shown else []
            ids += [row.id for row in rows if row.status == RUNNING and fits(filters, row)]
        return ids

    async def named(self, ids: Sequence[str]) -> list[RunRow]:
        """The runs with these ids, the newest first, as they are shown in lists."""
        if not ids:
            return []
        lists = RunLists(self)
        rows = sorted(await lists.named(list(ids)), key=lambda row: row.id, reverse=True)
        await lists.show(rows)
        return rows

    async def ids_ending_with(self, digits: str, far: int, limit: int) -> list[str]:
        """Runs whose ids end like this, among the newest ``far``."""
        return [row[0] for row in await self._fetch("glance_id_ends", digits, far, limit)]

    async def with_inputs(self, ids: Sequence[str], texts: tuple[str, str], largest: int) -> dict[str, int]:
        """The runs, of those named, that have one of the texts in their inputs (0), and those that cannot be looked
        into: because the input is larger than that (1), or passed through a codec (2)."""
        return {row[0]: row[1] for row in await self._fetch("glance_inputs", list(ids), *texts, largest)}

    # -- about one run -----------------------------------------------------------------------------------------------

    async def children(self, ids: Sequence[str], each: int) -> list[tuple[str, str]]:
        """(parent, child): so many children of each of these runs at most."""
        return [(row[0], row[1]) for row in await self._fetch("glance_children", list(ids), each)] if ids else []

    async def ancestors(self, run_id: str, most: int) -> list[str]:
        """The runs above one, the nearest first."""
        return [row[0] for row in await self._fetch("glance_parents", run_id, most)]

    async def unread_signals(self, run_id: str, limit: int, largest: int) -> list[UnreadSignal]:
        """Signals that a run has not taken, the oldest first."""
        rows = await self._fetch("glance_mailbox", run_id, limit, largest)
        return [UnreadSignal(*row)._replace(delivered=bool(row[3])) for row in rows]

    async def lean_steps(
        self, run_id: str, after: tuple[str, int] = ("", -1), limit: int = 1000, largest: int = 1024
    ) -> list[LeanStep]:
        """A page of records, without the payloads that have more bytes than ``largest``."""
        rows = await self._fetch("glance_steps", run_id, *after, limit, largest)
        return [LeanStep(StepRecord(*tuple(row)[:-2]), row[-2], row[-1]) for row in rows]

    async def failed_tries(
        self, run_id: str, after: tuple[str, int] = ("", RUN_ITSELF - 1), limit: int = 500, largest: int = 4096
    ) -> list[ActivityRow]:
        """Failed tries of the steps behind an address, and from the beginning also those of the run itself; without the
        errors that have more bytes than ``largest``, and without arguments."""
        rows = await self._fetch("glance_tries", run_id, *after, limit, largest)
        return [
            ActivityRow(branch, position, name, attempt, number, FAILED, None, None, error, started, ended, *rest)
            for branch, position, name, attempt, number, error, started, ended, *rest in rows
        ]

    async def step_payloads(
        self, run_id: str, branch: str, position: int
    ) -> tuple[str | None, str | None, str | None, int] | None:
        """Output, arguments and error of one record, and their format; None if there is no such record."""
        rows = await self._fetch("glance_step", run_id, branch, position)
        return tuple(rows[0]) if rows else None

    async def news(self, runs: Sequence[str], newest: int) -> dict[str, list[str]]:
        """How runs stand, and under the empty name how the newest so many of all do, as texts that differ when
        something has happened. This is asked again each time: its callers look for changes."""
        self.remembered.asked += 1
        found: dict[str, list[str]] = {}
        for run, stands in await self._ask("glance_news", list(runs), newest):
            found.setdefault(run, []).append(stands)
        return found

    # -- about all of it -----------------------------------------------------------------------------------------------

    async def depths(self, most: int) -> list[tuple[str, str, int]]:
        """(queue, how they stand, how many): runs that are ``running``, ``waiting``, ``delayed`` or ``due``. Of each
        kind ``most`` are counted over all queues."""
        return [tuple(row) for row in await self._fetch("glance_depths", most)]

    async def ended_lately(self, runs: int, since_ms: int) -> list[RunCount]:
        """What ended within a span of time, among the newest ``runs``."""
        return [RunCount(*row) for row in (await self._fetch("stats_ended", runs, since_ms))[1:]]

    async def failed_alike(self, alike: Alike, since_ms: int, counts: int) -> list[str]:
        """The runs that failed like this and can be retried, of those that ``failures`` tells of."""
        rows = await self._fetch("glance_failed_alike", counts, since_ms)
        ids = next((row[-1] for row in rows if tuple(row[:4]) == alike), None)
        return sorted((ids or "").split())

    async def sizes(self) -> list[TableSize]:
        """How large the tables are."""
        raise NotImplementedError

    async def whole_size(self) -> int | None:
        """How many bytes the file has, where the database is one."""
        return None
