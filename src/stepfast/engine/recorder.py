"""What the engine needs of whatever it runs in: a journal, threads, a look into the mailbox, errands.

A worker does what it is asked. A replay that does nothing new never asks for anything: for it the bases here are
enough, which refuse everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from ..model.payload import Payloads
from ..model.records import Entry, NewRun, Parent, StepDone, StepRecord, WorkerInfo
from ..model.remote_steps import Way
from ..model.rows import DagStepRow, Outcome
from ..settings import Settings
from .clock import Clock
from .promise import Promise

if TYPE_CHECKING:
    from .execution import Execution
    from .mail_reader import MailAnswer, MailReader
    from .observing import Observers


class Errands:
    """What a run asks of the database beside its journal."""

    def new_child(
        self, workflow: Any, input: Any, options: dict[str, Any], parent: Parent
    ) -> Coroutine[Any, Any, tuple[list[NewRun], Any]]:
        """A child to be started (and, for a dag, its steps), checked as any start; and the type of its result."""
        never()

    async def outcome(self, run_id: str) -> Outcome | None:
        """How a run ended, if it has."""
        never()

    async def value(self, run_id: str, key: str) -> str | None:
        """A value that a run has set, as it is kept."""
        never()

    async def retry(self, run_id: str) -> bool:
        """Queue a failed run again, if it can go on."""
        never()

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run."""
        never()

    async def peers(self, workflow: str) -> list[WorkerInfo]:
        """The other living workers that know a workflow."""
        never()

    way: Way | None = None
    """How remote steps go out, once that is known."""

    async def find_way(self) -> Way:
        """Open the transport of remote steps; ConfigurationError if there is none."""
        never()

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The ids of those of a run's remote steps that still come to something, and when they were sent anew."""
        never()

    async def transact(
        self,
        execution: Execution,
        address: tuple[str, int],
        call: Callable[[Any], Any],
        record: Callable[[Any], StepDone],
        timeout: float | None,
    ) -> StepRecord:
        """Call a function inside a transaction that also holds the record of its result."""
        never()

    async def outcome_at(self, execution: Execution, address: tuple[str, int]) -> StepRecord | None:
        """What is on record at an address of a run."""
        never()


class Recorder:
    """Where an execution runs. Made within the event loop that its code runs in."""

    errands = Errands()
    observers: Observers | None = None
    """Who is told what happens to runs, if anybody is."""
    step_observers: Observers | None = None
    """The observers, if any of them wants to hear of each call of a step."""

    def __init__(self, settings: Settings, payloads: Payloads, logger: logging.Logger, clock: Clock) -> None:
        self.settings = settings
        self.payloads = payloads
        self.logger = logger
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop
        self.loop_thread: int
        """The event loop that the code runs in, and the thread of that loop."""

    def record(self, entry: Entry) -> Promise[int]:
        """Journal an entry. Resolves to the database's time once it is committed; raises LeaseLost if refused."""
        never()

    def note(self, entry: Entry) -> None:
        """Journal an entry that nobody waits for; safe to call from any thread. A replay notes nothing."""

    def run_in_thread(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a blocking call in a thread for steps, with the caller's context variables."""
        never()

    def look(self, reader: MailReader) -> asyncio.Future[MailAnswer]:
        """What is in the mailbox of a run."""
        never()

    def watch(self, reader: MailReader) -> None:
        """From now on tell this reader whenever there may be something new in the mailbox of its run."""
        never()

    def may_linger(self, execution: Execution) -> bool:
        """Whether a run may wait in memory rather than be released; it is released when its slot is wanted."""
        never()


def never() -> NoReturn:
    """What a replay does not ask for."""
    raise RuntimeError("a replay was asked to do something, which is a bug in Stepfast")
