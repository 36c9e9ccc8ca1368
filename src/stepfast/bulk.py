"""One wish for all runs that filters choose: asked in batches, from the oldest on.

It can be given up at any time, and called again: what was done is done, and is not chosen again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from .app import Stepfast
from .errors import InvalidInput, InvalidState, RunNotFound
from .filters import ListKeywords, store_filters
from .model.backoff import seconds
from .model.bulk_actions import WISHES
from .model.rows import RunRow
from .run import Run
from .store.lock_timeout import RowsHeld, brief

_PAGE = 1000
"""Runs that one question finds."""
_BATCH = 200
"""Runs that are asked at once: bounds how long their rows stay locked."""
_AT_ONCE = 4
"""Runs that are asked side by side where each is asked by itself."""
_HELD = 5.0
"""Seconds that it waits for a run which somebody's transaction holds: the others are not to wait for that one."""
_PATIENCE = 1.0
"""Seconds that the batch in hand has when all of it is given up."""
_SLACK = 1.0
"""Seconds after the beginning in which runs that are created are still meant, so that those from just before it are."""


class BulkProgress(Struct):
    """What a wish for many runs has come to so far."""

    done: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by the id of the run."""
    seen: set[str] = field(default_factory=set)


Fits = Callable[[RunRow], bool]
"""Whether a run that the filters let through is meant."""


async def chosen(app: Stepfast, choices: Sequence[ListKeywords], fits: Fits, most: int) -> int:
    """How many runs are chosen; beyond ``most`` it is not looked."""
    found: set[str] = set()
    for filters in choices:
        async for page in _pages(app, filters, fits):
            found.update(page)
            if len(found) > most:
                return most + 1
    return len(found)


class Bulk:
    """Asks the same of many runs."""

    def __init__(self, app: Stepfast, wish: str, ask: Callable[[Run[Any]], Awaitable[object]], fits: Fits) -> None:
        """``ask`` is the wish for one run: for wishes that no store knows how to do for many, and for runs that have to
        be asked one by one."""
        self._app = app
        self._wish = wish
        self._ask = ask
        self._fits = fits
        self.tally = BulkProgress()

    async def run(self, choices: Sequence[ListKeywords], limit: int | None, progress: Callable[[int], None]) -> None:
        """Ask all of them, or so many. What passes from one status to another meanwhile is found in another round. What
        is created meanwhile is not meant: where runs are started faster than asked, there would be no end."""
        again, began = True, time.monotonic()
        while again:
            before = len(self.tally.seen)
            for filters in choices:
                async for page in _pages(self._app, filters, self._fits, began):
                    fresh = [run_id for run_id in page if run_id not in self.tally.seen]
                    left = len(fresh) if limit is None else limit - len(self.tally.seen)
                    for batch in _batched(fresh[:left], _BATCH):
                        await self._whole(batch)
                        progress(len(self.tally.seen))
                    if limit is not None and len(self.tally.seen) >= limit:
                        return
            again = len(choices) > 1 and len(self.tally.seen) > before

    async def these(self, ids: Sequence[str]) -> None:
        """Ask runs that were chosen before."""
        for batch in _batched(ids, _BATCH):
            await self._whole(batch)

    async def _whole(self, ids: Sequence[str]) -> None:
        """A batch that was begun comes to its end also for those who are told to stop: they know what was done."""
        batch = asyncio.create_task(self._batch(ids))
        try:
            await asyncio.shield(batch)
        except asyncio.CancelledError:
            await asyncio.wait([batch], timeout=_PATIENCE)
            batch.cancel()
            await asyncio.gather(batch, return_exceptions=True)
            raise

    async def _batch(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        apart = list(ids)
        if self._wish in WISHES:
            connected = await self._app._connect()
            granted = await connected.store.grant(self._wish, list(ids))
            connected.switchboard.granted(granted)
            self.tally.done += len(granted.done)
            self.tally.refused |= {run_id: f"run {run_id} is {status}" for run_id, status in granted.refused.items()}
            apart = granted.apart
        room = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._one(run_id, room) for run_id in apart))
        self.tally.seen.update(ids)

    async def _one(self, run_id: str, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                with brief(_HELD):
                    await self._ask(self._app.get(run_id))
                self.tally.done += 1
            except RunNotFound:
                pass  # pruned since it was found
            except (InvalidState, InvalidInput, RowsHeld) as refused:
                self.tally.refused[run_id] = str(refused)


async def _pages(
    app: Stepfast, filters: ListKeywords, fits: Fits, began: float | None = None
) -> AsyncIterator[list[str]]:
    """Ids of the runs that are chosen, the oldest first; if it is told when it began, as they were chosen then."""
    store = await app.store()
    after: str | None = None
    while True:
        asked = filters if began is None else _as_of(filters, time.monotonic() - began)
        wanted = store_filters({**asked, "after": after, "limit": _PAGE, "oldest_first": True})
        rows = await store.runs(**wanted)
        if rows:
            yield [row.id for row in rows if fits(row)]
        if len(rows) < _PAGE:
            return
        after = rows[-1].id


def _as_of(filters: ListKeywords, ago: float) -> ListKeywords:
    """The filters as they were so many seconds ago: ages count from then."""
    given: ListKeywords = {**filters}
    since, older = given.get("since"), given.get("older_than")
    if since is not None:
        given["since"] = seconds(since, "since") + ago
    if older is not None or ago > _SLACK:
        given["older_than"] = seconds(older or 0, "older_than") + max(ago - _SLACK, 0)
    return given


def _batched(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """In their order, so many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))
