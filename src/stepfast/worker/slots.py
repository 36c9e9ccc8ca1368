"""The slots of a worker, and the threads in which plain handlers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..engine.execution import Execution
from ..engine.observers import ids_of
from ..model.health import may_wait_in_memory, room_for_suspects
from ..settings import SUSPECT_LOSSES
from .context import WorkerContext


class HandlerThreads:
    """Too many threads that do not return take slots: else they would only grow."""

    def __init__(self, context: WorkerContext, returned: Callable[[], None]) -> None:
        self._logger = context.logger
        self._allowed = context.settings.concurrency
        self._returned = returned
        """Told when a thread has come back late."""
        self._threads = context.clock.pool("handler")
        self._loop = asyncio.get_running_loop()
        self._at_work: set[Execution] = set()
        """Runs whose handler is in its thread, at hand or not. Changed by the threads themselves."""
        self._stuck: set[Execution] = set()
        """The runs with a thread that have left this worker."""
        self.submit = self._threads.submit

    @property
    def stuck(self) -> int:
        """How many threads are at work for runs that have left."""
        return len(self._stuck)

    def call(self, execution: Execution, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call the handler of a run in a thread."""

        def call() -> Any:
            try:
                return function()
            finally:
                self._at_work.discard(execution)
                if execution in self._stuck:
                    self._loop.call_soon_threadsafe(self._came_back, execution)

        self._at_work.add(execution)
        return self._threads.submit(call)

    def left(self, execution: Execution) -> None:
        """The run has left this worker."""
        if execution not in self._at_work:
            return
        self._stuck.add(execution)
        if execution not in self._at_work:  # it has just returned, and did not find itself among them
            self._stuck.discard(execution)
        elif len(self._stuck) >= self._allowed:
            self._logger.error(
                "%d threads are at work on runs that have left this worker, on account of a timeout or a lost lease "
                "(%s was the last): a plain def cannot be stopped. From now on each takes a slot until it returns",
                len(self._stuck), execution.workflow.name, extra=ids_of(execution),
            )  # fmt: skip

    def _came_back(self, execution: Execution) -> None:
        self._stuck.discard(execution)
        self._returned()

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        self._threads.close()


class Slots:
    """Runs come in when they are claimed, and leave once."""

    def __init__(self, context: WorkerContext, threads: HandlerThreads, freed: Callable[[], None]) -> None:
        self._concurrency = context.settings.concurrency
        self._max_losses = context.settings.max_losses
        self._threads = threads
        self._observers = context.observers
        self._freed = freed
        """Told when there is room for more."""
        self.running: dict[str, Execution] = {}
        """All runs that are this worker's, those whose end is being committed among them."""
        self._ending: set[Execution] = set()
        """Those that have given their slot back: what becomes of them is decided, and only to be committed."""
        self._lingering: dict[Execution, None] = {}
        """Runs that wait in memory because slots are free, in the order in which they began to."""
        self.idle = asyncio.Event()
        self.idle.set()

    # -- how much room there is ------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many slots may be filled by a claim."""
        held = len(self.running)
        most = 2 * self._concurrency - held
        return min(self._concurrency - held + len(self._ending), most, most - self._threads.stuck)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free, not counting what is on its way out."""
        return len(self.running) - len(self._ending) < self._concurrency

    def suspect_room(self) -> list[int]:
        """How many more runs that workers have died with may come in. Those that have made a new record have cleared
        themselves (those that came to a wait have left), and those whose handler is done can do no harm any more."""
        unproved = [
            execution.claimed.losses
            for execution in self.running.values()
            if execution.claimed.losses >= SUSPECT_LOSSES
            and not (execution.ledger.recorded or execution in self._ending)
        ]
        return room_for_suspects(unproved, self._max_losses, self._concurrency)

    def holding(self) -> dict[str, int]:
        """Run id → claim number of all that is held. Called from the heartbeat's thread."""
        while True:
            try:
                return {run_id: execution.claim for run_id, execution in self.running.items()}
            except RuntimeError:  # changed while we looked
                continue

    def find(self, run_id: str, claim: int | None = None) -> Execution | None:
        """A run that is at hand, by this claim or by whichever."""
        execution = self.running.get(run_id)
        return None if execution is None or (claim is not None and execution.claim != claim) else execution

    # -- coming and going ------------------------------------------------------------------------------------------

    def take(self, execution: Execution) -> None:
        """A run takes a slot."""
        self.running[execution.run_id] = execution
        self.idle.clear()

    def give_back(self, execution: Execution) -> None:
        """Free the slot of a run whose handler is done, or given up: another may come. The run is held until its end is
        committed."""
        if execution not in self._ending and self.running.get(execution.run_id) is execution:
            self._ending.add(execution)
            self._freed()

    def is_ending(self, execution: Execution) -> bool:
        """Whether the run of this execution has given its slot back."""
        return execution in self._ending

    def leave(self, execution: Execution) -> None:
        """The run is no longer this worker's: forget it, once."""
        if self.running.get(execution.run_id) is not execution:
            return
        del self.running[execution.run_id]
        self._ending.discard(execution)
        self._threads.left(execution)
        # They know each other through the task's context; let go, or only the garbage collector could free them.
        execution.main.owner = execution.task = None
        self._lingering.pop(execution, None)
        if execution.timer is not None:
            execution.timer.cancel()
            execution.timer = None
        if self._observers is not None:
            self._observers.forgets(execution)
        if not self.running:
            self.idle.set()
        self._freed()

    # -- waiting in memory -----------------------------------------------------------------------------------------

    def may_linger(self, execution: Execution) -> bool:
        """Whether a run may wait in memory: as long as its slot is not wanted. In a limited queue it counts over
        all workers, and gives it back at once; so does a run that workers have died with."""
        claimed = execution.claimed
        if self.has_room and not claimed.limited and may_wait_in_memory(claimed.losses):
            self._lingering[execution] = None
            return True
        return False

    def release_lingering(self) -> None:
        """Slots are wanted: those who wait in memory give theirs back, if there is no other."""
        if not self._lingering or self.has_room:
            return
        lingering, self._lingering = self._lingering, {}
        for execution in lingering:
            if execution.closed is None:
                execution.waits.release()
