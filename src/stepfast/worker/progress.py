"""Progress: what steps say they are doing, written beside the journal.

No record waits for it, and no row of a run is locked for it. What cannot be written is dropped: the latest word of a
step replaces the others anyhow.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ..errors import sentence
from ..model.records import StepRunning
from .kit import Kit

_LONGEST = 5.0
"""Seconds that one write may take. A lock on the table must not keep a connection of the pool for longer."""

_CHANCE = 0.5
"""Seconds for the last words when a worker leaves."""


class Progress:
    """Collects the latest word of each step of a worker and writes it, one statement at a time."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._waiting: dict[tuple[str, str, int], StepRunning] = {}
        self._writer: asyncio.Task[None] | None = None
        self._failing = False
        """Whether the last write has failed, which was logged."""
        self._over = False

    def note(self, entry: StepRunning) -> None:
        """Take the word of a step, in place of an earlier one that is not written yet. What it leaves out is kept of
        that one."""
        if self._over:
            return
        address = (entry.run_id, entry.branch, entry.position)
        before = self._waiting.get(address)
        if before is not None:
            detail = before.detail if entry.detail is None else entry.detail
            data, format_ = (before.data, before.format) if entry.data is None else (entry.data, entry.format)
            entry = replace(entry, detail=detail, data=data, format=format_, since_ms=before.since_ms)
        self._waiting[address] = entry
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="stepfast-progress")

    async def _write(self) -> None:
        await asyncio.sleep(0)  # what is noted in the same turn goes along
        while self._waiting:
            entries, self._waiting = list(self._waiting.values()), {}
            try:
                async with self._kit.clock.timeout(_LONGEST):
                    await self._kit.store.tell_progress(self._kit.me.id, entries)
            except Exception as error:
                self._failed(error)
            else:
                self._failing = False

    def _failed(self, error: Exception) -> None:
        """Log the first of several failures in a row."""
        if not self._failing:
            self._kit.logger.warning(
                "the progress of steps cannot be written, and is dropped until it can: %s", sentence(error)
            )
        self._failing = True

    async def written(self) -> None:
        """Give what was noted a chance to be written before the worker leaves, but no more."""
        if self._writer is not None and not self._failing:
            await self._kit.clock.wait((self._writer,), _CHANCE)

    async def close(self) -> None:
        """Stop writing; what is noted from now on is dropped."""
        self._over = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
