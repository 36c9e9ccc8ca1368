"""The claimer: takes as many ready runs as there are free slots, as soon as slots or runs appear."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..model.events import ClaimAnswered
from ..model.records import Claimed, Lane
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


class Questions:
    """Numbers claims, whoever asks them."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last claim, which is how many there were."""
        self._open: set[int] = set()

    @contextlib.contextmanager
    def ask(self) -> Iterator[int]:
        """A claim that is unanswered until the block is left: it may have taken runs that we do not know of yet."""
        self.last += 1
        number = self.last
        self._open.add(number)
        try:
            yield number
        finally:
            self._open.discard(number)

    @property
    def unanswered(self) -> int | None:
        """The number of the oldest claim that has no answer yet."""
        return min(self._open, default=None)


MARK_SLACK = 2_000_000
"""Microseconds a mark stays behind what was seen: a start may commit a little after younger ones."""

_MOST_LANES = 1000
"""Lanes that wake-ups alone can make a claim look into: what one forged of names that nobody uses could add to it. The
sweeper finds those that do have something, however many they are."""

_UNTIL_HEARD = 0.1
"""Seconds between two looks at whether a heartbeat has come through."""

_MISSES = 2
"""How often an empty claim over several lanes is repeated before they are taken for empty."""


class Claimer:
    """Claims in a loop; rung by whoever knows that there is work or room."""

    def __init__(self, context: WorkerContext, runtime: WorkerRuntime) -> None:
        self._context = context
        self._me = context.me
        self._runtime = runtime
        self._active: dict[Lane, int] = {}
        self._marks: dict[Lane, int] = {}
        self._rung: dict[Lane, int] = {}
        """Lanes rung for since the last claim was asked, and from where to look: it may not have seen these."""
        self.gated: frozenset[str] = frozenset()
        """Queues that are paused or limited, as of the last tick: a claim gives nothing of them."""
        self._suspects = False
        """Whether there may be runs that workers have died with, now or when those at hand have cleared themselves."""
        self._bell = asyncio.Event()
        self.questions = Questions()
        self.stopped = False
        """The worker stops: nothing is claimed any more."""
        self.paused = False
        """The worker is being given a new id: nothing is claimed until it has one."""
        self.busy = False
        self.expected = 0
        """How many runs the claim under way may bring."""
        self.last_found = 0.0
        """When a claim last brought something (monotonic)."""

    # -- rung by others ----------------------------------------------------------------------------------------

    def woken(self, lanes: Iterable[Lane]) -> None:
        """Something was just made ready: it stands behind the mark."""
        for lane in lanes:
            if lane.queue in self.gated:
                continue  # the next tick tells when that is over
            if self._me.serves(lane) and (lane in self._active or len(self._active) < _MOST_LANES):
                mark = self._marks.get(lane, 0)
                self._rung.setdefault(lane, mark)
                self._active.setdefault(lane, mark)
                self._bell.set()

    def found(self, lanes: Iterable[Lane], suspects: bool = False) -> None:
        """The sweeper saw ready runs in these lanes, wherever they stand: look from the beginning."""
        for lane in lanes:
            if self._me.serves(lane):
                self._active[lane] = self._rung[lane] = 0
                self._bell.set()
        if suspects:
            self._suspects = True
            self._bell.set()

    def gates_are(self, gated: frozenset[str]) -> None:
        """Hear which queues are paused or limited: their lanes are not asked for."""
        if gated or self.gated:
            self.gated = gated
            for waiting in (self._active, self._rung):
                for lane in [lane for lane in waiting if lane.queue in gated]:
                    del waiting[lane]

    def opened(self, queue: str, lanes: Iterable[Lane]) -> None:
        """A queue has no limits any more."""
        self.gated -= {queue}
        self.found(lanes)

    def time_is(self, now_ms: int) -> None:
        """The database's time. A mark ahead of it is of no use: the clock has stepped back, and whatever is made ready
        from now on would stand before the mark and go unseen."""
        for lane in [lane for lane, mark in self._marks.items() if mark > now_ms * 1000]:
            del self._marks[lane]
            for waiting in (self._active, self._rung):
                if lane in waiting:
                    waiting[lane] = 0

    def slots_freed(self) -> None:
        """There is room for more runs."""
        if self._active or self._suspects:
            self._bell.set()

    @property
    def wanted(self) -> int | None:
        """The highest priority of what may be ready; None: nothing is known to be."""
        return max((lane.priority for lane in self._active), default=None)

    @property
    def idle(self) -> bool:
        """Nothing is being claimed, and no lane is known to have anything."""
        return not (self.busy or self._active or self._bell.is_set())

    # -- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim until the worker stops."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            self.busy = True
            try:
                await self._claim_while_possible()
            finally:
                self.busy = False

    async def _claim_while_possible(self) -> None:
        if self._suspects:
            await self._claim_suspects()
        missed = 0
        while self._active and not (self.stopped or self.paused) and (free := self._runtime.free_slots()) > 0:
            lanes, found = list(self._active.items()), self.last_found
            await self._claim(lanes, free)
            missed = missed + 1 if len(lanes) > 1 and self.last_found == found else 0
            if 0 < missed <= _MISSES:
                # Over many lanes the first runs are chosen before they are locked: all may have gone to others.
                for lane, mark in lanes:
                    self._active.setdefault(lane, mark)
                await self._context.clock.sleep(0.005 * missed)

    async def _claim_suspects(self) -> None:
        """Groups of suspects, as far as there is room for them; the rest is asked for when a seat is free again."""
        while self._suspects and not (self.stopped or self.paused):
            free, room = self._runtime.free_slots(), self._runtime.suspect_room()
            room = [min(free, seats) for seats in room]
            if not any(room):
                return
            before = self.last_found
            self._suspects = False
            await self._claim(None, 0, room)
            if self.last_found == before:
                # Those that are ready may need more room than is left by the ones at hand.
                self._suspects = self._suspects or room[-1] == 0
                return
            self._suspects = True  # there may be more

    async def _claim(self, lanes: list[tuple[Lane, int]] | None, limit: int, room: Sequence[int] = ()) -> None:
        self.expected = limit if lanes is not None else max(room)
        try:
            with self.questions.ask() as token:
                await self._claim_once(token, lanes, limit, room)
        finally:
            self.expected = 0

    async def _claim_once(
        self, token: int, lanes: list[tuple[Lane, int]] | None, limit: int, room: Sequence[int]
    ) -> None:
        me, worker, asked_at = self._me, self._me.id, self._context.clock.now()
        if lanes is not None:
            self._rung.clear()

        store = self._context.store

        async def ask() -> list[Claimed]:
            if not await self.is_still(worker):
                return []
            if lanes is None:
                return await store.claim_suspects(worker, token, me.versions, me.queues, room)
            return await store.claim(worker, token, lanes, me.versions, limit, self._runtime.remembered)

        # The same token again after an outage: what a claim with a lost reply took must not be left lying.
        runs = await self._context.ask(ask, "claim", lambda: self.stopped)
        if (observers := self._context.observers) is not None and observers.claim_answered:
            took = self._context.clock.now() - asked_at
            observers.tell(observers.claim_answered, ClaimAnswered(took, len(runs)))
        if lanes is not None:
            self._learn(lanes, runs, limit)
        if runs:
            self.last_found = self._context.clock.now()
            if worker == me.id:
                self._runtime.accept(runs, asked_at)

    async def is_still(self, worker: str) -> bool:
        """Whether a claim may be asked under this id, for the first time or again after an outage. If others may have
        buried it, the next heartbeat tells: what a claim takes under a buried id is executed by no worker."""
        while self._runtime.is_unheard():
            if self.stopped:
                return False
            await self._context.clock.sleep(_UNTIL_HEARD)
        return worker == self._me.id

    def _learn(self, lanes: list[tuple[Lane, int]], runs: list[Claimed], limit: int) -> None:
        """Move the marks; drop lanes that have run dry."""
        for run in runs:
            lane = Lane(run.queue, run.workflow, run.priority)
            # Where it stands may be ahead of the clock, if that has stepped back since.
            mark = min(run.place, run.now_ms * 1000) - MARK_SLACK
            if mark > self._marks.get(lane, 0):
                self._marks[lane] = mark
            if lane in self._active:
                self._active[lane] = self._marks.get(lane, 0)
        # One lane is drained when it gives less than asked for; of many, others may hold the first rows locked.
        if (len(lanes) == 1 and len(runs) < limit and not self._cut_short(runs)) or not runs:
            for lane, _ in lanes:
                self._active.pop(lane, None)
        self._active.update(self._rung)

    def _cut_short(self, runs: list[Claimed]) -> bool:
        """Whether a claim may have left ready runs because their inputs would have been too much at once. A character
        has up to four bytes."""
        return 4 * sum(len(run.input) for run in runs) >= self._context.settings.claim_bytes


class Sharing:
    """Divides the free slots of one worker."""

    def __init__(self) -> None:
        self._limited_last = False

    def for_limited(self, free: int, limited: int | None, usual: int | None) -> int:
        """How many of the free slots a limited queue may take, by the priorities of both; None: nothing is wanted."""
        if usual is None or (limited is not None and limited > usual):
            return free
        if limited is None or limited < usual:
            return 0
        return free // 2 + (free % 2 and not self._limited_last)

    def for_usual(self, free: int, limited: int | None, usual: int | None) -> int:
        """How many of the free slots are left for the usual claims."""
        return free if limited is None else free - self.for_limited(free, limited, usual)

    def took(self, limited: bool) -> None:
        """Note who has taken the slots: a limited queue, or the usual claims."""
        self._limited_last = limited
