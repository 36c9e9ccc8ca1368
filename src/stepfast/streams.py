"""Reading streams: what runs send while they work, from any offset, with one query per process for all readers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .engine.host import Clock
from .errors import AppClosed, InvalidInput, RunNotFound
from .model.names import LOGS, OWN_STREAMS
from .model.payload import Payloads
from .model.records import Transition
from .model.stored import moment
from .results import Poller
from .settings import Settings
from .store import Store
from .store.answers import StreamEnd, StreamRow, Wakeups
from .worker.notifier import Switchboard

if TYPE_CHECKING:
    from .runtime import Connected

V = TypeVar("V")

_PAGE = 200
"""Items that a reader gets at once."""
_REMEMBERED = 1000
"""Streams of which it is remembered how far they were read, besides those that are read now."""
_LINES = 1000
"""Lines of a log that are read at once."""
_OFFSET = re.compile(r"(\d{5})\.(\d{10})")


@dataclass(frozen=True, slots=True)
class StreamItem(Generic[V]):
    """An item of a stream."""

    value: V
    offset: str
    """Where it is in the stream: of two items the later has the greater text. Pass it as ``after`` to read on."""
    attempt: int
    """The try of the step that sent it; 1 for items of workflow code."""
    restarted: bool
    """Whether the step was called again and this is the first item of that call: what it sent before is void."""
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that the code of a run has logged."""

    at: datetime
    level: str
    """``INFO``, ``WARNING`` …"""
    logger: str
    message: str
    step: str | None
    """The step in which it was logged, or the step of a dag; None: in the code between steps."""


class _Place(NamedTuple):
    """Where a reader is: it wants the items of a stream after a number."""

    run_id: str
    stream: str
    after: int


class StreamPage(NamedTuple):
    """What a reader is given: items, or the end of the run."""

    items: list[StreamRow]
    end: StreamEnd | None = None


class StreamPoller(Poller):
    """Polls for all readers of a process; those at the same place share what is found."""

    _name = "reading streams"

    def __init__(
        self, store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
    ) -> None:
        super().__init__(store, settings, logger, switchboard, clock)
        self._waiting: dict[_Place, set[asyncio.Future[StreamPage]]] = {}
        self._news = 0
        """How often items may have come."""
        self._ends = 0
        """How often runs may have ended."""
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        """Streams that were read to their end: up to which item, and how much news there had been by then."""
        self._live: dict[str, int] = {}
        """Runs that had not ended when so many may have."""
        self._checking: set[str] = set()
        """Runs that are being asked for, and have not ended in this process since."""
        switchboard.outcomes.append(self._ended_here)

    async def page(self, place: _Place, timeout: float | None) -> StreamPage | None:
        """The next items at a place, or the end; None if there is neither within the timeout."""
        if self._over:
            raise _closed()
        future: asyncio.Future[StreamPage] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, set()).add(future)
        if self._task is None or self._task.done():  # what was told since it ended was not heard
            self._news, self._ends = self._news + 1, self._ends + 1
        self._start(look=not self._is_known(place))
        try:
            if timeout is None:
                return await future
            done, _ = await asyncio.wait((future,), timeout=timeout)
            return future.result() if done else None
        finally:
            readers = self._waiting.get(place)
            if readers is not None:
                readers.discard(future)
                if not readers:
                    del self._waiting[place]

    def _is_known(self, place: _Place) -> bool:
        """Whether nothing can have come at a place since it was last read."""
        known = self._known.get(place[:2])
        return known == (place.after, self._news) and self._live.get(place.run_id) == self._ends

    def _waits(self) -> bool:
        return bool(self._waiting)

    def _fail(self, error: BaseException | None) -> None:
        for place in list(self._waiting):
            for future in self._waiting.pop(place):
                if not future.done():
                    future.set_exception(error or _closed())

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.streams or wakeups.ended or wakeups.anything:
            self._news += 1
            self._look.set()
        if wakeups.ended or wakeups.anything:
            self._ends += 1

    def _ended_here(self, moves: Sequence[Transition]) -> None:
        """Runs have ended in this process: those that are read have an end now."""
        if self._live or self._checking:
            for move in moves:
                if move.run_id in self._live or move.run_id in self._checking:
                    self._live.pop(move.run_id, None)
                    self._checking.discard(move.run_id)
                    self._look.set()

    async def _ask(self, everything: bool) -> bool:
        """Give items to readers, and the end to those for whom there is nothing more."""
        places, ends = list(self._waiting), self._ends
        found = await self._give(places)
        left = [place for place in places if place in self._waiting]
        ids = {place.run_id for place in left if everything or self._live.get(place.run_id) != ends}
        if ids:
            self._checking = set(ids)
            states = await self._store.stream_ends(sorted(ids))
            over = [place for place in left if place.run_id in ids and (states.get(place.run_id) or _GONE).over]
            found |= await self._give(over)  # what was sent before the end
            for place in over:
                self._resolve(place, StreamPage([], states.get(place.run_id)))
            self._live |= dict.fromkeys(self._checking - {place.run_id for place in over}, ends)
            self._checking = set()
        self._forget()
        return found

    def _forget(self) -> None:
        """Forget streams that were read, once they are many more than those that are."""
        if len(self._known) + len(self._live) > 2 * len(self._waiting) + _REMEMBERED:
            kept, runs = {place[:2] for place in self._waiting}, {place.run_id for place in self._waiting}
            self._known = {key: known for key, known in self._known.items() if key in kept}
            self._live = {run_id: ends for run_id, ends in self._live.items() if run_id in runs}

    async def _give(self, places: Collection[_Place]) -> bool:
        if not places:
            return False
        news = self._news
        rows = await self._store.stream_pages(
            [(place.run_id, place.stream, place.after, place.after + _PAGE) for place in places]
        )
        for place in places:
            items = [row for row in rows.get(place[:2], ()) if place.after < row.number <= place.after + _PAGE]
            if len(items) < _PAGE:
                self._known[place[:2]] = (items[-1].number if items else place.after, news)
            if items:
                self._resolve(place, StreamPage(items))
        return bool(rows)

    def _resolve(self, place: _Place, page: StreamPage) -> None:
        for future in self._waiting.pop(place, ()):
            if not future.done():
                future.set_result(page)


