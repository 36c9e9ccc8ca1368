"""An application as those see it who only watch: everything that it reads goes through a glance at the store."""

from __future__ import annotations

import copy
import weakref

from ..app import Stepfast
from ..connected import Connected
from ..store.readonly import BaseGlance

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
        found.store = connected.store.glance(app.settings.watch_timeout)  # type: ignore[assignment]
    return found
