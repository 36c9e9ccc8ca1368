"""Events: publishing them, and the workflows that they start."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .engine.events import Event, time_of
from .engine.invocation import refuse_in_workflow
from .engine.workflow import Workflow
from .errors import ConfigurationError
from .model.names import check_event, check_name
from .model.payload import Payloads
from .model.records import NewRun
from .model.rows import DueEventStart, EventUse, ShownEvent
from .runtime import resolve_app
from .store.answers import MissingRight
from .store.flows.events import NewEvent

if TYPE_CHECKING:
    from .app import Stepfast
    from .runtime import Connected

Input = Callable[[Event[Any]], Any]
"""Makes the input of a run from the event that starts it; what it returns may have to be awaited."""


def event_row_id(name: str, id: str) -> str:
    """The id of the row of an event: the same for the same name and id, so that it is published once."""
    digest = hashlib.sha256(f"{name}\0{id}".encode()).hexdigest()
    return (
        f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) & 3]}{digest[17:20]}-{digest[20:32]}"
    )


_MOST_LISTED = 1000


class Subscriptions:
    """The workflows of an application that events start."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self.declared: dict[tuple[str, str], tuple[Workflow[Any, Any] | str, Input | None]] = {}
        """By the names of the event and the workflow."""
        self._stored: set[tuple[str, str]] = set()
        """Those that this process has stored."""

    def add(self, name: str, workflow: Workflow[Any, Any] | str, input: Input | None) -> None:
        """Declare one. The same may come again, as when a module is loaded twice."""
        longest = self._app.settings.max_name
        check_event(name, longest)
        code = self._app._planner.code(workflow)
        if input is not None and not callable(input):
            raise ConfigurationError(
                f"app.on takes input= as a function of the event, as in input=lambda event: event.data, not {input!r}"
            )
        target = code.name if code is not None else check_name(workflow, "the workflow", longest)
        self.declared[name, target] = (workflow, input)

    # -- for publishers and workers --------------------------------------------------------------------------------

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Those that are declared."""
        return list(self.declared)

    def unstored(self) -> list[tuple[str, str]]:
        """Those that this process has not stored yet. An event starts what was stored before it was published."""
        return [pair for pair in self.declared if pair not in self._stored]

    def stored(self, pairs: list[tuple[str, str]]) -> None:
        """Note that these are stored."""
        self._stored.update(pairs)

    async def store(self, connected: Connected, pairs: list[tuple[str, str]]) -> None:
        """Store these."""
        if pairs:
            try:
                await connected.ask(lambda: connected.store.subscribe(pairs), "events")
            except MissingRight:
                self._app.logger.info("the database user may not store what events start; workers do when they begin")
            self.stored(pairs)

    async def runs(self, due: DueEventStart) -> list[NewRun]:
        """The rows of the run that an event starts. Raises if there can be none."""
        workflow, make = self.declared[due.name, due.workflow]
        row, payloads = due.event, self._app._payloads
        data = payloads.plain(row.data, row.format, f"the data of event {due.name!r}")
        event: Event[Any] = Event(row.event_id, due.name, row.key or None, data, time_of(row.published_at))
        connected = await self._app._connect()
        plan = await self._app._planner.plan(connected, workflow, {})
        code = self._app._planner.code(workflow)
        if make is None:
            value = data if code is None or code.takes_input else None
        else:
            value = make(event)
            if inspect.isawaitable(value):
                value = await value
        return plan.runs(connected.new_id(), value)


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event that was published, and what became of it."""

    id: str
    name: str
    key: str | None
    data: Any
    published_at: datetime
    matched: bool
    """Whether a worker has come to it, so that runs can take it."""
    taken_by: tuple[str, ...]
    """Runs that have taken it."""
    started: tuple[str, ...]
    """Runs that it has started."""
    to_start: tuple[str, ...]
    """Workflows of which it has still to start a run."""
    errors: tuple[str, ...]
    """Why some of these could not be started the last time."""
    number: int | None
    """Its place in the order; ``before`` of the next page."""


class EventVerbs:
    """The verbs of an application for events."""

    _subscriptions: Subscriptions

    def on(self, name: str, workflow: Workflow[Any, Any] | str, *, input: Input | None = None) -> None:
        """Start a run of a workflow for each event of a name: exactly one, whichever process dies. ``input`` makes its
        input from the event, by default its data. A worker with this code starts the runs."""
        self._subscriptions.add(name, workflow, input)

    async def events(
        self: Any, *, name: str | None = None, key: str | None = None, before: int | None = None, limit: int = 50
    ) -> list[EventInfo]:
        """A page of events that are kept, the newest first, with what became of each. ``before`` is the ``number`` of
        the last one of the page before."""
        app: Stepfast = self
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= _MOST_LISTED:
            raise ConfigurationError(f"limit must be between 1 and {_MOST_LISTED}, not {limit!r}")
        store = (await app._connect()).store
        rows = await store.events(name, key, before, limit)
        uses = await store.event_uses([row.id for row in rows]) if rows else []
        return [_info(row, [use for use in uses if use.event_id == row.id], app._payloads) for row in rows]

    async def publish(
        self: Any, name: str, data: Any = None, *, key: str | None = None, id: str | None = None, connection: Any = None
    ) -> str:
        """Publish an event, for runs that wait for it (``ctx.wait_event``) and workflows that it starts (``app.on``);
        its id. Published again under the same name and ``id``, it is the same event. With a ``connection`` of your own
        it is part of its transaction."""
        app: Stepfast = resolve_app(self)
        refuse_in_workflow("app.publish", "a step that publishes")
        longest = app.settings.max_name
        check_event(name, longest)
        for given, what in ((key, "the key of an event"), (id, "the id of an event")):
            if given is not None:
                check_name(given, what, longest)
        text = app._payloads.encode(data, f"the data of event {name!r}")
        connected = await app._connect()
        made = connected.new_id()
        named = made if id is None else id
        row = NewEvent(
            made if id is None else event_row_id(name, id), made, name, key or "", named, text, app._payloads.format
        )
        pairs = app._subscriptions.unstored()
        if connection is not None:
            if await connected.store.publish_within(connection, [row], pairs):
                app._subscriptions.stored(pairs)
            return named
        await app._subscriptions.store(connected, pairs)
        await connected.ask(lambda: connected.store.publish([row]), "events")
        connected.switchboard.tick_everywhere()
        return named


def _info(row: ShownEvent, uses: Sequence[EventUse], payloads: Payloads) -> EventInfo:
    open_starts = [use for use in uses if use.workflow is not None and use.run_id is None]
    return EventInfo(
        id=row.event_id,
        name=row.name,
        key=row.key or None,
        data=payloads.shown(row.data, row.format, f"the data of event {row.name!r}"),
        published_at=time_of(row.published_at),
        matched=row.number is not None,
        taken_by=tuple(use.run_id for use in uses if use.workflow is None and use.run_id is not None),
        started=tuple(use.run_id for use in uses if use.workflow is not None and use.run_id is not None),
        to_start=tuple(str(use.workflow) for use in open_starts),
        errors=tuple(use.error for use in open_starts if use.error is not None),
        number=row.number,
    )
