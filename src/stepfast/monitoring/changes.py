"""Changes for open pages: one poll of the database for all of them, at a rate that the server decides."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import time
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from ..app import Stepfast
from ..errors import AppClosed, StepfastError, sentence
from ..runtime import Connected
from ..store.answers import Wakeups
from ..store.readonly import BaseGlance
from ..worker.notifier import Switchboard

LONGEST = 60.0
"""Seconds after which a tab polls again at the latest."""


class TabPace:
    """Spreads the polls of all tabs of a process, so that together they stay below a rate of queries."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._taken = 0.0
        """Up to when the rate is used up."""

    def again(self, soonest: float, questions: int) -> float:
        """Return in how many seconds a tab may poll again whose page has sent so many queries."""
        now = time.monotonic()
        self._taken = max(self._taken, now) + questions / self._rate
        return round(min(max(soonest, self._taken - now), LONGEST), 1)


_glances: weakref.WeakKeyDictionary[Connected, Connected] = weakref.WeakKeyDictionary()
"""The bounded queries of each event loop, which all tabs share."""


def onlooker(app: Stepfast) -> Stepfast:
    """Return a copy of the application that only reads. Its queries are bounded in cost and time, and shared by all
    tabs; calls that write are refused."""
    watching = copy.copy(app)

    async def connect(migrate: bool = False) -> Connected:
        return _watched(await app._connect(), app)

    setattr(watching, "_connect", connect)  # noqa: B010
    return watching


async def glance_of(app: Stepfast) -> BaseGlance:
    """Return the bounded queries of an application, or of its copy for reading."""
    connected = await app._connect()
    store = connected.store if isinstance(connected.store, BaseGlance) else _watched(connected, app).store
    assert isinstance(store, BaseGlance)
    return store


def asked_so_far(app: Stepfast) -> int:
    """Return how many bounded queries were sent so far; 0 if not connected."""
    connected = app._connections.made()
    if connected is None:
        return 0
    store = _watched(connected, app).store
    assert isinstance(store, BaseGlance)
    return store.remembered.asked


async def forget_cached(app: Stepfast) -> None:
    """Forget cached answers, so that an operator sees the change that was just made."""
    (await glance_of(app)).remembered.forget()


def _watched(connected: Connected, app: Stepfast) -> Connected:
    found = _glances.get(connected)
    if found is None:
        found = _glances[connected] = copy.copy(connected)
        found.store = connected.store.glance(app.settings.console_query_timeout)  # type: ignore[assignment]
    return found


LISTS = ""
"""Names the state of all lists: that of the newest of all runs."""
MOST = 100
"""Runs that are polled at once; the page of another one is reloaded by time."""
_NEWEST = 50
_EVERY = 2.0
"""Seconds between two polls without a wake-up: steps of a run and claims cause none."""
_GRACE = 15.0
"""Seconds after which a tab that has not asked again counts as closed."""
_KEPT = 60.0
_DEAF = 5.0
"""Seconds after which wake-ups should have arrived."""


class StateHash(NamedTuple):
    """The state of a run, or of the list of runs."""

    text: str
    since: float
    """The end of the first query that found this state; later reads show it, or a newer one."""
    at: float
    """The end of the last query that found this state."""


class News:
    """The states that the pages of one event loop show, and the poll for changes of them."""

    def __init__(
        self,
        glance: BaseGlance,
        switchboard: Switchboard,
        guests: set[asyncio.Task[None]],
        fresh: float,
        logger: logging.Logger,
    ) -> None:
        """``guests`` are the tasks that end with the application."""
        self._glance = glance
        self._guests = guests
        self._switchboard = switchboard
        self._fresh = fresh
        self._logger = logger
        self._wanted: dict[str, float] = {}
        """What is polled, and when a tab last asked for it."""
        self._states: dict[str, StateHash] = {}
        self._one = asyncio.Lock()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = False

    def watches(self) -> bool:
        """Whether the poll is under way."""
        return self._task is not None and not self._task.done()

    async def of(self, what: str) -> StateHash:
        """Return the state of a run, or of all runs (``LISTS``), for a page that is about to be read."""
        async with self._one:
            known = self._states.get(what)
            if known is None or time.monotonic() - known.at > max(self._fresh, 1.5 * _EVERY):
                await self._look([what])
            return self._states[what]

    async def ask(self, what: str) -> StateHash | None:
        """Return the state of a run, or of all runs, and poll it from now on. None if too many are polled already."""
        if what not in self._wanted and len(self._wanted) >= MOST:
            return None
        self._wanted[what] = time.monotonic()
        if not self.watches():
            self._task = asyncio.create_task(self._watch(), name="stepfast-news")
            self._guests.add(self._task)
            self._task.add_done_callback(self._guests.discard)
        return await self.of(what)

    async def close(self) -> None:
        """End the poll."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        began = time.monotonic()
        self._switchboard.subscribe(self._heard)
        try:
            while self._still_wanted():
                await self._pause()
                try:
                    async with self._one:
                        await self._look(list(self._wanted))
                except AppClosed:
                    return
                except StepfastError as error:
                    self._logger.debug("polling for changes: %s", sentence(error))
                else:
                    self._say_if_deaf(time.monotonic() - began)
        finally:
            self._wanted.clear()
            self._switchboard.unsubscribe(self._heard)
            self._switchboard.stop_unless_heard()

    def _still_wanted(self) -> bool:
        gone = time.monotonic() - _GRACE
        self._wanted = {what: at for what, at in self._wanted.items() if at > gone}
        return bool(self._wanted)

    async def _pause(self) -> None:
        """Wait for a wake-up, at least for as long as answers are cached; not longer where none can arrive."""
        shortest = min(self._fresh, _EVERY)
        await asyncio.sleep(shortest)
        if self._switchboard.hears:
            try:
                async with asyncio.timeout(_EVERY - shortest):
                    await self._bell.wait()
            except TimeoutError:
                pass
        self._bell.clear()

    def _heard(self, _: Wakeups) -> None:
        self._bell.set()

    async def _look(self, wanted: Sequence[str]) -> None:
        runs = [what for what in wanted if what != LISTS]
        found = await self._glance.news(runs, _NEWEST if LISTS in wanted else 0)
        now = time.monotonic()
        for what in wanted:
            text = _hashed(found.get(what, []))
            known = self._states.get(what)
            since = known.since if known is not None and known.text == text else now
            self._states[what] = StateHash(text, since, now)
        for what in [what for what, each in self._states.items() if now - each.at > _KEPT]:
            del self._states[what]

    def _say_if_deaf(self, seconds: float) -> None:
        if seconds > _DEAF and not self._switchboard.hears and not self._said:
            self._said = True
            self._logger.info(
                "no wake-ups of the database arrive here, as behind a pooler in transaction mode: the console asks "
                "once a second instead, while a page is open"
            )


def _hashed(texts: Sequence[str]) -> str:
    """Return a hash of a state."""
    return hashlib.blake2b("\0".join(sorted(texts)).encode(), digest_size=9).hexdigest()


_news: weakref.WeakKeyDictionary[Connected, News] = weakref.WeakKeyDictionary()


async def news_of(app: Stepfast) -> News:
    """Return the poll of this application in this event loop."""
    connected, glance = await app._connect(), await glance_of(app)
    found = _news.get(connected)
    if found is None:
        found = _news[connected] = News(
            glance, connected.switchboard, connected.guests, app.settings.console_query_cache, app.logger
        )
    return found


async def end_news(app: Stepfast) -> None:
    """End the poll, if it was begun."""
    connected = app._connections.made()
    found = None if connected is None else _news.get(connected)
    if found is not None:
        await found.close()
