"""The claimer: takes as many ready runs as there are free slots, as soon as slots or runs appear."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.events import ClaimAnswered
from ..model.rate_limiter import Admission, KeysSeen, WantedRuns
from ..model.records import Claimed, Lane, Transition
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


class ClaimQueries:
    """Numbers the claim queries of both claimers."""

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
"""Queue keys that wake-ups alone can make a claim query: notifications with forged names of unused queues could add as
many. The sweeper finds all that have something."""

_UNTIL_HEARD = 0.1
"""Seconds between two looks at whether a heartbeat has come through."""

_MISSES = 2
"""How often an empty claim over several lanes is repeated before they are taken for empty."""


class Claimer:
    """Claims in a loop; rung when there is work or room."""

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
        self.queries = ClaimQueries()
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
        """Something was just made ready: its place is behind the mark."""
        for lane in lanes:
            if lane.queue in self.gated:
                continue  # the next tick tells when that is over
            if self._me.serves(lane) and (lane in self._active or len(self._active) < _MOST_LANES):
                mark = self._marks.get(lane, 0)
                self._rung.setdefault(lane, mark)
                self._active.setdefault(lane, mark)
                self._bell.set()

    def found(self, lanes: Iterable[Lane], suspects: bool = False) -> None:
        """The sweeper saw ready runs in these lanes, at any place: query from the beginning."""
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
        """The database's time. A mark ahead of it is of no use: the clock has stepped back, and runs that become ready
        from now on would come before the mark and go unseen."""
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
            with self.queries.ask() as token:
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
        declared it dead, the next heartbeat tells: what a claim takes under such an id is executed by no worker."""
        while self._runtime.is_unheard():
            if self.stopped:
                return False
            await self._context.clock.sleep(_UNTIL_HEARD)
        return worker == self._me.id

    def _learn(self, lanes: list[tuple[Lane, int]], runs: list[Claimed], limit: int) -> None:
        """Move the marks; drop lanes that have run dry."""
        last = {(run.queue, run.workflow, run.priority): run for run in runs}  # they come in order
        for run in last.values():
            lane = Lane(run.queue, run.workflow, run.priority)
            # Its place may be ahead of the clock, if that has stepped back since.
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


_SHORTEST_WAIT = 0.005
"""Seconds between two claims that a rate is awaited by: a high rate gives several at once."""
_SEEN = 30.0
"""Seconds for which a queue key is taken to have nothing without a key where it had nothing: what was started in a
long transaction of a caller may appear there later."""
_DENIED = 0.02
"""Seconds until slots are asked for again when the usual claims have them."""


