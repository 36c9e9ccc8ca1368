"""What a run finds around it in a worker: the journal, threads for its steps, its mail, and somebody to run errands."""

from __future__ import annotations

import asyncio
import threading

from ..engine.host import Recorder
from ..model.records import Entry, StepRunning
from .errands import Errands
from .journal import Journal
from .kit import Kit
from .mailman import Mailman
from .progress import Progress
from .slots import Slots


class WorkerHost(Recorder):
    """The worker as an execution sees it."""

    def __init__(
        self, kit: Kit, journal: Journal, mailman: Mailman, errands: Errands, slots: Slots, progress: Progress
    ) -> None:
        super().__init__(kit.settings, kit.payloads, kit.logger, kit.clock)
        self.loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        self.errands = errands
        self.observers = kit.observers
        self.step_observers = None if kit.observers is None else kit.observers.of_steps
        self._journal = journal
        self._progress = progress
        self._steps = kit.clock.pool("step")
        # Not methods, so that what is called at each step is called without another call around it.
        self.record = journal.record  # type: ignore[method-assign]
        self.run_in_thread = self._steps.submit  # type: ignore[method-assign]
        self.look = mailman.look  # type: ignore[method-assign]
        self.watch = mailman.watch  # type: ignore[method-assign]
        self.may_linger = slots.may_linger  # type: ignore[method-assign]

    def note(self, entry: Entry) -> None:
        """Journal an entry nobody waits for, from any thread. Progress is written beside the journal."""
        note = self._progress.note if isinstance(entry, StepRunning) else self._journal.note
        if threading.get_ident() == self.loop_thread:
            note(entry)  # type: ignore[arg-type]
        else:
            self.loop.call_soon_threadsafe(note, entry)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        self._steps.close()
