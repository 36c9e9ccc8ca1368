"""The duties of one worker, and what they tell each other.

Each duty knows its kit and one port: the few things that it asks and tells. All ports lead here, so that who hears of
what can be read in one place, and no duty knows another that it does not itself use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ..engine.observers import tell_each
from ..errors import StepfastError
from ..model.records import BeatAnswer, Believer, Claimed, FlushAnswer, Lane, NewRun, StepWith, Tick, Transition
from ..model.status import COMPENSATING, TERMINAL
from ..store.store import Wakeups
from .carriage import Carriage
from .claimer import Claimer
from .courier import Courier
from .doubts import Doubts
from .errands import Errands, NewChild
from .executor import Executor
from .graphs import Graphs
from .heartbeat import Heartbeat
from .janitor import Janitor
from .journal import Journal
from .kit import Kit
from .limited import LimitedClaimer
from .mailman import Mailman
from .scheduler import Planning, Scheduler
from .sharing import Sharing
from .strays import Strays
from .sweeper import Sweeper
from .wakeups import Switchboard, started_lanes


class Duties:
    """The duties of one worker: made with it, and begun and ended by it."""

    def __init__(
        self,
        kit: Kit,
        switchboard: Switchboard,
        new_child: NewChild,
        planning: Planning,
        carriage: Carriage,
        broke: Callable[[str, BaseException], None],
    ) -> None:
        self._kit = kit
        self._me = kit.me
        self._switchboard = switchboard
        self._planning = planning
        self._broke = broke
        """Told of a duty that ended by an error."""
        self._strays = Strays()
        self.chores: set[asyncio.Task[Any]] = set()
        """What is done once, beside the duties."""
        self.stopping = False
        """The worker stops: nothing is claimed any more, and nobody is taken for dead."""
        self.doubts = Doubts(kit.clock, self._held)
        self.journal = Journal(kit, self.doubts, self)
        self.mailman = Mailman(kit)
        self.graphs = Graphs(kit)
        self.errands = Errands(kit, new_child, carriage, self.doubts, self)
        self.courier = Courier(kit, carriage, self)
        self.executor = Executor(kit, self.journal, self.mailman, self.errands, self.graphs, self.slots_freed)
        self.remembered: Mapping[str, int] = self.executor.cache.claims
        self.claimer = Claimer(kit, self)
        self.limited = LimitedClaimer(kit, self.claimer, self)
        self._limited_queues: frozenset[str] = frozenset()
        self._sharing = Sharing()
        self.sweeper = Sweeper(kit, self.claimer, self)
        self.scheduler = Scheduler(kit, planning, self)
        self.heartbeat = Heartbeat(kit, self)
        self._unheard = False
        """Whether a claim was put off until the next beat."""
        self.janitor = Janitor(kit)

    def listen(self) -> None:
        """From here on wake-ups and broken connections are heard of."""
        self._switchboard.subscribe(self._woken)
        self._kit.store.breaks.subscribe(self._connection_broke)

    def listen_no_more(self) -> None:
        """Nothing that comes from outside the worker is heard any more. Safe to repeat."""
        self._switchboard.unsubscribe(self._woken)
        self._kit.store.breaks.unsubscribe(self._connection_broke)

    def chore(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something once, beside the duties."""
        task = asyncio.create_task(work)
        self.chores.add(task)
        task.add_done_callback(self.chores.discard)

    # -- from outside ----------------------------------------------------------------------------------------------

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.lanes:
            self.claimer.woken(wakeups.lanes)
            if self.claimer.gated:
                self.limited.woken(lane for lane in wakeups.lanes if lane.queue in self._limited_queues)
        if wakeups.anything:
            self.limited.hurry()
            self.sweeper.tick_now()
            self.mailman.told()
            self.heartbeat.hurry()

    def _connection_broke(self) -> None:
        """What was acknowledged may be gone, as after a failover to a server that lagged behind: remembered histories
        are read again, and what is held is compared before anything more is written of it."""
        self.executor.cache.clear()
        self.graphs.forget_outputs()
        self.doubts.broke()

    def _held(self) -> Mapping[str, Believer]:
        """All runs of which something may still be written."""
        return {**self.journal.left, **self.executor.running}

    # -- the claimer's room ----------------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many runs may be claimed."""
        free = 0 if self.stopping or self._must_beat_first() else self.executor.slots.free
        limited = self.limited
        if limited.wanted is None and not limited.expected:
            return free
        return self._sharing.for_usual(max(0, free - limited.expected), limited.wanted, self.claimer.wanted)

    def limited_slots(self) -> int:
        """How many runs of limited queues may be claimed."""
        free = 0 if self.stopping or self._must_beat_first() else self.executor.slots.free - self.claimer.expected
        free = max(0, free)
        return self._sharing.for_limited(free, self.limited.wanted, self.claimer.wanted)

    def is_unheard(self) -> bool:
        """Whether no beat has come through for a whole lease, as after the process was stopped: others may have buried
        us, and would take away what we claim. The next beat tells."""
        return self.heartbeat.unheard > self._kit.settings.lease and self.heartbeat.alive

    def _must_beat_first(self) -> bool:
        """Whether a claim is put off until the next beat, which is sent at once."""
        if not self.is_unheard():
            return False
        self._unheard = True
        self.heartbeat.hurry()
        return True

    def suspect_room(self) -> list[int]:
        """How many more runs that workers have died with may come in, by their losses."""
        return self.executor.slots.suspect_room()

    def accept(self, runs: list[Claimed], asked_at: float) -> None:
        """Put them into the slots; or make them ready again, if we stopped while the claim was under way."""
        if self.stopping:
            self.chore(self._give_back([(run.id, run.claim) for run in runs]))
        else:
            self._sharing.took(runs[0].limited)
            self.executor.accept(runs)
            self._heed_breaks(runs, asked_at)

    def slots_freed(self) -> None:
        """There is room for more runs."""
        self.claimer.slots_freed()
        self.limited.slots_freed()

    def _heed_breaks(self, runs: list[Claimed], asked_at: float) -> None:
        """Runs that were just claimed are known from the database itself: nothing of them is in doubt, unless a
        connection broke while they were claimed."""
        if self.doubts.open:
            for run in runs:
                # What the claim before has still to say under the same number, its claim having vanished, is refused.
                if not self.journal.has(run.id, run.claim):
                    self.doubts.drop(run.id)
        if self.doubts.last_break >= asked_at:
            self.doubts.broke()

    # -- what the sweeper tells ------------------------------------------------------------------------------------

    def may_reap(self) -> bool:
        """Only after a whole lease of one's own unbroken heartbeats: after an outage the first to come back must not
        take everybody else for dead."""
        return not self.stopping and self.heartbeat.unbroken >= self._kit.settings.lease

    def gates_are(self, tick: Tick) -> None:
        """Which queues are paused or limited, and what is ready in those that are limited."""
        self.claimer.gates_are(tick.gated)
        self._limited_queues = tick.gated - tick.paused
        if tick.limited or tick.limited_suspects:
            self.limited.found(tick.limited, tick.limited_suspects)

    def ready(self, lanes: Iterable[Lane]) -> None:
        """Runs were made ready: workers should claim them."""
        self._switchboard.ready(lanes)

    def ended(self) -> None:
        """Runs have ended: whoever waits for them is told."""
        self._switchboard.ended()

    def mail_came(self) -> None:
        """Mail was delivered to runs that workers hold: to ours, or to those of others."""
        self.mailman.told()
        self._switchboard.tell_others()

    def steps_asked(self) -> None:
        """Something is asked of runs that workers hold."""
        self._switchboard.tick_everywhere()

    def schedules_due(self) -> None:
        """The time of a schedule has come."""
        self.scheduler.due()

    def started(self, runs: Sequence[NewRun]) -> None:
        """The scheduler has started runs; some may be put off by a jitter."""
        ready, later = started_lanes(runs)
        if ready:
            self._switchboard.ready(ready)
        if later:
            self.sweeper.tick_now()
        if self._kit.observers is not None:
            self._kit.observers.starts(runs)

    def remote_steps_wait(self) -> None:
        """There are remote steps to be sent, or results to be looked for."""
        self.courier.needed()

    def each_tick(self) -> None:
        """What is looked at once a tick."""
        self.executor.list_running_steps()
        self.mailman.look_again()
        self.limited.forget_unheld(self.executor.running)
        if self.doubts.open:
            self.doubts.forget_unheld()

    # -- what the journal tells ------------------------------------------------------------------------------------

    def flushed(self, moves: list[Transition]) -> None:
        """Transitions are committed: whoever waits for these runs may look, and what was given back is ready again."""
        if not moves:
            return
        self.limited.left(moves)
        ended = [move for move in moves if move.status in TERMINAL]
        if ended:
            self._switchboard.ended(ended)
        if len(ended) < len(moves):
            self.sweeper.tick_now()  # something has a time now; it may come before the next tick
        for move in moves:
            if move.status == COMPENSATING or move.successor is not None:
                self.sweeper.ask_for_lanes()
                break

    def joined(self, entries: list[StepWith], answer: FlushAnswer) -> None:
        """Children were started, mail was left, steps of dags became ready or are to end: all committed."""
        if self._kit.observers is not None:
            self._kit.observers.starts(run for entry in entries for run in entry.starts)
        ready, later = started_lanes(run for entry in entries for run in entry.starts)
        if ready or answer.lanes:
            self._switchboard.ready(ready | answer.lanes)
        if answer.undelivered or later:
            self.sweeper.tick_now()
        if any(entry.sends for entry in entries):
            self.courier.hurry()
        if answer.asked_elsewhere:
            self._switchboard.tick_everywhere()

    def flush_answered(self, lost: dict[str, int], answer: FlushAnswer) -> None:
        """Runs were refused, or something is asked of them."""
        for run_id, claim in lost.items():
            self.executor.lose(run_id, claim)
            self.executor.cache.drop(run_id)  # what went out with its release is not stored
        for run_id, what in answer.asked.items():
            self.executor.ask(run_id, what)
        if answer.vanished:
            self.vanished((run_id, lost[run_id]) for run_id in answer.vanished)
        if lost:
            # Perhaps not lost at all: their end was written before, and only the reply was lost. Then somebody may be
            # waiting for it, or a retry may be due sooner than the next tick.
            self._switchboard.ended()
            self.sweeper.tick_now()

    def vanished(self, held: Iterable[tuple[str, int]]) -> None:
        """Less is stored of these runs than we were told. They still name us: they are made ready again, to go on from
        what is left."""
        held = sorted(held)
        for run_id, _ in held:
            self._kit.logger.error(
                "run %s: the database has lost records of it that were committed; it goes on from what is left", run_id,
                extra={"run_id": run_id},
            )  # fmt: skip
            self.executor.cache.drop(run_id)
        self.chore(self._give_back(held))

    # -- what the courier tells ------------------------------------------------------------------------------------

    def outcomes_left(self) -> None:
        """Outcomes of remote steps lie in mailboxes: they are delivered at the next tick, which is now."""
        self.sweeper.tick_now()

    # -- what the heartbeat tells ----------------------------------------------------------------------------------

    def holding(self) -> dict[str, int]:
        """Run id → claim number of all that is held. Called from the heartbeat's thread."""
        return self.executor.slots.holding()

    def beat_answered(self, answer: BeatAnswer, before: dict[str, int]) -> None:
        """Compare what the database says we hold with what we know."""
        if not answer.alive:
            self._reborn()
            return
        if self._unheard:
            self._unheard = False
            self.slots_freed()
        held = {run.id: run.claim for run in answer.held}
        for run_id, claim in before.items():
            if held.get(run_id) != claim and self.executor.works_on(run_id, claim):
                self.executor.lose(run_id, claim)
        for run in answer.held:
            if run.asked is not None:
                self.executor.ask(run.id, run.asked, run.claim)
        strays = self._strays.find(held, self._is_known, self.claimer.questions)
        if strays and not self.stopping:
            told = "stored as ours, but not executed here; given back"
            tell_each(self._kit.logger, told, [{"run_id": run_id} for run_id, _ in strays])
            self.chore(self._give_back(strays))

    def _is_known(self, run_id: str, claim: int) -> bool:
        """In the slots, or on its way out of them by an entry in the journal."""
        return self.executor.slots.find(run_id, claim) is not None or self.journal.has(run_id, claim)

    async def _give_back(self, held: Iterable[tuple[str, int]]) -> None:
        try:
            await self._kit.store.give_back(self._me.id, list(held))
            self.sweeper.ask_for_lanes()
        except StepfastError:
            pass  # the next two beats find them again

    def lease_expired(self) -> None:
        """No beat has come through for a whole lease: others may own our runs by now."""
        if self.executor.running:
            told = "worker %s: no heartbeat for a whole lease; stopping its handlers"
            self._kit.logger.error(told, self._me.id)
            self.executor.lose_all()

    def heartbeat_broke(self, error: BaseException) -> None:
        """The thread itself ended by an error, which is a bug."""
        self._broke("stepfast-heartbeat", error)

    def _reborn(self) -> None:
        """We were declared dead. Nothing we hold is ours; go on under a new id."""
        if self.stopping:
            return
        old = self._me.renew()
        self._kit.logger.error("worker %s was declared dead; going on as %s", old, self._me.id)
        self.claimer.paused = True  # until the new id is known
        self.executor.lose_all()
        self.journal.disown()
        self.executor.cache.clear()  # what was to be written of those that it remembers is not
        self._strays.forget()
        self.chore(self._register_again())

    async def _register_again(self) -> None:
        store, settings, me = self._kit.store, self._kit.settings, self._me.id
        await self._kit.ask(lambda: store.register(self._me.info(settings)), "register")
        if self._me.id != me:
            return  # declared dead once more: the next id is registered by itself
        self._me.registered = True
        # Nobody may have been there for its schedules meanwhile.
        await self._kit.ask(lambda: self._planning.declare(self._me.id), "register", lambda: self.stopping)
        if self._me.id != me:
            return
        self.claimer.paused = False
        self.sweeper.tick_now()