class _Known:
    """What is known of one limited queue."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, int] = {}
        """Lanes that may have something, each with the place up to which everything was seen claimed."""
        self.suspects = False
        self.keys_seen = KeysSeen()
        self.seen: dict[Lane, int] = {}
        """Where keys have limits: up to which place of a lane there was nothing without a key."""
        self.seen_since = -math.inf
        self.tried_at = -math.inf
        self.due_at = -math.inf
        """When to ask again (monotonic)."""
        self.allowed_at = math.inf
        """When a rate allows more, as the last answer said (monotonic)."""
        self.rung = False
        """Whether something has come since it was last asked for."""

    @property
    def priority(self) -> int:
        """The highest of what may be ready."""
        return max((lane.priority for lane in self.lanes), default=0)


class LimitedClaimer:
    """Claims in a loop; rung when there is work or room."""

    def __init__(self, context: WorkerContext, claimer: Claimer, runtime: WorkerRuntime) -> None:
        self._context, self._clock, self._me = context, context.clock, context.me
        self._claimer = claimer
        self._runtime = runtime
        self._known: dict[str, _Known] = {}
        self._held: dict[str, str] = {}
        """Runs that came from here, and their queues: when one has left, another may begin."""
        self._bell = asyncio.Event()
        self._hurry = False
        self.busy = False
        self.expected = 0
        """How many runs the claim under way may bring."""
        self.wanted: int | None = None
        """The highest priority of what could be taken now, if there were slots; None: nothing could."""

    # -- rung by others ------------------------------------------------------------------------------------------

    def woken(self, lanes: Iterable[Lane]) -> None:
        """Something was just made ready. Where little was to be had a moment ago, it can wait for others to come."""
        for lane in lanes:
            if self._me.serves(lane):
                known = self._known_of(lane.queue)
                known.lanes.setdefault(lane, 0)
                known.rung = True
                self._ask_at(known, max(self._clock.now(), known.tried_at + self._context.settings.min_poll_interval))

    def found(self, lanes: Iterable[Lane], suspects: Iterable[str]) -> None:
        """The sweeper saw ready runs here, at any place. Other workers may have given back what limits count."""
        now, settings = self._clock.now(), self._context.settings
        pause, self._hurry = settings.min_poll_interval if self._hurry else settings.poll_interval, False
        for lane in lanes:
            if self._me.serves(lane):
                known = self._known_of(lane.queue)
                known.lanes[lane] = 0
                self._ask_at(known, max(now, known.tried_at + pause))
        for queue in suspects:
            if self._me.queues is None or queue in self._me.queues:
                known = self._known_of(queue)
                known.suspects = True
                self._ask_at(known, max(now, known.tried_at + pause))

    def hurry(self) -> None:
        """Something was changed, perhaps a limit: what is found next is asked for soon."""
        self._hurry = True

    def left(self, moves: Sequence[Transition]) -> None:
        """Runs have left this worker, by commit: those of limited queues count no more."""
        for move in moves:
            queue = self._held.pop(move.run_id, None)
            if queue is not None and (known := self._known.get(queue)) is not None:
                self._ask_at(known, self._clock.now())

    def forget_unheld(self, held: Mapping[str, object]) -> None:
        """Runs that were lost leave without a word."""
        for run_id in [run_id for run_id in self._held if run_id not in held]:
            del self._held[run_id]

    def slots_freed(self) -> None:
        """There is room for more runs."""
        if self.wanted is not None:
            self._bell.set()

    def _known_of(self, queue: str) -> _Known:
        return self._known.setdefault(queue, _Known())

    def _ask_at(self, known: _Known, when: float) -> None:
        if when < known.due_at or known.due_at == -math.inf:
            known.due_at = when
            self._bell.set()

    @property
    def idle(self) -> bool:
        """Nothing is being claimed, nor about to be."""
        return not (self.busy or self._bell.is_set() or self._next() <= self._clock.now())

    def allowed_in(self) -> float:
        """Seconds until a rate is known to allow more; infinite, if none is waited for."""
        return min((known.allowed_at for known in self._known.values()), default=math.inf) - self._clock.now()

    def _next(self) -> float:
        return min((known.due_at for known in self._known.values()), default=math.inf)

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim until the worker stops."""
        while True:
            await self._until_due()
            self.busy = True
            try:
                await self._round()
            finally:
                self.busy = False
                self._claimer.slots_freed()  # what was left to us may be taken by others now

    async def _until_due(self) -> None:
        seconds = self._next() - self._clock.now()
        if self.wanted is not None:
            seconds = max(seconds, _DENIED)
        if seconds == math.inf:
            await self._bell.wait()
        elif seconds > 0:
            try:
                async with self._clock.timeout(seconds):
                    await self._bell.wait()
            except TimeoutError:
                pass
        self._bell.clear()

    async def _round(self) -> None:
        """Ask each queue that it is time for, the most urgent first, until none of them brings anything."""
        denied: int | None = None
        while due := self._due():
            queue, known = due
            self.wanted = known.priority
            if self._claimer.stopped or self._claimer.paused or self._runtime.limited_slots() <= 0:
                denied = known.priority
                break
            await self._take(queue, known)
        self.wanted = denied

    def _due(self) -> tuple[str, _Known] | None:
        now = self._clock.now()
        due = [each for each in self._known.items() if each[1].due_at <= now]
        return max(due, key=lambda each: (each[1].priority, -each[1].tried_at), default=None)

    async def _take(self, queue: str, known: _Known) -> None:
        known.rung = False
        free = self._runtime.limited_slots()
        if known.suspects:
            room = tuple(min(free, seats) for seats in self._runtime.suspect_room())
            known.suspects = False  # the sweeper may find others while these are asked for
            if any(room) and (await self._ask(queue, known, free, room)).runs:
                known.suspects = True
            free = self._runtime.limited_slots()
        known.tried_at, known.due_at, known.allowed_at = self._clock.now(), math.inf, math.inf
        if known.lanes and free > 0:
            self._learn(queue, known, await self._ask(queue, known, free), free)
        elif not known.lanes and not known.suspects:
            self._known.pop(queue, None)
        if known.suspects or (known.lanes and free <= 0):
            known.due_at = self._clock.now()  # there may be more

    async def _ask(self, queue: str, known: _Known, free: int, suspects: tuple[int, ...] = ()) -> Admission:
        worker, asked_at = self._me.id, self._clock.now()
        if asked_at - known.seen_since > _SEEN:
            known.seen, known.seen_since = {}, asked_at
        want = WantedRuns(
            queue, list(known.lanes.items()), self._me.versions, free, known.keys_seen, known.seen, suspects
        )
        self.expected = free
        with self._claimer.queries.ask() as token:

            async def ask() -> Admission:
                if not await self._claimer.is_still(worker):
                    return Admission()
                return await self._context.store.claim_limited(worker, token, want, self._runtime.remembered)

            try:
                done = await self._context.ask(ask, "claim", lambda: self._claimer.stopped)
            finally:
                self.expected = 0
            if (observers := self._context.observers) is not None and observers.claim_answered:
                observers.tell(observers.claim_answered, ClaimAnswered(self._clock.now() - asked_at, len(done.runs)))
            if done.runs and worker == self._me.id:
                self._claimer.last_found = self._clock.now()
                self._held.update((run.id, queue) for run in done.runs)
                self._runtime.accept(done.runs, asked_at)
        return done

    def _learn(self, queue: str, known: _Known, done: Admission, free: int) -> None:
        """When to ask again; or that there is nothing more."""
        now = self._clock.now()
        if not done.limited:
            self._known.pop(queue, None)
            self._claimer.opened(queue, known.lanes)
            return
        known.keys_seen = done.keys_seen
        known.seen |= done.seen
        for run in done.runs:
            lane = Lane(run.queue, run.workflow, run.priority)
            if run.claim == 1 and lane in known.lanes:  # what continues may have been taken before its turn
                known.lanes[lane] = max(known.lanes[lane], min(run.place, run.now_ms * 1000) - MARK_SLACK)
        if done.again or len(done.runs) == free:
            known.due_at = now
        elif done.wait_ms is not None:
            known.allowed_at = now + max(done.wait_ms / 1000, _SHORTEST_WAIT)
            known.due_at = min(known.due_at, known.allowed_at)  # a run of ours may have left while it was asked
        elif not done.left and not known.rung and not known.suspects:
            self._known.pop(queue, None)
        if known.rung:
            known.due_at = min(known.due_at, now + self._context.settings.min_poll_interval)
