"""The executor: takes claimed runs, and has each of them attempted in a slot.

    claimed → slot → attempt → ending → journal → slot free

Each attempt is one task (a plain ``def`` one thread more). The way of a run is in files of its own: ``slots``,
``attempt``, ``time_limits``, ``leaving``; what can become of it is in ``engine/endings``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..engine import outcomes
from ..engine.control import must_go_on_first, obey
from ..engine.execution import Execution, Stage, Suspect
from ..engine.invocation import kind_of
from ..engine.observers import ids_of
from ..errors import AttemptEnded, DatabaseRefused, LeaseLost
from ..model.records import Claimed
from ..settings import SUSPECT_LOSSES
from .attempt import Attempts
from .divergence import Divergence
from .errands import Errands
from .graphs import Graphs
from .handler_threads import HandlerThreads
from .host import WorkerHost
from .journal import Journal
from .kit import Kit
from .leaving import Leaving
from .mailman import Mailman
from .progress import Progress
from .slots import Slots
from .time_limits import TimeLimits


class Executor:
    """Brings runs into the slots of one worker, and takes them out when somebody else says so."""

    def __init__(
        self,
        kit: Kit,
        journal: Journal,
        mailman: Mailman,
        errands: Errands,
        graphs: Graphs,
        slots_freed: Callable[[], None],
    ) -> None:
        self._workflows = kit.me.workflows
        self._logger, self._clock = kit.logger, kit.clock
        self._running_after = kit.settings.running_after
        self._slots_freed = slots_freed
        self._loop = asyncio.get_running_loop()
        self._threads = HandlerThreads(kit, slots_freed)
        self._me = kit.me
        self.slots = Slots(kit, self._threads, slots_freed)
        self.running, self.idle = self.slots.running, self.slots.idle
        self.progress = Progress(kit)
        self._host = WorkerHost(kit, journal, mailman, errands, self.slots, self.progress)
        self._leaving = Leaving(kit, journal, graphs, self.slots)
        self.cache = self._leaving.cache
        divergence = Divergence(kit, errands, journal)
        self._attempts = Attempts(kit, self._leaving, errands, graphs, self._threads, divergence)
        self._limits = TimeLimits(kit, self._attempts, self.slots)

    # -- runs come in ----------------------------------------------------------------------------------------------

    def accept(self, runs: list[Claimed]) -> None:
        """Fill slots with claimed runs."""
        for claimed in runs:
            known = self.running.get(claimed.id)
            if known is not None:
                known.lose()  # claimed anew: whatever we held of it is not ours any more
                self.slots.leave(known)
            if claimed.claim > 1:
                self._remember(claimed)
            execution = self._execution(claimed)
            self.slots.take(execution)
            execution.main.owner = execution.task = self._clock.task(self._attempts.drive(execution))
            self._limits.begin(execution)
        self.slots.release_lingering()

    def _execution(self, claimed: Claimed) -> Execution:
        workflow = self._workflows[claimed.workflow]
        claimed.worker = self._me.id
        if claimed.losses < SUSPECT_LOSSES and not claimed.unrecorded_losses:
            return Execution(claimed, workflow, self._host)
        return Suspect(claimed, workflow, self._host, self._slots_freed)

    def _remember(self, claimed: Claimed) -> None:
        """A run that was here before may have its records here still."""
        records = self.cache.take(claimed.id, claimed.claim)
        if records is not None and not claimed.records:
            claimed.records, claimed.complete = records, True

    def list_running_steps(self) -> None:
        """Called about once a second: steps that take long are listed as running."""
        now = self._clock.now()
        for execution in list(self.running.values()):
            if execution.active and execution.closed is None:
                execution.list_running(now, self._running_after)

    # -- what operators ask ----------------------------------------------------------------------------------------

    def ask(self, run_id: str, what: str, claim: int | None = None) -> None:
        """An operator wants a run cancelled or paused: at once if no step is being executed, else after it."""
        execution = self.slots.find(run_id, claim)
        if execution is None or execution.claimed.undoing:
            return
        execution.asked = what
        known = execution.claimed.complete  # without its whole history nobody knows what there is to undo
        between = kind_of(execution.workflow).is_between_steps(execution)
        if execution.closed is None and between and known and not must_go_on_first(execution):
            obey(execution)

    # -- losing and giving back ------------------------------------------------------------------------------------

    def works_on(self, run_id: str, claim: int) -> bool:
        """Whether this claim of the run is at hand, and nothing that ends it is in the journal yet."""
        execution = self.slots.find(run_id, claim)
        return execution is not None and execution.stage is not Stage.LEAVING

    def lose(self, run_id: str, claim: int | None = None) -> None:
        """The run is not ours any more."""
        execution = self.slots.find(run_id, claim)
        if execution is not None:
            told = "run %s: lost its lease (claim %d)"
            self._logger.warning(told, run_id, execution.claim, extra=ids_of(execution))
            self._leaving.lost(execution)

    def lose_all(self) -> None:
        """The worker's own lease is over."""
        for run_id in list(self.running):
            self.lose(run_id)

    async def give_back(self) -> None:
        """Stop every handler and make its run ready again at once."""
        receipts = []
        for execution in list(self.running.values()):
            if execution.closed is None:
                execution.close(AttemptEnded("the worker stops"))
                receipts.append((execution, execution.leave(outcomes.given_back(execution))))
        for execution, receipt in receipts:
            try:
                await receipt
            except (LeaseLost, DatabaseRefused):
                pass
            self.slots.leave(execution)

    async def close(self) -> None:
        """Let go of threads and of handlers that ignored being cancelled."""
        await self.progress.close()
        self._threads.close()
        self._host.close()
        tasks = self._limits.late | {e.task for e in self.running.values() if e.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await self._clock.wait(tasks, 1)
