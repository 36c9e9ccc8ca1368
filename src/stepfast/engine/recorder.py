"""What the engine needs of the worker around it: a journal, threads, and the knowledge whether slots are free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ..model.payload import Payloads
from ..model.records import Entry, NewRun, Outcome, Parent, StepDone, StepRecord
from ..settings import Settings

if TYPE_CHECKING:
    from .execution import Execution


class Recorder(Protocol):
    """The worker as an execution sees it."""

    settings: Settings
    payloads: Payloads
    logger: logging.Logger
    loop: asyncio.AbstractEventLoop
    loop_thread: int
    """The event loop the worker runs in, and the thread of that loop."""

    @property
    def record(self) -> Callable[[Entry], asyncio.Future[int]]:
        """Journals an entry. Resolves to the database's time once it is committed; raises LeaseLost if refused."""
        ...

    def note(self, entry: Entry) -> None:
        """Journal an entry that nobody waits for; safe to call from any thread."""

    def run_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a blocking call in a thread for steps, with the caller's context variables."""
        ...

    async def look_into_mailbox(self, execution: Execution) -> None:
        """Ask for the mail of a run, and put it into its inbox."""

    def watch_mail(self, execution: Execution) -> None:
        """From now on look into the mailbox of this run again whenever there may be something new."""

    def lingers(self, execution: Execution) -> None:
        """The run waits in memory; release it when its slot is wanted."""

    @property
    def new_child(self) -> Callable[[Any, Any, dict[str, Any], Parent], Coroutine[Any, Any, tuple[list[NewRun], Any]]]:
        """Makes a child to be started (and, for a dag, its steps), checked as any start; and the type of its result."""
        ...

    async def outcome(self, run_id: str) -> Outcome | None:
        """How a run ended, if it has."""
        ...

    async def value(self, run_id: str, key: str) -> str | None:
        """A value that a run has set, as it is kept."""
        ...

    async def retry(self, run_id: str) -> bool:
        """Queue a failed run again, if it can go on."""
        ...

    async def transact(
        self,
        execution: Execution,
        place: tuple[str, int],
        call: Callable[[Any], Any],
        record: Callable[[Any], StepDone],
        timeout: float | None,
    ) -> StepRecord:
        """Call a function inside a transaction that also holds the record of its result."""
        ...

    def has_free_slots(self) -> bool:
        """Whether a wait may be kept in memory rather than released."""
        ...