_GONE = StreamEnd(True, None)
"""A run that is not there."""


def _closed() -> AppClosed:
    return AppClosed("the application was closed before the stream had ended; it can be read again")


async def read(
    connected: Connected, payloads: Payloads, run_id: str, name: str, after: str | None, type_: Any,
    timeout: float | None, *, follow: bool = True,
) -> AsyncIterator[StreamItem[Any]]:  # fmt: skip
    """The items of a stream of a run, and of those that it goes on as, until it ends; without ``follow`` its own."""
    link, number = check_offset(after)
    link_id = run_id
    if link and not follow:
        raise InvalidInput(f"the offset {after!r} is of a later run of the chain, and run.this reads one run alone")
    if link:
        wanted, store = link, connected.store
        found = await connected.ask(lambda: store.link_of_chain(run_id, wanted))
        if found is None:
            raise RunNotFound(run_id, f": the offset {after!r} is of a run that is not there")
        link_id, link = found
        number = number if link == wanted else 0
    what = f"an item of stream {name!r}"
    while True:
        page = await connected.streams.page(_Place(link_id, name, number), timeout)
        if page is None:
            raise TimeoutError(f"stream {name!r} of run {run_id} has had no item for {timeout:g} s")
        for row in page.items:
            number = row.number
            if row.value is None:
                return
            plain = type_ is Any  # what cannot be read is shown as such, and hides nothing
            value = (
                payloads.shown(row.value, row.format, what)
                if plain
                else payloads.decode(row.value, type_, row.format, what)
            )
            offset = f"{link:05d}.{number:010d}"
            yield StreamItem(value, offset, row.attempt, bool(row.restarted), moment(row.sent_at))
        if page.items:
            continue
        if page.end is None:
            raise RunNotFound(link_id)
        if page.end.continuation is None or not follow:
            return
        link, number, link_id = link + 1 + page.end.links_gone, 0, page.end.continuation


def check_offset(offset: str | None) -> tuple[int, int]:
    """The link of the chain and the number in its stream; InvalidInput for a text that is no offset."""
    if offset is None:
        return 0, 0
    found = _OFFSET.fullmatch(offset) if isinstance(offset, str) else None
    if found is None:
        raise InvalidInput(f"after is the offset of an item, as item.offset, not {offset!r}")
    return int(found[1]), min(int(found[2]), 2**31 - 1 - _PAGE)


async def names(store: Store, run_id: str, *, follow: bool = True) -> list[str]:
    """The streams of a run, and of those that it goes on as."""
    found = await (store.stream_names(run_id) if follow else store.stream_sizes(run_id))
    if not found and run_id not in await store.stream_ends([run_id]):
        raise RunNotFound(run_id)
    return sorted(name for name in found if name and not name.startswith(OWN_STREAMS))


async def log_lines(connected: Connected, payloads: Payloads, run_id: str, *, follow: bool = True) -> list[LogLine]:
    """What a run has logged, and those that it goes on as."""
    found: list[LogLine] = []
    link: str | None = run_id
    while link is not None:
        end, number = (await connected.store.stream_ends([link])).get(link), 0
        if end is None:
            raise RunNotFound(link)
        while rows := (await connected.store.stream_pages([(link, LOGS, number, number + _LINES)])).get((link, LOGS)):
            found += [_line(payloads, row.value, row.format, row.sent_at) for row in rows]
            number = rows[-1].number
        found += await _dropped(connected, payloads, link, found)
        link = end.continuation if follow else None
    return found


async def follow_lines(
    connected: Connected, payloads: Payloads, run_id: str, timeout: float | None, *, follow: bool = True
) -> AsyncIterator[LogLine]:
    """What a run logs while it works."""
    last = list[LogLine]()
    async for item in read(connected, payloads, run_id, LOGS, None, Any, timeout, follow=follow):
        last = [as_line(item.value, item.sent_at)]
        yield last[0]
    link = await connected.store.continuation(run_id) if follow else run_id
    for line in await _dropped(connected, payloads, link, last):
        yield line


async def _dropped(connected: Connected, payloads: Payloads, run_id: str, found: list[LogLine]) -> list[LogLine]:
    """The last line of a log that had no room for others."""
    number = await connected.store.dropped_lines(run_id)
    if not number or not found:
        return []
    said = f"{number} more lines were dropped: a run keeps {payloads.settings.max_log_lines} (setting max_log_lines)"
    return [LogLine(found[-1].at, "WARNING", "stepfast", said, None)]


def _line(payloads: Payloads, text: str | None, format_: int, sent_at: int) -> LogLine:
    return as_line(payloads.shown(text, format_, "a line of the log"), moment(sent_at))


def as_line(value: Any, sent_at: datetime) -> LogLine:
    """A line as it is stored; what a hand has damaged is shown as it is."""
    said = value if isinstance(value, dict) else {"message": value}
    at, step = said.get("at"), said.get("step")
    return LogLine(
        moment(at) if isinstance(at, int) and not isinstance(at, bool) else sent_at, str(said.get("level", "")),
        str(said.get("logger", "")), str(said.get("message", "")), None if step is None else str(step),
    )  # fmt: skip
