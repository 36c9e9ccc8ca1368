"""The dispatcher of events: wakes runs that wait for what was published, and starts the runs that events start.

The sweeper's question tells when there is something. One worker at a time numbers and matches events; any worker with
the code of a subscription starts its runs, each in the transaction that notes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import DatabaseUnavailable, sentence
from ..model.backoff import seconds
from ..model.records import NewRun, Tick
from ..model.rows import DueEventStart
from ..store.flows.events import EventStart, Reached
from .context import WorkerContext
from .scheduler import NOT_THEIRS

if TYPE_CHECKING:
    from .worker import WorkerRuntime

T = TypeVar("T")

_BATCH = 1000
"""Events that are matched, and runs that are woken, in one transaction."""
_STARTS = 100
"""Runs that are started in one transaction."""
_PRUNE_EVERY = 600.0
"""Seconds between two looks for old events."""
_REST = 0.2
"""Seconds between two batches of them."""
_AGAIN_MS = 60_000
"""After this time a start that failed is tried again."""


class StartsOfEvents(Protocol):
    """What the application does for its subscriptions. A protocol, because the application is in a layer above."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Events and the workflows that they start."""
        ...

    async def runs(self, due: DueEventStart) -> list[NewRun]:
        """The rows of the run that an event starts. Raises if there can be none."""
        ...


class EventDispatcher:
    """Sees to what was published whenever the sweeper says that there is something."""

    def __init__(self, context: WorkerContext, starts: StartsOfEvents, runtime: WorkerRuntime) -> None:
        self._context = context
        self._starts = starts
        self._runtime = runtime
        self._reached: Reached | None = None
        self.moved = False
        """Whether the last round did something, so that there may be more."""

    async def round(self, tick: Tick) -> bool:
        """See to a batch; whether runs are being woken, by mail that is to be delivered."""
        woken = False
        store, new_id = self._context.store, self._context.clock.new_id
        due = tick.start_ms is not None and tick.start_ms <= 0
        if tick.events:
            done = await self._ask(lambda: store.match_events(_BATCH, self._reached, new_id))
            self._reached = done.reached
            self.moved, woken, due = done.moved > 0, done.woken > 0, due or done.starts > 0
        if due and (pairs := self._starts.pairs):
            rows = await self._ask(lambda: store.due_event_starts(pairs, _STARTS))
            self.moved = await self._start(rows) or self.moved
        return woken

    async def _start(self, rows: list[DueEventStart]) -> bool:
        """Start runs; whether any was started, or failed to be."""
        ready, failed = list[EventStart](), False
        for row in rows:
            try:
                ready.append(EventStart(row.event.id, row.workflow, await self._starts.runs(row)))
            except DatabaseUnavailable:
                return False  # the sweeper meets it too, and rides it out
            except Exception as error:  # of the function that makes the input, or because the input does not fit
                await self._fail(row.event.id, row.workflow, error)
                failed = True
        return await self._start_ready(ready) or failed

    async def _start_ready(self, starts: list[EventStart]) -> bool:
        """Start runs; what the database refuses is looked for one by one."""
        if not starts:
            return False
        try:
            done = await self._ask(lambda: self._context.store.start_by_events(starts), refusable=True)
        except NOT_THEIRS:
            raise
        except Exception as error:
            if len(starts) > 1:
                return any([await self._start_ready([each]) for each in starts])
            await self._fail(starts[0].event_id, starts[0].workflow, error)
            return True
        if done:
            self._runtime.started([run for each in done for run in each.runs])
        return bool(done)

    async def _fail(self, event_id: str, workflow: str, error: Exception) -> None:
        why = sentence(error).replace("\0", "").encode(errors="replace").decode()
        store = self._context.store
        await self._ask(lambda: store.fail_event_start(event_id, workflow, why, _AGAIN_MS))
        told = "an event cannot start %r: %s. It is tried again in a minute; others go on"
        self._context.logger.error(told, workflow, why)

    async def run(self) -> None:
        """Remove old events now and then, until cancelled, and say which subscriptions this worker still declares."""
        store, kept, clock = self._context.store, self._context.settings.retention_events, self._context.clock
        if kept is None:
            return
        keep = seconds(kept, "retention_events")
        every = min(_PRUNE_EVERY, max(self._context.settings.sweep_interval, keep / 30))
        while True:
            await clock.sleep(every * clock.random.uniform(0.5, 1.0))
            if pairs := self._starts.pairs:
                await self._ask(lambda: store.subscribe(pairs))
            while await self._ask(lambda: store.remove_events(int(keep * 1000), _BATCH)) == _BATCH:
                await clock.sleep(_REST)

    def _ask(self, call: Callable[[], Awaitable[T]], *, refusable: bool = False) -> Coroutine[Any, Any, T]:
        stopped = self._runtime.sweeper
        return self._context.ask(call, "events", lambda: stopped.stopped, refusable=refusable)
