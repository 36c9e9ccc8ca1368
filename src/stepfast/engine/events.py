"""Waiting for events: facts that are published for every run that waits for them.

A run reads events itself, in the order of their numbers. Before it waits it says that it is to be woken, and reads
again: an event that it has not found then wakes it.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ..errors import EventTimeout, RecordedError, StepfastError
from ..model import status
from ..model.records import EventTaken, EventWait, StepRecord, StepWith
from ..model.rows import EventRow, NextEvents
from .call import DurableCall, time_given
from .history import Cursor
from .observers import ids_of
from .outcomes import encode_error, step_failed

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

AHEAD = 16
"""Events that are read at once."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """A published event."""

    id: str
    name: str
    key: str | None
    data: T
    published_at: datetime


def time_of(milliseconds: int) -> datetime:
    """A time of the database."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


class _Source:
    """What an execution has read of one name and key."""

    def __init__(self) -> None:
        self.passed = 0
        """The last number that was read."""
        self.ahead: list[EventRow] = []
        """Read, and not taken by anyone, in their order."""


class EventReader:
    """Reads events for the waits of one execution, each event for one of them."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._sources: dict[tuple[str, str], _Source] = {}
        self._handed: dict[str, set[str]] = {}
        """By name: rows of events that waits of this execution have."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._turn = asyncio.Lock()

    async def next(
        self, name: str, key: str, since: int | None, refused: Collection[str]
    ) -> tuple[EventRow | None, bool]:
        """The next event that neither the run has taken nor this wait has refused; and, if there is none, whether the
        run is to be woken by the next one. ``since`` a time, or since the run was started."""
        handed = self._handed.setdefault(name, set())
        async with self._turn:
            source = self._sources.setdefault((name, key), _Source()) if since is None else _Source()
            while True:
                for row in source.ahead:
                    if row.id not in refused and row.id not in handed:
                        source.ahead.remove(row)
                        handed.add(row.id)
                        self._tell_others(source)
                        return row, True
                found = await self._read(name, key, source.passed, since)
                if not found.events:
                    return None, found.armed
                source.passed = found.events[-1].number
                source.ahead += found.events

    async def _read(self, name: str, key: str, low: int, since: int | None) -> NextEvents:
        execution = self._execution
        return await execution.recorder.queries.next_events(execution.run_id, name, key, low, since, AHEAD)

    def _tell_others(self, source: _Source) -> None:
        """More was read than one wait takes: let the others look."""
        if source.ahead:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def give_back(self, name: str, row: EventRow) -> None:
        """A wait does not take this event after all: it is there for others, in its place."""
        self._handed[name].discard(row.id)
        for (of_name, key), source in self._sources.items():
            if of_name == name and key in ("", row.key) and row.number <= source.passed and row not in source.ahead:
                insort(source.ahead, row, key=lambda each: each.number)
                self._tell_others(source)

    async def news(self, due_at: int | None, what: str, seen: int) -> None:
        """Wait until the run is woken, which it may have been since it had ``seen`` so many wakes, or until a time."""
        execution = self._execution
        if execution.inbox.wakes != seen:
            return
        watcher = execution.inbox.watch()
        self._waiting.add(watcher)
        try:
            await execution.waits.until_called(watcher, due_at, what)
        finally:
            self._waiting.discard(watcher)


