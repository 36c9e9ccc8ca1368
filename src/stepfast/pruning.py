"""``app.prune``: removes runs that ended long enough ago, and keeps them in an archive if there is one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypedDict

from .archiving import Archive, open_archive
from .engine.options import Seconds
from .errors import ConfigurationError
from .model.backoff import seconds
from .model.retention import DELETABLE, Keep
from .store import Store
from .worker.pruner import FIRST, Remover
from .worker.threads import REAL

Progress = Callable[[int], None]
"""Told how many runs are gone so far."""


class PruneKeywords(TypedDict, total=False):
    """The options of ``app.prune``, as ``app.sync.prune`` takes them."""

    archive: str | os.PathLike[str] | None
    """The file that the runs are written to before they go."""
    status: str | None
    """Only runs that ended so."""
    dry_run: bool
    """Whether they are only counted."""
    progress: Progress | None


def keep_for(older_than: Seconds, status: str | None) -> Keep:
    """Runs that ended less than this long ago are kept, and those that ended otherwise."""
    if status is not None and status not in DELETABLE:
        raise ConfigurationError(f"only runs that have ended can be pruned: {', '.join(DELETABLE)}, not {status!r}")
    span = int(seconds(older_than, "older_than") * 1000)
    return Keep(span, span, status)


async def prune(
    store: Store, keep: Keep, archive: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> int:
    """Remove what may go; how many runs went. Nothing is removed if the archive cannot be written to."""
    async with contextlib.AsyncExitStack() as stack:
        kept: Archive | None = None
        if archive is not None:
            kept = await stack.enter_async_context(open_archive(archive, store))
        remover, removed = Remover(store, keep, REAL, kept), 0
        after: str | None = FIRST
        while after is not None:
            found = await remover.look(after)
            removed += await remover.remove(found.free) or 0
            after = found.after
            if progress is not None:
                progress(removed)
    return removed


async def prunable(store: Store, keep: Keep) -> int:
    """How many runs may go. Those that are kept only for the sake of others among them are not counted."""
    remover, count = Remover(store, keep, REAL), 0
    after: str | None = FIRST
    while after is not None:
        found = await remover.look(after)
        count += len(found.free)
        after = found.after
    return count
