"""A worker that dies at a chosen moment: from then on nothing it says reaches the database, and it hears nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from stepfast import LeaseLost, Stepfast
from stepfast.model.records import Batch, FlushAnswer, StepDone
from stepfast.store import Store
from tests.support.engine import PATIENCE

When = Callable[[Batch], bool]

_SILENCED = ("flush", "claim", "claim_suspects", "transact", "give_back", "promote", "deliver")


class Crash:
    """Comes at the first flush for which ``when`` is true: just before it is written, or just after."""

    def __init__(self, store: Store, when: When, written: bool) -> None:
        self._store = store
        self._when = when
        self._written = written
        self._dead = asyncio.Event()
        self._real = {name: getattr(store, name) for name in _SILENCED}
        for name in _SILENCED:
            setattr(store, name, getattr(self, f"_{name}", None) or self._deaf(name))

    async def happened(self) -> None:
        """Wait until the worker is dead."""
        await asyncio.wait_for(self._dead.wait(), PATIENCE)

    @property
    def is_dead(self) -> bool:
        return self._dead.is_set()

    def undo(self) -> None:
        """The store is as it was: for the next worker."""
        for name in _SILENCED:
            delattr(self._store, name)

    async def _flush(self, worker: str, batch: Batch) -> FlushAnswer:
        if not self.is_dead:
            if not self._when(batch):
                answer: FlushAnswer = await self._real["flush"](worker, batch)
                return answer
            if self._written:
                await self._real["flush"](worker, batch)
            self._dead.set()
        return FlushAnswer(0, lost=set(batch.claims))

    async def _transact(self, *args: Any) -> Any:
        if self.is_dead:
            raise LeaseLost("dead")
        return await self._real["transact"](*args)

    def _deaf(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            if self.is_dead and name in ("promote", "deliver"):
                await asyncio.Event().wait()
            return [] if self.is_dead else await self._real[name](*args)

        return call


@asynccontextmanager
async def dying_worker(app: Stepfast, when: When, *, written: bool, **options: Any) -> AsyncIterator[Crash]:
    """A worker that dies at a flush. When the block ends its runs are ready again, as after its lease."""
    store = await app.store()
    crash = Crash(store, when, written)
    try:
        async with app.worker(shutdown_grace=0, **options):
            yield crash
    finally:
        crash.undo()


async def crash_at(app: Stepfast, when: When, *, written: bool, **options: Any) -> None:
    """Let a worker work until it dies."""
    async with dying_worker(app, when, written=written, **options) as crash:
        await crash.happened()


def outcome_of(name: str, kind: str | None = None, *, status: str | None = None) -> When:
    """A flush that holds a record of this name (and kind, and status). What a run that is released leaves open counts
    only if the status says so."""

    def matches(step: StepDone) -> bool:
        left_open = step.status == "waiting" and step.kind not in ("sleep", "call")
        fits = not left_open if status is None else status == step.status
        return step.name == name and kind in (None, step.kind) and fits

    return lambda batch: any(matches(s) for s in (*batch.steps, *(entry.step for entry in batch.joint)))


def end_of(status: str) -> When:
    """A flush that holds the end of a run."""
    return lambda batch: any(move.status == status for move in batch.transitions)
