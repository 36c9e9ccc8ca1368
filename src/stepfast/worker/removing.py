"""Removes what ended long enough ago: in portions of bounded weight, each in a short transaction of its own.

For the janitor of a worker, and for an operator's prune. After each question there is a rest (``pacing.py``), so that
claims, flushes and the server's own cleaning find room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ..engine.host import Clock
from ..model.retention import Ended, EndedPage, Keep, Removal, Weight, needed_by, portions
from ..settings import Settings
from ..store import Store
from .pacing import OF_OPERATORS, RemovalPace, rest_after

T = TypeVar("T")

FIRST = "00000000-0000-0000-0000-000000000000"
"""An id before that of every run."""
_WINDOW = 2000
"""Runs that one question looks at."""
_BATCH = 200
"""Runs that one question finds."""
_PORTION = Weight(1500, 16 * 1024 * 1024)
"""How much one transaction removes. A run that is heavier goes alone: its records must not go before it does."""


class Archive(Protocol):
    """Where runs are kept that are removed here."""

    async def keep(self, runs: Sequence[Ended]) -> None:
        """Returns when they are on the disk."""


class Looked(NamedTuple):
    """What a look has found."""

    page: EndedPage
    free: list[Ended]
    """Those that nobody needs any more."""
    after: str | None
    """From where the next look goes on; None: there is nothing more."""


def keep_of(settings: Settings) -> Keep:
    """How long the workers keep ended runs."""
    return Keep(_milliseconds(settings.retention), _milliseconds(settings.retention_failed))


def _milliseconds(span: object) -> int | None:
    return int(span * 1000) if isinstance(span, (int, float)) else None


class Remover:
    """Looks for what may go, and lets it go."""

    def __init__(
        self,
        store: Store,
        keep: Keep,
        clock: Clock,
        archive: Archive | None = None,
        pace: RemovalPace | None = None,
    ) -> None:
        """``pace``: that of workers, which leave it to whoever is at it already; None: that of an operator."""
        self._store = store
        self._keep = keep
        self._clock = clock
        self._archive = archive
        self._pace = pace
        self._window = _WINDOW
        """How many runs the next question looks at."""

    async def look(self, after: str) -> Looked:
        """A page of runs in the order of their ids."""
        return await self._resting(self._look(after))

    async def _look(self, after: str) -> Looked:
        window = self._window
        page = await self._store.ended_page(after, window, self._keep, _BATCH)
        if self._pace is not None:
            self._pace.busy = page.busy
        free = [run for run in page.runs if needed_by(run) is None]
        full = len(page.runs) == _BATCH
        self._window = _BATCH if full else _WINDOW  # among nothing but old runs, who looks further looks twice
        if full:
            return Looked(page, free, page.runs[-1].id)
        return Looked(page, free, page.last if page.seen == window else None)

    async def remove(self, runs: Sequence[Ended]) -> int | None:
        """How many went: of these, and of those that were kept only for their sake. None: somebody else is at it."""
        if not runs:
            return 0
        count, weights = 0, await self._resting(self._store.weigh([run.id for run in runs]))
        for portion in portions(runs, weights, _PORTION):
            gone = await self._remove(portion)
            if gone is None and not count:
                return None
            if gone is None:
                continue  # kin of what has just gone went with it
            count += len(gone.runs)
            if gone.runs:
                count += await self._remove_kin(gone) or 0
        return count

    async def _remove(self, portion: Sequence[Ended]) -> Removal | None:
        if self._archive is not None:
            await self._archive.keep(portion)
        gone = await self._resting(self._store.remove(portion, self._pace is not None))
        if gone is None or gone.runs or self._pace is None:
            return gone
        missing = await self._store.missing([run.id for run in portion])
        return None if len(missing) == len(portion) else gone  # whoever rests between two portions holds no lock

    async def _resting(self, question: Awaitable[T]) -> T:
        """Ask something, and rest after the answer."""
        began = self._clock.now()
        answer = await question
        share = OF_OPERATORS if self._pace is None else self._pace.share
        await self._clock.sleep(rest_after(self._clock.now() - began, share))
        return answer

    async def _remove_kin(self, gone: Removal) -> int | None:
        """Children of what is gone, and the first of a chain whose last run is gone: as many as there are, with their
        own kin."""
        count = 0
        while ids := await self._resting(self._store.ended_kin(gone, self._keep, _BATCH)):
            free = [run for run in await self._store.ended(ids) if needed_by(run) is None]
            removed = await self.remove(free) if free else 0
            if not removed:
                break
            count += removed
        return count
