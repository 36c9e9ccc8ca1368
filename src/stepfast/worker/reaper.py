"""The reaper: finds workers that are dead, and gives back what they held.

A worker is dead if its lease is over and this worker has looked on for about as long without seeing a beat; or if its
process on this very machine is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from ..model.events import RunsSwept
from ..model.records import Lane
from ..store.store import Reaping
from .kit import Kit
from .neighbours import gone
from .vigil import Vigil

T = TypeVar("T")

_BATCH = 1000
"""Rows given back by one statement: bounds how long they stay locked."""


class ReapPort(Protocol):
    """Whoever is told what was given back, and says whether this worker may bury others."""

    def may_reap(self) -> bool:
        """Whether a silent worker may be taken for dead."""
        ...

    def ready(self, lanes: Iterable[Lane]) -> None:
        """Runs were made ready: workers should claim them."""

    def ended(self) -> None:
        """Runs have ended: whoever waits for them is told."""

    def steps_asked(self) -> None:
        """Something is asked of runs that workers hold."""


class Reaper:
    """Looks at the beats of the other workers once per sweep, and buries the dead."""

    def __init__(self, kit: Kit, port: ReapPort, stopped: Callable[[], bool]) -> None:
        self._kit = kit
        self._port = port
        self._stopped = stopped
        self._vigil = Vigil(kit.settings.sweep)
        self._next_look = 0.0
        self._next_reap = 0.0

    async def look(self) -> bool:
        """Do what the sweep asks for, if it is time for it; whether any run was given back."""
        now, moved = self._kit.clock.now(), False
        if now >= self._next_look:
            self._next_look = now + self._kit.settings.sweep
            beats = await self._ask(lambda: self._kit.store.beats(self._kit.me.id))
            self._vigil.saw(beats, self._kit.clock.now())
            if dead := gone(beats):
                moved = await self.bury(dead)
        if now >= self._next_reap and self._port.may_reap():
            self._next_reap = now + self._kit.settings.sweep
            moved |= await self._reap(self._vigil.silent(self._kit.clock.now()))
        return moved

    async def bury(self, dead: list[str]) -> bool:
        """Give back what workers of this machine held whose processes are gone: nobody has to wait for their leases,
        nor for a lease of our own beats, because no outage can look like that."""
        self._kit.logger.warning("workers whose processes on this machine are gone: %s", ", ".join(dead))
        await self._ask(lambda: self._kit.store.expire(dead))
        return await self._reap(dead)

    async def _reap(self, silent: list[str]) -> bool:
        """Give back what dead workers held, in bounded batches; those of the silent whose leases are over are dead."""
        losses, moved = self._kit.settings.max_losses, False
        while True:
            done = await self._ask(lambda: self._kit.store.reap(self._kit.me.id, _BATCH, losses, silent))
            self._announce(done)
            moved |= done.moved > 0
            if done.moved < _BATCH:
                return moved

    def _announce(self, done: Reaping) -> None:
        if done.buried:
            self._kit.logger.warning("workers declared dead: %s", ", ".join(done.buried))
        for run_id in done.dead_letters:
            told = "run %s: too many workers died with it; it has failed as a dead letter"
            self._kit.logger.error(told, run_id, extra={"run_id": run_id})
        if done.dead_letters:
            self._port.ended()
        if done.lanes:
            self._port.ready(done.lanes)
        if done.asked:
            self._port.steps_asked()
        if done.moved:
            dead = len(done.dead_letters)
            tell_swept(self._kit, RunsSwept(recovered=done.moved - dead, dead_letters=dead))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._kit.ask(call, "sweep", self._stopped)


def tell_swept(kit: Kit, swept: RunsSwept) -> None:
    """Tell the observers, if there are any, what a sweep has moved."""
    if kit.observers is not None:
        kit.observers.tell(kit.observers.swept, swept)
