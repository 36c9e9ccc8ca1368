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
"""A tab looks again after a minute at the latest."""


class TabPace:
    """Hands out turns, so that all tabs of a process together ask no more than so many questions a second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._taken = 0.0
        """Up to when every turn is taken."""

    def again(self, soonest: float, questions: int) -> float:
        """In how many seconds a tab may look again whose page has asked so many questions."""
        now = time.monotonic()
        self._taken = max(self._taken, now) + questions / self._rate
        return round(min(max(soonest, self._taken - now), LONGEST), 1)


_glances: weakref.WeakKeyDictionary[Connected, Connected] = weakref.WeakKeyDictionary()
"""What each event loop of a process watches with: one for all tabs, so that one asks for all of them."""


def onlooker(app: Stepfast) -> Stepfast:
    """A copy of the application for reading alone: ``app.runs()``, ``app.get(…).info()`` and all else that asks. Its
    questions are bounded, given up in seconds, and shared. What would write is refused."""
    watching = copy.copy(app)

    async def connect(migrate: bool = False) -> Connected:
        return _watched(await app._connect(), app)

    setattr(watching, "_connect", connect)  # noqa: B010
    return watching


async def glance_of(app: Stepfast) -> BaseGlance:
    """The glance that an application reads through, whichever of the two it is."""
    connected = await app._connect()
    store = connected.store if isinstance(connected.store, BaseGlance) else _watched(connected, app).store
    assert isinstance(store, BaseGlance)
    return store


def asked_so_far(app: Stepfast) -> int:
    """How many questions were put to the database so far by those who watch; none, where nothing is connected."""
    connected = app._connections.made()
    if connected is None:
        return 0
    store = _watched(connected, app).store
    assert isinstance(store, BaseGlance)
    return store.remembered.asked


async def seen_anew(app: Stepfast) -> None:
    """Somebody has changed something and wants to see it: what was read before does not hold any more."""
    (await glance_of(app)).remembered.forget()


def _watched(connected: Connected, app: Stepfast) -> Connected:
    found = _glances.get(connected)
    if found is None:
        found = _glances[connected] = copy.copy(connected)
        found.store = connected.store.glance(app.settings.console_query_timeout)  # type: ignore[assignment]
    return found


LISTS = ""
"""What all lists of runs are asked about by: how the newest of all runs stand."""
MOST = 100
"""So many runs are watched at once; whoever shows another one looks by the clock."""
_NEWEST = 50
_EVERY = 2.0
"""Seconds between two looks when no bell rings: steps of a run, and claims, ring none."""
_GRACE = 15.0
"""Seconds after which somebody who has not asked again is gone."""
_KEPT = 60.0
_DEAF = 5.0
"""Seconds after which a bell should have been heard to work."""


class Print(NamedTuple):
    """How a run stands, or the list of them."""

    text: str
    since: float
    """When the first look was over that found it so. Whatever is read from then on shows it so, or later."""
    at: float
    """When the last look was over that found it so."""


class News:
    """The prints of one event loop."""

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
        """What is watched, and when it was last asked about."""
        self._prints: dict[str, Print] = {}
        self._one = asyncio.Lock()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = False

    def watches(self) -> bool:
        """Whether it looks by itself at the moment."""
        return self._task is not None and not self._task.done()

    async def of(self, what: str) -> Print:
        """How a run stands, or all of them (``LISTS``), for somebody who is about to read it."""
        async with self._one:
            known = self._prints.get(what)
            if known is None or time.monotonic() - known.at > max(self._fresh, 1.5 * _EVERY):
                await self._look([what])
            return self._prints[what]

    async def ask(self, what: str) -> Print | None:
        """How a run stands, or all of them, for somebody who will ask again: it is watched from now on. None: too much
        is watched already."""
        if what not in self._wanted and len(self._wanted) >= MOST:
            return None
        self._wanted[what] = time.monotonic()
        if not self.watches():
            self._task = asyncio.create_task(self._watch(), name="stepfast-news")
            self._guests.add(self._task)
            self._task.add_done_callback(self._guests.discard)
        return await self.of(what)

    async def close(self) -> None:
        """End the task that looks, if it is there."""
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
                    self._logger.debug("looking for news: %s", sentence(error))
                else:
                    self._say_if_deaf(time.monotonic() - began)
        finally:
            self._wanted.clear()
            self._switchboard.unsubscribe(self._heard)
            self._switchboard.hush()

    def _still_wanted(self) -> bool:
        gone = time.monotonic() - _GRACE
        self._wanted = {what: at for what, at in self._wanted.items() if at > gone}
        return bool(self._wanted)

    async def _pause(self) -> None:
        """Until the bell rings, but no shorter than answers hold, however many ring it; where none can be heard, no
        longer either."""
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
            text = _printed(found.get(what, []))
            known = self._prints.get(what)
            since = known.since if known is not None and known.text == text else now
            self._prints[what] = Print(text, since, now)
        for what in [what for what, each in self._prints.items() if now - each.at > _KEPT]:
            del self._prints[what]

    def _say_if_deaf(self, seconds: float) -> None:
        if seconds > _DEAF and not self._switchboard.hears and not self._said:
            self._said = True
            self._logger.info(
                "no wake-ups of the database arrive here, as behind a pooler in transaction mode: the console asks "
                "once a second instead, while somebody looks"
            )


def _printed(texts: Sequence[str]) -> str:
    """A text for how something stands that gives nothing of it away."""
    return hashlib.blake2b("\0".join(sorted(texts)).encode(), digest_size=9).hexdigest()


_news: weakref.WeakKeyDictionary[Connected, News] = weakref.WeakKeyDictionary()


async def news_of(app: Stepfast) -> News:
    """The one of this application in this event loop."""
    connected, glance = await app._connect(), await glance_of(app)
    found = _news.get(connected)
    if found is None:
        found = _news[connected] = News(
            glance, connected.switchboard, connected.guests, app.settings.console_query_cache, app.logger
        )
    return found


async def end_news(app: Stepfast) -> None:
    """Look no more, if somebody has looked."""
    connected = app._connections.made()
    found = None if connected is None else _news.get(connected)
    if found is not None:
        await found.close()
