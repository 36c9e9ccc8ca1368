"""Reading the mailbox of one run: asks what is in it, and puts the answer into the inbox.

The worker answers, one question for all runs that ask in the same turn, and says when there may be something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..model.records import Look, Mailbox

if TYPE_CHECKING:
    from .execution import Execution


class MailAnswer(NamedTuple):
    """The answer to one look into a mailbox."""

    look: Look
    """What was asked for."""
    box: Mailbox | None
    """What was found; None: the run is gone."""
    asked_at: float
    """When the question was asked, by the worker's clock."""


class MailReader:
    """Reads the mailbox of one run. Made when the run first waits for something."""

    def __init__(self, execution: Execution, waits: Callable[[], bool]) -> None:
        self._execution = execution
        self._recorder = execution.recorder
        self._waits = waits
        self._looking: asyncio.Task[None] | None = None
        self._rest: asyncio.Future[MailAnswer] | None = None
        """The answer that will bring what was too much for the last one."""

    # -- for the waits of the run ------------------------------------------------------------------------------

    async def look(self) -> None:
        """Bring what is there: one look for all who want one at the same time. It may have been begun a little ago."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look_once())
        await asyncio.shield(self._looking)

    async def look_afresh(self) -> None:
        """Bring all that is there now: a look that is under way may have missed the latest."""
        if self._looking is not None:
            await asyncio.shield(self._looking)
        await self.look()

    def watch(self) -> None:
        """From now on be told when there may be something new."""
        self._recorder.watch(self)

    async def _look_once(self) -> None:
        try:
            await asyncio.shield(self._recorder.look(self))
            while self._rest is not None:
                await asyncio.shield(self._rest)
        finally:
            self._looking = None

    # -- for the worker ----------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run whose mail it reads."""
        return self._execution.run_id

    @property
    def known_until(self) -> float | None:
        """When it was last asked what there is, by the worker's clock; None: never."""
        return self._execution.inbox.looked_at

    @property
    def claimed_at(self) -> float:
        """When the run came to this worker, by the worker's clock."""
        return self._execution.began

    @property
    def listens(self) -> bool:
        """Whether news would be heard: the run waits, and is still here."""
        return self._execution.closed is None and self._waits()

    def what(self) -> Look:
        """What the next look is to bring."""
        return self._execution.inbox.look(self._execution.run_id)

    def hear(self) -> None:
        """There may be something new: ask."""
        self._recorder.look(self)

    def take_in(self, answer: MailAnswer) -> None:
        """The answer has come: into the inbox with it. What was too much for one look is asked for at once."""
        inbox = self._execution.inbox
        inbox.looked_at = answer.asked_at
        box = answer.box or Mailbox(inbox.wakes, inbox.ends)
        inbox.put(box, answer.look, self._recorder.settings.mail_bytes)
        self._rest = self._recorder.look(self) if box.more and self._execution.closed is None else None
