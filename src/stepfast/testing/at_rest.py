"""When a lab is at rest: its worker holds no run, and the database has nothing that could move by itself."""

from __future__ import annotations

import asyncio
import math

from ..engine.host import TURNS
from ..model.records import Tick
from ..worker.worker import Worker
from .clock import LabClock
from .hanging import Hanging
from .mortal import MortalStore
from .transport import LabTransport


class RestCheck:
    """Looks at one worker. A wait gives its slot back at once in a lab, so what is in a slot is at work."""

    def __init__(self, worker: Worker, mortal: MortalStore, remote: LabTransport, hanging: Hanging) -> None:
        self._worker = worker
        self._duties = worker.duties
        self._mortal = mortal
        self._remote = remote
        self._hanging = hanging

    async def once(self) -> bool:
        """Wait for what is under way, then look once; whether everything is at rest. A worker that has died is not."""
        duties = self._duties
        await self._hanging.wait(self._worker)
        await _turns()
        if self._mortal.dead or self._worker.broken.is_set():
            self._raise_if_broken()
            return False
        if duties.journal.busy:
            return False
        before = self._mortal.asked
        tick = await self._look()
        served = await self._remote.serve() or (tick.remote and await duties.courier.drained())
        await _turns()
        return not (self._moves(tick) or served) and self._is_idle() and self._unchanged(before, tick)

    def _moves(self, tick: Tick) -> bool:
        """Whether the database has something for the worker to do."""
        mine = any(self._worker._kit.me.serves(lane) for lane in tick.lanes)
        fires = tick.schedule_ms is not None and tick.schedule_ms <= 0
        return mine or tick.due or fires or tick.suspects or tick.mail

    def _is_idle(self) -> bool:
        duties = self._duties
        return (
            not self._mortal.dead
            and not self._worker.broken.is_set()
            and (duties.executor.idle.is_set() or self._hanging.all_of(self._worker))
            and duties.claimer.idle
            and duties.limited.idle
            and not self._mortal.under_way
            and not duties.chores
            and not duties.journal.busy
        )

    def _unchanged(self, before: int, tick: Tick) -> bool:
        """Whether nobody has asked anything that may have changed something. Looking for remote steps asks, too."""
        return self._mortal.asked == before or tick.remote

    async def _look(self) -> Tick:
        """The sweeper's question. What is ready in limited queues is asked for at once."""
        duties = self._duties
        duties.limited.hurry()
        return await duties.sweeper.tick(ask_for_lanes=True)

    def _raise_if_broken(self) -> None:
        if self._worker.broken.is_set():
            raise self._worker.breakage()

    # -- time --------------------------------------------------------------------------------------------------------

    async def next_due_ms(self, clock: LabClock) -> int | None:
        """Milliseconds until something is due: a timer, a deadline, a schedule, a rate, a remote step."""
        tick = await self._look()
        allowed = self._duties.limited.allowed_in()
        rate = None if allowed == math.inf else math.ceil(allowed * 1000)
        alarm = clock.next_alarm_ms() if self._hanging.calls else None
        found = [ms for ms in (tick.next_due_ms, tick.schedule_ms, tick.remote_ms, rate, alarm) if ms is not None]
        return min(found, default=None)

    async def beat(self) -> None:
        """The worker lives, whatever time has passed."""
        worker = self._worker
        store = self._mortal
        await asyncio.to_thread(lambda: store.pulse(10.0).beat(worker.id, worker.running))

    def complaint(self, patience: float) -> str:
        """What does not come to rest."""
        running = self._duties.executor.running.values()
        steps = [f"{call.kind} {call.name!r} (at {call.line})" for run in running for call in run.active]
        names = sorted({run.workflow.name for run in running})
        what = f"{', '.join(steps)} of {', '.join(names)}" if steps else ", ".join(names) or "the database"
        return (
            f"the lab does not come to rest: after {patience:g} s of real time {what} is still at work. A step in a "
            "lab must end by itself: replace one that talks to the world (lab.replace), or give the lab more patience "
            "(Lab(app, patience=…))"
        )


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
