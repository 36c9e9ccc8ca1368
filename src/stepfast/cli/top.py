"""``top``: runs, queues, workers and failures, live in the terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..app import Stepfast
from ..errors import ConfigurationError, StepfastError, message_of
from ..model.records import WorkerInfo
from ..model.urls import scrub
from ..monitoring.text import at_work_in_words, count, lasting, printable, queues_of, worker_name
from ..runtime import database_shown
from ..stats import Stats
from ..store.answers import LONG_AT_WORK, AtWork
from ..telemetry.gauges import MOST, Overview, look
from .admin import FAILURES, failure_rows
from .command import Session, time_option
from .output import make_table, print_plain, write_json

_PATIENCE = 5.0
"""Seconds for the queries of one update."""
_LATELY = 600.0
"""The span of the statistics, in seconds."""
_STATS_EVERY = 15.0
"""Seconds between two queries of the statistics, which cost more than the rest."""
_SHORTEST = 0.5
_SHOWN = 15
"""Rows of each table on a terminal; a file or a pipe gets all of them."""


class Screenful(NamedTuple):
    """What is shown at one time."""

    overview: Overview
    stats: Stats
    long: list[AtWork]
    """Calls that have been executing for a long time."""
    took: float
    """Seconds that the database needed for the first part."""


async def top(
    session: Session,
    interval: Annotated[float, time_option("--interval", help="How often to query. (2s)")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Query once, and end.")] = False,
) -> None:
    """Show runs, queues, workers and recent failures, and update them until Ctrl+C.

    The queries are bounded: counts stop at 10 000. Where stdout is no terminal, each update is written as plain text;
    with --json, as one line.
    """
    if interval < _SHORTEST:
        raise ConfigurationError(
            f"--interval must be at least {_SHORTEST:g} s, so that the database is not asked too often"
        )
    async with session.looking() as app:
        watch = Watch(app)
        try:
            if once or session.json or not sys.stdout.isatty():
                await _write_screenfuls(watch, session.json, None if once else interval)
            else:
                await _show_screenfuls(watch, interval)
        except asyncio.CancelledError:  # ends here: Ctrl+C is how one leaves, and nothing is broken off by it
            if once:
                raise


class Watch:
    """Queries the database of an application."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._stats: Stats | None = None
        self._stats_at = 0.0

    async def look(self) -> Screenful:
        """Query the present state; statistics are up to a few seconds old."""
        began = time.monotonic()
        async with asyncio.timeout(_PATIENCE):
            store = await self._app.store()
            overview, long = await look(store), await store.long_at_work(LONG_AT_WORK, MOST)
        took = time.monotonic() - began
        if self._stats is None or began - self._stats_at >= _STATS_EVERY:
            self._stats, self._stats_at = await self._lately(), began
        return Screenful(overview, self._stats, long, took)

    async def _lately(self) -> Stats:
        """Query the statistics; if that takes too long, return those known before."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._app.stats(_LATELY)
        except TimeoutError:
            if self._stats is None:
                raise
            return self._stats

    @property
    def where(self) -> str:
        """The database, without its password."""
        return f"{database_shown(self._app.url)} · {self._app.namespace}"


async def _write_screenfuls(watch: Watch, as_json: bool, interval: float | None) -> None:
    while True:
        found = await watch.look()
        if as_json:
            write_json(_shape(found))
        else:
            print_plain(Group(*_parts(watch.where, found, sys.maxsize), Text("")))
        sys.stdout.flush()
        if interval is None:
            return
        await asyncio.sleep(interval)


async def _show_screenfuls(watch: Watch, interval: float) -> None:
    """On a terminal, which is given back as it was."""
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            live.update(await screen(watch), refresh=True)
            await asyncio.sleep(interval)


async def screen(watch: Watch) -> RenderableType:
    """Return what is shown; while the database does not answer, its error."""
    try:
        return Group(*_parts(watch.where, await watch.look(), _SHOWN))
    except (StepfastError, TimeoutError) as error:
        said = scrub(message_of(error)) or f"no answer within {lasting(_PATIENCE)}"
        return Group(Text(watch.where, style="bold"), Text(printable(f"the database does not answer: {said}"), "red"))


# -- for people -----------------------------------------------------------------------------------------------------


def _parts(where: str, found: Screenful, most: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_headline(where, found), Text(""), *_queues(found.overview, most)]
    parts += [Text(""), *_workers(found.overview.workers, most)]
    if found.stats.failures:
        heading = Text(f"failed within {lasting(_LATELY)}", style="bold")
        parts += [Text(""), heading, *_table(FAILURES, failure_rows(found.stats), most)]
    return parts


def _headline(where: str, found: Screenful) -> Text:
    census = found.overview.census
    ready = sum(queue.ready for queue in found.overview.queues)
    numbers = {"ready": ready, **census.runs}
    told = "  ".join(f"{_counted(number)} {name}" for name, number in numbers.items())
    ended = "  ".join(f"{number} {name}" for name, number in _ended(found.stats).items())
    lines = [
        f"{where} · answered in {found.took * 1000:.0f} ms",
        told,
        f"ended within {lasting(_LATELY)}: {ended or 'nothing'}",
    ]
    if census.timer_lag >= 1:
        lines.append(f"a run has been due for {lasting(census.timer_lag)}, and no worker has made it ready")
    if census.undelivered:
        lines.append(f"{_counted(census.undelivered)} signals and results of children are not delivered yet")
    lines += [f"executing: {at_work_in_words(each)}" for each in found.long[:3]]
    if len(found.long) > 3:
        lines.append(f"and {len(found.long) - 3} more that have been executing for more than {lasting(LONG_AT_WORK)}")
    lines += [f"schedule {name!r} is late by {lasting(late)}" for name, late in found.overview.late[:3]]
    text = Text(printable(lines[0]), style="bold")
    return text.append("\n" + "\n".join(printable(line) for line in lines[1:]), style="not bold")


def _queues(overview: Overview, most: int) -> list[RenderableType]:
    rows = [
        [queue.name, "paused" if queue.paused else "limited" if queue.limited else "", _counted(queue.ready),
         lasting(queue.oldest) if queue.ready else "", str(queue.workers or "none")]
        for queue in overview.queues
    ]  # fmt: skip
    return _table(("queue", "state", "ready", "oldest", "workers"), rows, most) or [Text("no queues")]


def _workers(workers: Sequence[WorkerInfo], most: int) -> list[RenderableType]:
    busiest = sorted(workers, key=lambda worker: (worker.state == "dead", -worker.running, worker_name(worker)))
    rows = [
        [worker_name(worker), worker.state, f"{worker.running} of {worker.concurrency}", queues_of(worker),
         f"{lasting(worker.age_ms / 1000)} ago"]
        for worker in busiest
    ]  # fmt: skip
    return _table(("worker", "state", "runs", "queues", "last heartbeat"), rows, most) or [Text("no workers")]


def _table(columns: Sequence[str], rows: list[list[str]], most: int) -> list[RenderableType]:
    if not rows:
        return []
    more = [Text(f"and {count(len(rows) - most, 'more row')}", style="dim")] if len(rows) > most else []
    return [make_table(columns, rows[:most]), *more]


def _counted(number: int) -> str:
    """A count, which stops at a bound."""
    return f"{MOST}+" if number >= MOST else str(number)


def _ended(stats: Stats) -> dict[str, int]:
    ended: dict[str, int] = {}
    for row in stats.runs:
        if row.oldest is None:
            ended[row.status] = ended.get(row.status, 0) + row.count
    return ended


# -- for scripts ----------------------------------------------------------------------------------------------------


def _shape(found: Screenful) -> dict[str, Any]:
    census, overview = found.overview.census, found.overview
    return {
        "at": datetime.now(UTC),
        "runs": census.runs,
        "queues": [queue._asdict() for queue in overview.queues],
        "workers": [
            {"worker": worker_name(worker), "id": worker.id, "state": worker.state, "running": worker.running,
             "concurrency": worker.concurrency, "queues": worker.queues, "silent_for": worker.age_ms / 1000}
            for worker in overview.workers
        ],
        "timer_lag": census.timer_lag,
        "undelivered": census.undelivered,
        "late_schedules": dict(overview.late),
        "ended": _ended(found.stats),
        "failures": [dataclasses.asdict(row) for row in found.stats.failures],
        "long_running": [
            {"run": each.run_id, "workflow": each.workflow, "step": each.step, "seconds": each.seconds}
            for each in found.long
        ],
        "answered_in": found.took,
    }  # fmt: skip
