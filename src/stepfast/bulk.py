"""One action on all runs that filters select, in batches, the oldest first.

It can be interrupted at any time and repeated: runs that are done are not selected again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field

from .errors import ConfigurationError, InvalidInput, InvalidState, RunNotFound
from .filters import CountKeywords, ListKeywords, store_filters
from .model.backoff import seconds
from .model.bulk_actions import BATCHED, BulkAction
from .model.names import nearest, refuse_unknown
from .model.rows import RunRow
from .run import Run
from .store.lock_timeout import RowsHeld, brief

if TYPE_CHECKING:
    from .app import Stepfast

_PAGE = 1000
"""Runs that one query finds."""
_BATCH = 200
"""Runs of one transaction: bounds how long their rows stay locked."""
_AT_ONCE = 4
"""Concurrent calls where each run is called by itself."""
_HELD = 5.0
"""Seconds to wait for the row of a run that another transaction holds, so that the other runs do not wait for it."""
_PATIENCE = 1.0
"""Seconds that the current batch has to finish when the action is cancelled."""
_SLACK = 1.0
"""Seconds after the beginning in which new runs are still selected, so that those from just before it are."""

Fits = Callable[[RunRow], bool]
"""Whether a run that passes the filters is selected."""
Ask = Callable[[Run[Any]], Awaitable[object]]
"""Calls the action of one run."""


BulkVerb = Literal["cancel", "retry", "pause", "resume", "delete"]
"""The actions of ``app.bulk``."""


class BulkResult(Struct):
    """What a bulk action has done so far."""

    matched: int = 0
    """Runs that were selected; with ``dry_run`` those that would be."""
    done: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """The reason, by the id of the run."""
    seen: set[str] = field(default_factory=set)
    """The ids of selected runs."""

    def __repr__(self) -> str:
        return f"BulkResult(matched={self.matched}, done={self.done}, refused={len(self.refused)})"


async def apply_action(
    app: Stepfast,
    verb: str,
    filters: CountKeywords,
    *,
    dry_run: bool,
    limit: int | None,
    progress: Callable[[BulkResult], object] | None,
) -> BulkResult:
    """``app.bulk``: check the call, and apply the action."""
    action = BATCHED.get(verb)
    if action is None:
        raise ConfigurationError(f"there is no bulk action {verb!r}{nearest(str(verb), BATCHED)}; {', '.join(BATCHED)}")
    refuse_unknown("app.bulk", filters, CountKeywords.__annotations__)
    if all(value is None or value == {} for value in filters.values()):
        raise ConfigurationError(f'app.bulk takes at least one filter: app.bulk({verb!r}, workflow="checkout")')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigurationError(f"limit must be at least 1, not {limit!r}")
    choices = for_statuses(action, cast(ListKeywords, filters))
    for choice in choices:
        store_filters(choice)
    if dry_run:
        number = sum([await app.count(**cast(CountKeywords, choice)) for choice in choices])
        return BulkResult(matched=number if limit is None else min(number, limit))
    bulk = Bulk(app, action)
    await bulk.run(choices, limit, None if progress is None else lambda _: progress(bulk.result))
    return bulk.result


def for_statuses(action: BulkAction, filters: ListKeywords) -> list[ListKeywords]:
    """Return the filters for each status that is selected: the given one, or those that the action applies to."""
    given = filters.get("status")
    return [{**filters, "status": status} for status in ([given] if given else action.statuses)]


async def count_selected(app: Stepfast, choices: Sequence[ListKeywords], fits: Fits | None, most: int) -> int:
    """Count the selected runs, up to one more than ``most``."""
    found: set[str] = set()
    for filters in choices:
        async for page in _pages(app, filters, fits):
            found.update(page)
            if len(found) > most:
                return most + 1
    return len(found)


class Bulk:
    """An action on many runs."""

    def __init__(self, app: Stepfast, action: BulkAction, *, ask: Ask | None = None, fits: Fits | None = None) -> None:
        """``ask`` is the call for one run where it takes arguments, ``fits`` a filter beyond those of lists."""
        self._app = app
        self._action = action
        self._ask: Ask = ask or (lambda run: getattr(run, action.verb)())
        self._fits = fits
        self.result = BulkResult()

    async def run(
        self, choices: Sequence[ListKeywords], limit: int | None = None, progress: Callable[[int], object] | None = None
    ) -> None:
        """Apply the action to all selected runs, or to at most ``limit``.

        Runs that pass from one status to another during a round are found in the next round. Runs that are created
        after the beginning are not selected: if runs are started faster than this works, it would not end.
        """
        again, began = True, time.monotonic()
        while again:
            before = len(self.result.seen)
            for filters in choices:
                async for page in _pages(self._app, filters, self._fits, began):
                    fresh = [run_id for run_id in page if run_id not in self.result.seen]
                    left = len(fresh) if limit is None else limit - len(self.result.seen)
                    for batch in _batched(fresh[:left], _BATCH):
                        await self._whole(batch)
                        if progress is not None:
                            progress(len(self.result.seen))
                    if limit is not None and len(self.result.seen) >= limit:
                        await self._repeat()
                        return
            again = len(choices) > 1 and len(self.result.seen) > before
        await self._repeat()

    async def _repeat(self) -> None:
        """Try refused runs again where others that are done now may have kept them, until none is done any more."""
        before = -1
        while self._action.repeated and self.result.refused and self.result.done > before:
            before, refused = self.result.done, sorted(self.result.refused, reverse=True)
            for batch in _batched(refused, _BATCH):
                for run_id in batch:
                    del self.result.refused[run_id]
                await self._whole(batch)

    async def these(self, ids: Sequence[str]) -> None:
        """Apply the action to runs that were selected before."""
        for batch in _batched(ids, _BATCH):
            await self._whole(batch)

    async def _whole(self, ids: Sequence[str]) -> None:
        """Finish a batch also when the caller is cancelled, so that the result says what was done."""
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
        if self._action.batched:
            connected = await self._app._connect()
            outcome = await connected.store.apply_bulk(self._action.verb, list(ids))
            connected.switchboard.bulk_applied(outcome)
            self.result.done += len(outcome.done)
            self.result.refused |= {run_id: f"run {run_id} is {status}" for run_id, status in outcome.refused.items()}
            apart = outcome.apart
        room = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._one(run_id, room) for run_id in apart))
        self.result.seen.update(ids)
        self.result.matched = len(self.result.seen)

    async def _one(self, run_id: str, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                with brief(_HELD):
                    await self._ask(self._app.get(run_id))
                self.result.done += 1
            except RunNotFound:
                pass  # pruned since it was found
            except (InvalidState, InvalidInput, RowsHeld) as refused:
                self.result.refused[run_id] = str(refused)


async def _pages(
    app: Stepfast, filters: ListKeywords, fits: Fits | None, began: float | None = None
) -> AsyncIterator[list[str]]:
    """Yield the ids of selected runs, the oldest first; with ``began``, those that were selected at that time."""
    store = await app.store()
    after: str | None = None
    while True:
        asked = filters if began is None else _as_of(filters, time.monotonic() - began)
        wanted = store_filters({**asked, "after": after, "limit": _PAGE, "oldest_first": True})
        rows = await store.runs(**wanted)
        if rows:
            yield [row.id for row in rows if fits is None or fits(row)]
        if len(rows) < _PAGE:
            return
        after = rows[-1].id


def _as_of(filters: ListKeywords, ago: float) -> ListKeywords:
    """Return the filters as they were ``ago`` seconds before: ages count from then."""
    given: ListKeywords = {**filters}
    since, older = given.get("since"), given.get("older_than")
    if since is not None:
        given["since"] = seconds(since, "since") + ago
    if older is not None or ago > _SLACK:
        given["older_than"] = seconds(older or 0, "older_than") + max(ago - _SLACK, 0)
    return given


def _batched(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
