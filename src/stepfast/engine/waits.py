"""The waits of one run that are kept in memory; when nothing else is under way, the run is released instead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..model import status
from ..model.records import Mail
from .clock import CHANCE, TURNS
from .heeding import must_go_on_first
from .inbox import Waiter
from .mail_reader import MailReader
from .scope import wake

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

_MANY = 50
"""A run that waits for more children than this is not woken for each, but for as many as end while waking it would
take."""
_NAMED = 4
"""So many different things that it waits for are named."""
_LONGEST_LINGER = 2000
"""Milliseconds that more ends of children are waited for at most."""


class Wait(NamedTuple):
    """One thing that the run waits for."""

    due_at: int | None
    """A time of the database."""
    what: str
    mail: bool
    group: object | None
    """Waits for children, or remote steps, that all have to end before the code goes on are of one group."""
    leaving: Callable[[], None] | None = None
    """Called when the run is released meanwhile, to journal what the next claim has to know."""
    by_end: bool = False
    """Whether it is the end of something, a child or a remote step: these are counted."""


class Waits:
    """What the run waits for, and whether it waits for nothing but that."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._clock = execution.clock
        self._open: dict[asyncio.Future[Any], Wait] = {}
        self._since: float | None = None
        """Since when everything under way has been waiting."""
        self._counted = 0.0
        """Until when that was counted as time spent waiting."""
        self._waited = 0.0

    @cached_property
    def reader(self) -> MailReader:
        """Who reads its mailbox; many runs wait for a time alone, and need none."""
        return MailReader(self._execution, lambda: bool(self._open))

    # -- for those who wait ------------------------------------------------------------------------------------

    async def until(self, due_at: int, what: str) -> None:
        """Wait for a time of the database."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._timed(future, Wait(due_at, what, False, None))

    async def until_woken(self, due_at: int, what: str, leaving: Callable[[], None]) -> None:
        """Wait for a time, or for whatever wakes the run before."""
        self.reader.watch()
        await self._timed(self._execution.inbox.watch(), Wait(due_at, what, False, None, leaving))

    async def mail(
        self,
        kind: str,
        key: str,
        due_at: int | None,
        what: str,
        group: object = None,
        refused: Collection[str] = (),
    ) -> Mail | None:
        """Wait for mail: a signal of a name, the end of a child. None: it did not come in time. What was refused before
        (by its id) is left to others."""
        inbox = self._execution.inbox
        inbox.want(kind, key)  # to the end: each look on the way has to ask for it, the last one too
        try:
            mail = inbox.take(kind, key, refused)
            while mail is None and not inbox.knows(kind, key):
                await self.reader.look()
                mail = inbox.take(kind, key, refused)
            if mail is None:
                wait = Wait(due_at, what, True, group, by_end=kind in status.MAIL_ENDS)
                waiter = inbox.wait(kind, key, refused)
                try:
                    mail = await self._arrival(waiter, wait)
                finally:
                    inbox.wait_no_more(kind, key, waiter)
            if mail is None:  # time is up; what was sent until now counts
                await self.reader.look_afresh()
                mail = inbox.take(kind, key, refused)
            return mail
        finally:
            inbox.want_no_more(kind, key)

    async def _arrival(self, waiter: Waiter, wait: Wait) -> Mail | None:
        """Wait for mail that is not there yet."""
        self.reader.watch()
        try:
            return await self._timed(waiter, wait)
        except BaseException:
            if waiter.done() and not waiter.cancelled() and (mail := waiter.result()) is not None:
                self._execution.inbox.give_back(mail)  # it came, but whoever waited for it has just been cancelled
            raise

    async def mail_at_hand(self, kind: str, key: str) -> Mail | None:
        """Mail that is there already."""
        await self.reader.look_afresh()
        return self._execution.inbox.take(kind, key)

    async def _timed(self, future: asyncio.Future[T], wait: Wait) -> T:
        timer = None
        if wait.due_at is not None:
            left = max(0, wait.due_at - self._execution.database_now()) / 1000
            timer = self._clock.alarm(left, wake, future)
        self._open[future] = wait
        self._execution.busy -= 1
        if self._execution.unawaited:
            self.release_soon()  # a call that was made may be awaited in this very turn
        else:
            self.release_if_at_rest()
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            del self._open[future]
            self._execution.busy += 1
            self._waited, self._since = self.take_waited(), None

    # -- releasing ---------------------------------------------------------------------------------------------

    def take_waited(self) -> float:
        """Seconds spent only waiting since this was last asked: they do not count for the timeout of an attempt."""
        now = self._clock.now()
        waited, self._waited = self._waited, 0.0
        if self._since is not None:
            waited += now - max(self._since, self._counted)
            self._counted = now
        return waited

    def release_soon(self) -> None:
        """Release the run if it is still at rest when its code has had a chance to go on: a step that just ended may be
        followed by another."""
        if self._open:
            self._clock.after(CHANCE, self._release_after, TURNS)

    def _release_after(self, turns: int) -> None:
        """The time may have passed in a loop that was held up: the code needs turns of the loop, not only time."""
        if turns:
            asyncio.get_running_loop().call_soon(self._release_after, turns - 1)
        else:
            self.release_if_at_rest()

    def release_if_at_rest(self) -> None:
        """Release the run if all that is under way is waiting, unless it is for a moment only and slots are free."""
        execution = self._execution
        if execution.busy or not self._open or execution.closed is not None:
            return
        if execution.holding:
            execution.check_rest_soon()  # a call is held back until all else is at rest, which it may be by this wait
            return
        if self._since is None:
            self._since = self._clock.now()
        if not self._may_stay():
            self.release()

    def _may_stay(self) -> bool:
        recorder = self._execution.recorder
        moment, due = recorder.settings.moment, self._earliest()
        if due is not None and due - self._execution.database_now() <= moment * 1000:
            return recorder.may_linger(self._execution)
        assert self._since is not None
        left = moment - (self._clock.now() - self._since)
        if left <= 0 or not any(wait.mail for wait in self._open.values()):
            return False
        if not recorder.may_linger(self._execution):
            return False
        self._clock.after(left + 0.001, self.release_if_at_rest)
        return True

    def release(self) -> None:
        """Give the slot back, if it is still true that everything waits."""
        execution = self._execution
        if execution.busy or execution.holding or not self._open or execution.closed is not None:
            return
        if any(future.done() for future in self._open):
            return  # what it waited for has come, in this very turn of the loop: it is about to go on
        due_at = self._earliest()
        if due_at is not None and due_at <= execution.database_now():
            return  # the same for a time. Released, it would be due at once, be claimed, and be released again
        if must_go_on_first(execution) and any(wait.what == status.WAITING_RETRY for wait in self._open.values()):
            return  # whether the step has acted is known after its next try: only then is the run cancelled
        ends = Counter(wait.group or future for future, wait in self._open.items() if wait.by_end)
        awaits = execution.inbox.ends + min(ends.values()) if ends else None
        many = sum(ends.values()) > _MANY
        linger = min(_LONGEST_LINGER, int((self._clock.now() - execution.began) * 1000)) if many else 0
        for wait in self._open.values():
            if wait.leaving is not None:
                wait.leaving()
        execution.leave_open()
        execution.suspend(due_at, self._what(), awaits, linger)

    def _earliest(self) -> int | None:
        return min((wait.due_at for wait in self._open.values() if wait.due_at is not None), default=None)

    def _what(self) -> str:
        """What people are told it waits for: a check, which can be hurried; else everything, what others can do
        something about first, then by the time that it is due."""
        waits = self._open.values()
        if any(wait.what == status.WAITING_CHECK for wait in waits):
            return status.WAITING_CHECK
        order = sorted(waits, key=lambda wait: (not wait.mail, wait.due_at is None, wait.due_at or 0))
        named = list(dict.fromkeys(wait.what for wait in order))
        return ", ".join(named if len(named) <= _NAMED else [*named[:_NAMED], status.WAITING_MORE])

    def close(self) -> None:
        """Nothing is waited for any more."""
        for future in list(self._open):
            if not future.done():
                future.cancel()