class EventCall(DurableCall[Event[T]]):
    """A call of ``ctx.wait_event``. Its record has the data of the event, and the rest of it among the arguments."""

    __slots__ = ("_key", "_since_now", "_timeout_ms", "_type")

    def __init__(
        self, execution: Execution, cursor: Cursor, name: str, key: str, since_now: bool, type_: Any,
        timeout_ms: int | None, where: str,
    ) -> None:  # fmt: skip
        self._key = key
        self._since_now = since_now
        self._type = type_
        self._timeout_ms = timeout_ms
        super().__init__(execution, cursor, status.WAITING_EVENT, name, where)

    async def _go(self) -> Event[T]:
        execution = self._execution
        row = await self._arrival()
        if not self._has_won():
            if row is not None:
                execution.events.give_back(self.name, row)
            await self._lost(None)
        if row is None:
            seconds = (self._timeout_ms or 0) / 1000
            late = EventTimeout(f"no event {self._shown()} came within {seconds:g} s")
            return await self._record_outcome(self._waited_in_vain(encode_error(late, execution.recorder.payloads)))
        entry = self._entry(status.COMPLETED, row.data, format_=row.format, arguments=self._about(row))
        return await self._record_outcome(StepWith(entry, event=EventTaken(row.id, self._key)))

    def _shown(self) -> str:
        return f"{self.name!r} with the key {self._key!r}" if self._key else repr(self.name)

    async def _arrival(self) -> EventRow | None:
        """The event; None: it did not come in time."""
        execution, refused = self._execution, set[str]()
        since = None
        if self._since_now:
            since = (await self._opened()).completed_at
        while True:
            seen = execution.inbox.wakes
            row, armed = await execution.events.next(self.name, self._key, since, refused)
            if row is not None:
                if self._fits(row):
                    return row
                refused.add(row.id)
                execution.events.give_back(self.name, row)
                continue
            due_at = None
            if self._timeout_ms is not None and self._record is not None:
                due_at = self._record.completed_at + time_given(self._record, self._timeout_ms)
                if execution.database_now() >= due_at:
                    return None
            if armed and (self._timeout_ms is None or due_at is not None):
                await execution.events.news(due_at, f"{self.kind}:{self.name}", seen)
            else:
                await self._arm()

    async def _opened(self) -> StepRecord:
        return self._record or await self._open(self._opening(self._plan()))

    async def _arm(self) -> None:
        """Let the run be woken by the next event. What is published until this is committed is read after it."""
        execution = self._execution
        wait = EventWait(execution.run_id, execution.claim, self.name, self._key)
        if self._record is None:
            execution.journal_note(wait)  # goes out with the record
            await self._opened()
        else:
            await execution.journal(wait)

    def _plan(self) -> str:
        plan: dict[str, Any] = {} if self._timeout_ms is None else {"for": self._timeout_ms}
        if self._key:
            plan["key"] = self._key
        return msgspec.json.encode(plan).decode()

    def _fits(self, row: EventRow) -> bool:
        """Whether the data is of the type that is waited for. If not, this wait passes the event over: it is a fact,
        and no one could send another instead."""
        execution = self._execution
        try:
            execution.recorder.payloads.take_in(row.data, self._type, row.format, f"the data of event {self.name!r}")
        except StepfastError:
            execution.recorder.logger.warning(
                "run %s: an event %r is passed over, because its data does not fit the type that is waited for",
                execution.run_id, self.name, extra=ids_of(execution, self.name),
            )  # fmt: skip
            return False
        return True

    # -- the record ----------------------------------------------------------------------------------------------------

    def _about(self, row: EventRow) -> str:
        """The event but for its data. It is written as the data is, by the codec or not, because a record has one
        format."""
        payloads = self._execution.recorder.payloads
        about = {"id": row.event_id, "key": row.key or None, "published_at": row.published_at}
        return payloads.encode_own(about) if row.format == payloads.format else msgspec.json.encode(about).decode()

    def _value(self, record: StepRecord) -> Event[T]:
        payloads, what = self._execution.recorder.payloads, f"the data of event {self.name!r}"
        data: T = payloads.decode(record.output or "null", self._type, record.format, what)
        about = payloads.plain(record.arguments, record.format, what) or {}
        return Event(about["id"], self.name, about["key"], data, time_of(about["published_at"]))

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == EventTimeout.__name__:
            return EventTimeout(error["message"])
        return step_failed(self.name, error, (self.branch, self.position))
