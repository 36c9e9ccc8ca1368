"""Ended runs: the part of the store's protocol that finds those whose time is over, and takes them away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..model.retention import Ended, EndedPage, Keep, Removal, Try, Weight
from .flows import removing
from .flows.requests import Flow, T


class Keeper(Protocol):
    """What every store can do with runs that have ended."""

    async def ended_page(self, after: str, window: int, keep: Keep, limit: int) -> EndedPage:
        """Look at the next ``window`` runs after one; the first ``limit`` of them that ended long enough ago."""
        ...

    async def ended_kin(self, gone: Removal, keep: Keep, limit: int) -> list[str]:
        """Runs that ended long enough ago, too, and were kept for the sake of those that are gone."""
        ...

    async def ended(self, ids: Sequence[str]) -> list[Ended]:
        """The runs, of those named, that have ended, in the order of their ids. Steps of dag runs are none."""
        ...

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """The ids, of those named, of runs that are not there, or not any more."""
        ...

    async def weigh(self, ids: Sequence[str]) -> dict[str, Weight]:
        """How much is recorded of each."""
        ...

    async def tries(self, run_id: str) -> list[Try]:
        """The failed tries of a run."""
        ...

    async def remove(self, runs: Sequence[Ended], alone: bool = False) -> Removal | None:
        """Take runs away with all that belongs to them, in one transaction: those that still stand as they were found
        and that nobody needs or holds locked. ``alone``: not while somebody else does the same; then there is None."""
        ...

    async def delete(self, run_id: str) -> Ended | None:
        """Take one run away, unless it has not ended (None) or somebody needs it: who, is told by what comes back."""
        ...


class KeepsRuns:
    """How ended runs are found and taken away on every database, which adds how it is asked."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def ended_page(self, after: str, window: int, keep: Keep, limit: int) -> EndedPage:
        """Which of the next runs ended long enough ago."""
        rows = await self._fetch("ended_page", after, window, *keep, limit)
        now, busy, seen, oldest, newest, last, *_ = rows[0]
        runs = [Ended(*found) for found in (tuple(row)[6:] for row in rows) if found[0] is not None]
        return EndedPage(runs, last, seen, now - (oldest or now), now - (newest or now), now, bool(busy))

    async def ended_kin(self, gone: Removal, keep: Keep, limit: int) -> list[str]:
        """Runs that were kept for the sake of those that are gone."""
        rows = await self._fetch("ended_kin", [*gone.runs, *gone.steps], gone.origins, *keep, limit)
        return [row[0] for row in rows]

    async def ended(self, ids: Sequence[str]) -> list[Ended]:
        """The runs, of those named, that have ended."""
        return [Ended(*row) for row in await self._fetch("ended", list(ids))] if ids else []

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """The ids of runs that are not there."""
        return [row[0] for row in await self._fetch("missing", list(ids))]

    async def weigh(self, ids: Sequence[str]) -> dict[str, Weight]:
        """How much is recorded of runs."""
        return {row[0]: Weight(row[1], row[2]) for row in await self._fetch("weigh", list(ids))} if ids else {}

    async def tries(self, run_id: str) -> list[Try]:
        """The failed tries of a run."""
        return sorted(Try(*row) for row in await self._fetch("tries_of", run_id))

    async def remove(self, runs: Sequence[Ended], alone: bool = False) -> Removal | None:
        """Take runs away with all that belongs to them."""
        return await self._drive(removing.remove, runs, alone)

    async def delete(self, run_id: str) -> Ended | None:
        """Take one run away."""
        return await self._drive(removing.delete, run_id)
