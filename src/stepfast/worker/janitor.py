"""The janitor: removes runs whose time is over (settings ``retention``, ``retention_failed``).

There is no index of ends, which every completion would have to write. Ids sort by the time of the start, so the janitor
walks over the oldest runs in the order of their ids, up to those that are too young to have ended long enough ago. It
remembers up to where everything was old already, and goes on from there the next time; once in a while it begins again
at the first id, for what has taken long or is kept longer than others. A look that finds nothing is one question.

Several workers do no harm to each other: who finds another at it, or what it found already gone, leaves the rest to it.
"""

from __future__ import annotations

from .kit import Kit
from .pacing import Progress, RemovalPace, due_of
from .removing import FIRST, Remover, keep_of

_EVERY = 12
"""A look comes once in so many sweeps: once a minute."""
_PARTS = 30
"""The walk begins again at the first id each time that this part of the retention has passed."""
_LONGEST = 86400.0
"""But at least once a day."""


class Janitor:
    """Looks now and then for what may go."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._clock, self._settings = kit.clock, kit.settings
        self._keep = keep_of(kit.settings)
        self._pace = RemovalPace(may_be_late=self._lag)
        self._remover = Remover(kit.store, self._keep, kit.clock, pace=self._pace)
        self._mark = FIRST
        """Everything before it was old when it was last looked at, and is gone or stays for a reason."""
        self._again_at = 0.0

    async def run(self) -> None:
        """Look, again and again, until cancelled. The first time soon, but not while the worker begins."""
        if self._keep.shortest is None:
            return
        await self._clock.sleep(self._settings.sweep * self._clock.random.uniform(0.5, 1.0))
        while True:
            removed = await self._kit.ask(self.look, "janitor")
            if removed:
                self._kit.logger.info("removed %d runs that ended long ago (settings retention)", removed)
            await self._clock.sleep(self.interval * self._clock.random.uniform(0.75, 1.25))

    @property
    def interval(self) -> float:
        """Seconds between two looks: a minute, or less where runs are kept for less than half an hour."""
        sweep = self._settings.sweep
        return min(_EVERY * sweep, max(sweep, self._kept / _PARTS))

    @property
    def _kept(self) -> float:
        return (self._keep.shortest or 0) / 1000

    @property
    def _lag(self) -> float:
        return min(max(self.interval, self._kept / _PARTS), _LONGEST)

    async def look(self) -> int:
        """Remove what may go; how many went."""
        removed, now = 0, self._clock.now()
        if now >= self._again_at:
            self._mark, self._again_at = FIRST, now + self._lag
        elif self._mark != FIRST:
            found = await self._remover.look(FIRST)  # the oldest of all, which may have become free since
            removed = await self._remover.remove(found.free) or 0
        return removed + await self._walk(self._mark)

    async def _walk(self, after: str | None) -> int:
        """Remove what may go, up to the first page that is too young in whole; how many went."""
        removed, old_enough = 0, True
        while after is not None:
            found = await self._remover.look(after)
            gone = await self._remover.remove(found.free)
            if gone is None:
                return removed
            removed += gone
            if gone:
                self._pace.came_to(Progress(found.page.now_ms / 1000, due_of(found.free, self._keep)))
            if not found.page.runs and found.page.oldest_ms < self._kept * 1000:
                break
            old_enough = old_enough and found.page.newest_ms >= (self._kept + self._lag) * 1000
            after = found.after
            if old_enough and after is not None:
                self._mark = after
        self._pace.caught_up()
        return removed
