"""The claimer of limited queues: takes what their limits allow, beside the usual claims and without delaying them.

It knows queues that have something ready, from wake-ups and from the sweeper's question, and for each when to ask
again: at once when a run of ours has left and counts no more; when a rate allows the next start, which the answer
said; and at the sweeper's next tick, for what other workers give back. A worker without limited queues never asks.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.events import ClaimAnswered
from ..model.rate_limiter import Admission, KeysSeen, WantedRuns
from ..model.records import Lane, Transition
from .claimer import MARK_SLACK, Claimer
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


_SHORTEST_WAIT = 0.005
"""Seconds between two claims that a rate is awaited by: a high rate gives several at once."""
_SEEN = 30.0
"""Seconds for which a lane is taken to have nothing without a key where it had nothing: what was started in somebody's
long transaction may stand there later."""
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
    """Claims in a loop; rung by whoever knows that there is work or room."""

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
        """The sweeper saw ready runs here, wherever they stand. Other workers may have given back what limits count."""
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
        with self._claimer.questions.ask() as token:

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
            if run.claim == 1 and lane in known.lanes:  # what goes on may have been taken before its turn
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
