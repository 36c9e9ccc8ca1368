"""The reaper: finds dead workers and claims whose reply was lost, and gives back what they held."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from ..model.events import RunsSwept
from ..model.records import Beat
from ..store.answers import Reaping
from .claimer import ClaimQueries
from .context import WorkerContext, gone
from .db_retry import Halves, Sweep

if TYPE_CHECKING:
    from .worker import WorkerRuntime


class SilenceTracker:
    """What was seen of the beats of others. ``now`` is a time of our own monotonic clock."""

    def __init__(self, sweep: float) -> None:
        self._sweep = sweep
        self._seen: dict[str, tuple[Beat, float]] = {}
        """Worker → its last beat, and when we first saw that one."""

    def saw(self, beats: Iterable[Beat], now: float) -> None:
        """The last beat of each worker that lives, as the rows have it."""
        before = self._seen
        self._seen = {}
        for beat in beats:
            known = before.get(beat.worker)
            self._seen[beat.worker] = known if known is not None and known[0].at == beat.at else (beat, now)

    def silent(self, now: float) -> list[str]:
        """The workers that have been silent for as long as we look on."""
        return [worker for worker, (beat, since) in self._seen.items() if now - since >= self._enough(beat)]

    def _enough(self, beat: Beat) -> float:
        """A lease, less the time that passes until a beat is first seen: a dead worker is found within its lease and
        one sweep. Where sweeps are so rare that little would be left, two thirds of the lease: two beats lost."""
        lease = beat.lease_ms / 1000
        return max(lease - self._sweep, lease * 2 / 3)


T = TypeVar("T")

_BATCH = 1000
"""Rows given back by one statement: bounds how long they stay locked."""


class Reaper:
    """Looks at the beats of the other workers once per sweep, and buries the dead."""

    def __init__(self, context: WorkerContext, runtime: WorkerRuntime, stopped: Callable[[], bool]) -> None:
        self._context = context
        self._runtime = runtime
        self._stopped = stopped
        self._vigil = SilenceTracker(context.settings.sweep_interval)
        self._next_look = 0.0
        self._next_reap = 0.0
        self._silent: list[str] = []
        """Workers that the reaping under way may declare dead."""
        self._burials: Halves[str, Reaping] = Halves(
            context,
            stopped,
            Sweep(
                self._reap_these,
                self._lost_runs,
                self._reap_these,
                context.store.set_aside,
                lambda run_id: run_id,
            ),
        )

    async def look(self) -> bool:
        """Do what the sweep asks for, if it is time for it; whether any run was given back."""
        now, moved = self._context.clock.now(), False
        if now >= self._next_look:
            self._next_look = now + self._context.settings.sweep_interval
            beats = await self._ask(lambda: self._context.store.beats(self._context.me.id))
            self._vigil.saw(beats, self._context.clock.now())
            if dead := gone(beats):
                moved = await self.give_back_held_by(dead)
        if now >= self._next_reap and self._runtime.may_reap():
            self._next_reap = now + self._context.settings.sweep_interval
            moved |= await self._reap(self._vigil.silent(self._context.clock.now()))
        return moved

    async def give_back_held_by(self, dead: list[str]) -> bool:
        """Give back what workers of this machine held whose processes are gone, without waiting for their leases,
        nor for a lease of our own beats, because no outage can look like that."""
        self._context.logger.warning("workers whose processes on this machine are gone: %s", ", ".join(dead))
        await self._ask(lambda: self._context.store.expire(dead))
        return await self._reap(dead)

    async def _reap(self, silent: list[str]) -> bool:
        """Give back what dead workers held, in bounded batches; those of the silent whose leases are over are dead."""
        self._silent, moved = silent, False
        while True:
            batch = await self._burials.done()
            for done in batch:
                self._announce(done)
            count = sum(done.moved for done in batch)
            moved |= count > 0
            if count < _BATCH:
                return moved

    async def _lost_runs(self) -> list[str]:
        """The workers are declared dead first: until then nothing of theirs is lost."""
        self._announce(await self._reap_these([]))
        return await self._context.store.lost_runs(_BATCH)

    async def _reap_these(self, run_ids: list[str] | None = None) -> Reaping:
        return await self._context.store.reap(
            self._context.me.id, _BATCH, self._context.settings.max_losses, self._silent, run_ids
        )

    def _announce(self, done: Reaping) -> None:
        if done.dead_workers:
            self._context.logger.warning("workers declared dead: %s", ", ".join(done.dead_workers))
        for run_id in done.dead_letters:
            told = "run %s: too many workers died with it; it has failed as a dead letter"
            self._context.logger.error(told, run_id, extra={"run_id": run_id})
        if done.dead_letters:
            self._runtime.ended()
        if done.lanes:
            self._runtime.ready(done.lanes)
        if done.asked:
            self._runtime.steps_asked()
        if done.moved:
            dead = len(done.dead_letters)
            tell_swept(self._context, RunsSwept(recovered=done.moved - dead, dead_letters=dead))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._context.ask(call, "sweep", self._stopped)


def tell_swept(context: WorkerContext, swept: RunsSwept) -> None:
    """Tell the observers, if there are any, what a sweep has moved."""
    if context.observers is not None:
        context.observers.tell(context.observers.swept, swept)


Held = tuple[str, int]
"""A run, and the number of the claim that holds it."""


class OrphanedClaims:
    """A run counts as orphaned when it was seen twice, because the first query may be older than our knowledge."""

    def __init__(self) -> None:
        self._seen: dict[Held, int] = {}
        """What was seen once → how many claims we had asked for by then."""

    def find(
        self,
        held: Mapping[str, int],
        is_known: Callable[[str, int], bool],
        queries: ClaimQueries,
    ) -> list[Held]:
        """What the database says we hold, and is neither at hand nor on its way out (``is_known``), nor on its way in
        by a claim that is not answered yet."""
        claims, unanswered = queries.last, queries.unanswered
        seen = {each: self._seen.get(each, claims) for each in held.items() if not is_known(*each)}
        answered_below = math.inf if unanswered is None else unanswered
        again = [claim for claim, since in seen.items() if claim in self._seen and since < answered_below]
        self._seen = {claim: since for claim, since in seen.items() if claim not in again}
        return sorted(again)

    def forget(self) -> None:
        """Nothing that named us is ours any more."""
        self._seen.clear()
