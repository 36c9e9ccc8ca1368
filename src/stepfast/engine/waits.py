"""The waits of one run, and its mailbox in memory. When nothing else is under way, the run is released."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..model import status
from ..model.records import Look, Mail, Mailbox, holds_all
from .host import CHANCE, TURNS, current_cursor, wake

if TYPE_CHECKING:
    from .execution import Execution


Waiter = asyncio.Future[Mail | None]

_AT_ONCE = 256
"""Signals of a name that one look brings to a call that takes all there are."""
_AHEAD = 16
"""Signals of a name that are read ahead of those who wait for them."""
_MOST_NAMES = 20
"""Names that are queried in addition to those that are waited for."""


class RunMailbox:
    """Each message goes to the first waiter that requested it; the others are kept."""

    def __init__(self, wakes: int, ends: int) -> None:
        self.wakes = wakes
        self.ends = ends
        """The counters of the mailbox at the last look."""
        self.known_empty = wakes == 0 and ends == 0
        """Whether there is no need to look: nothing had ever been delivered when the run was claimed."""
        self.looked_at: float | None = None
        """When the last look began, by this process's clock."""
        self.recalled = False
        """Whether the ends of children and callbacks that are on record are in here."""
        self.alive: asyncio.Future[dict[str, int | None]] | None = None
        """Remote steps that can still end, once a call has requested them."""
        self._seen: set[str] = set()
        self._there: set[str] = set()
        """What was read and may still be in the mailbox: it need not be read again."""
        self._names: dict[str, bool] = {}
        """Names of signals that looks ask for, and whether all there were at the last look have been brought."""
        self._wanted: Counter[str] = Counter()
        """By name of a signal: how many want one now, and are looking or waiting for it."""
        self._signals: dict[str, deque[Mail]] = {}
        self._ends: dict[str, Mail] = {}
        self._waiters: dict[tuple[str, str], dict[Waiter, Collection[str]]] = {}
        """By kind and name, in the order in which they came; with the ids of mail that this one has refused."""
        self._watchers: set[asyncio.Future[None]] = set()

    def want(self, kind: str, key: str) -> None:
        """From now on queries include this: as long as it is wanted, and for a while after. Of names that are not
        wanted the oldest are forgotten."""
        if kind in status.MAIL_ENDS:
            return
        self._wanted[key] += 1
        self._names[key] = self._names.pop(key, False)
        if len(self._names) > _MOST_NAMES:
            for name in list(self._names)[:-_MOST_NAMES]:
                if name not in self._wanted:
                    del self._names[name]

    def want_no_more(self, kind: str, key: str) -> None:
        """One of those who wanted this has it, or has given up."""
        if kind in status.MAIL_ENDS:
            return
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]

    def knows(self, kind: str, key: str) -> bool:
        """Whether all that had come until the last look has been brought. Ends always come along."""
        if self.known_empty:
            return True
        return self.looked_at is not None if kind in status.MAIL_ENDS else self._names.get(key, False)

    def look(self, run_id: str) -> Look:
        """What the next query is to bring: for all waiters, and some more."""
        return Look(run_id, {name: self._wanted[name] + _AHEAD for name in self._names}, tuple(self._there))

    def put(self, box: Mailbox, look: Look | None = None, most_bytes: int = sys.maxsize) -> None:
        """Take in what a look brought, which may be so many bytes of each name: that there is more of one name says
        nothing of the others."""
        moved = box.wakes != self.wakes
        self.wakes, self.ends = box.wakes, box.ends
        self.known_empty = self.known_empty and not (box.wakes or box.ends or box.mail)
        came: dict[str, list[Mail]] = {}
        for mail in box.mail:
            if mail.kind == status.MAIL_SIGNAL:
                came.setdefault(mail.name, []).append(mail)
        for name, most in ((look and look.names) or {}).items():
            if name in self._names:
                pile = came.get(name, ())
                self._names[name] = len(pile) < most and holds_all(pile, most_bytes)
        for mail in box.mail:
            if mail.id not in self._seen:
                self._seen.add(mail.id)
                self._there.add(mail.id)
                self._sort(mail)
        if moved:
            for watcher in self._watchers:
                if not watcher.done():
                    watcher.set_result(None)

    def _sort(self, mail: Mail) -> None:
        """To the first who waits for it, or to the rest."""
        if self.hand_over(mail):
            return
        if mail.kind in status.MAIL_ENDS:
            self._ends[mail.id] = mail
        else:
            self._signals.setdefault(mail.name, deque()).append(mail)

    def hand_over(self, mail: Mail) -> bool:
        """Give mail to the first that waits for it and has not refused it; whether there is one."""
        waiting = self._waiters.get((mail.kind, mail.id if mail.kind in status.MAIL_ENDS else mail.name), {})
        for waiter, refused in waiting.items():
            if not waiter.done() and mail.id not in refused:
                waiter.set_result(mail)
                del waiting[waiter]  # before its task continues: many signals may come at once
                return True
        return False

    def take(self, kind: str, key: str, refused: Collection[str] = ()) -> Mail | None:
        """Mail of a kind: the oldest signal of a name that was not refused, or the end of a child."""
        if kind in status.MAIL_ENDS:
            return self._ends.pop(key, None)
        waiting = self._signals.get(key)
        if not waiting or waiting[0].id not in refused:
            return waiting.popleft() if waiting else None
        mail = next((each for each in waiting if each.id not in refused), None)
        if mail is not None:
            waiting.remove(mail)
        return mail

    def gone(self, mail_ids: list[str]) -> None:
        """A message was taken, and is no longer in the mailbox."""
        self._there.difference_update(mail_ids)

    def forget(self, mail_id: str) -> None:
        """Mail was refused, and other mail may come with its id."""
        self._there.discard(mail_id)
        self._seen.discard(mail_id)

    def share(self, mail: Mail) -> None:
        """The end of a child goes to every waiter that requests it, now and later."""
        for waiter in self._waiters.pop((mail.kind, mail.id), ()):
            if not waiter.done():
                waiter.set_result(mail)
        self._ends[mail.id] = mail

    def give_back(self, mail: Mail) -> None:
        """A message that was taken was not recorded after all; it is the next to be taken, by a waiter that has begun
        to wait for it since."""
        if self.hand_over(mail):
            return
        if mail.kind in status.MAIL_ENDS:
            self._ends[mail.id] = mail
        else:
            self._signals.setdefault(mail.name, deque()).appendleft(mail)

    def wait(self, kind: str, key: str, refused: Collection[str] = ()) -> Waiter:
        """A future for mail that is not there yet."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((kind, key), {})[waiter] = refused
        return waiter

    def wait_no_more(self, kind: str, key: str, waiter: Waiter) -> None:
        """Forget a waiter whose mail came, or who waits no longer."""
        waiting = self._waiters.get((kind, key), {})
        waiting.pop(waiter, None)
        if not waiting:
            self._waiters.pop((kind, key), None)

    def watch(self) -> asyncio.Future[None]:
        """A future for any wake at all."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return watcher


class MailAnswer(NamedTuple):
    """The answer to one look into a mailbox."""

    look: Look
    """What was asked for."""
    box: Mailbox | None
    """What was found; None: the run is gone."""
    asked_at: float
    """When the question was asked, by the worker's clock."""


class MailboxReader:
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
        """From now on be notified when there may be something new."""
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
    """Waits for children, or remote steps, that all have to end before the code continues are of one group."""
    leaving: Callable[[], None] | None = None
    """Called when the run is released while it waits, to journal what the next claim has to know."""
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
    def reader(self) -> MailboxReader:
        """Who reads its mailbox; many runs wait for a time alone, and need none."""
        return MailboxReader(self._execution, lambda: bool(self._open))

    # -- for those who wait ------------------------------------------------------------------------------------

    async def until(self, due_at: int, what: str) -> None:
        """Wait for a time of the database."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._timed(future, Wait(due_at, what, False, None))

    async def until_woken(self, due_at: int, what: str, leaving: Callable[[], None]) -> None:
        """Wait for a time, or for anything that wakes the run before."""
        self.reader.watch()
        await self._timed(self._execution.inbox.watch(), Wait(due_at, what, False, None, leaving))

    async def until_called(self, call: asyncio.Future[None], due_at: int | None, what: str) -> None:
        """Wait for one of the mailbox's watchers, or for a time."""
        self.reader.watch()
        await self._timed(call, Wait(due_at, what, True, None))

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
                self._execution.inbox.give_back(mail)  # it came, but the waiter has just been cancelled
            raise

    async def signals_at_hand(self, name: str, most: int, fits: Callable[[Mail], bool]) -> list[Mail]:
        """The signals of a name that are there already, the oldest first; what does not fit stays."""
        inbox, found, others = self._execution.inbox, list[Mail](), list[Mail]()
        for _ in range(_AT_ONCE):
            inbox.want(status.MAIL_SIGNAL, name)
        try:
            await self.reader.look_afresh()
            while len(found) < most:
                mail = inbox.take(status.MAIL_SIGNAL, name)
                if mail is not None:
                    (found if fits(mail) else others).append(mail)
                elif inbox.knows(status.MAIL_SIGNAL, name):
                    break
                else:
                    await self.reader.look()
        except BaseException:
            others, found = [*found, *others], []
            raise
        finally:
            for mail in sorted(others, key=lambda mail: mail.id, reverse=True):
                inbox.give_back(mail)
            for _ in range(_AT_ONCE):
                inbox.want_no_more(status.MAIL_SIGNAL, name)
        return found

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
        execution, ended = self._execution, None
        if execution.recorder.observers is not None and execution.replaying is None:
            branch = (current_cursor.get() or execution.main).branch
            ended = execution.recorder.observers.waits(execution, wait.what, branch)
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
            if ended is not None:
                is_over = future.done() and not future.cancelled()
                ended("over" if is_over else "cancelled" if execution.closed is None else "released")

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
        """Release the run if it is still at rest after its code had a chance to continue: a step that just ended may be
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
        moment, due = recorder.settings.inline_wait, self._earliest()
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
            return  # what it waited for has come, in this very turn of the loop: it is about to continue
        due_at = self._earliest()
        if due_at is not None and due_at <= execution.database_now():
            return  # the same for a time. Released, it would be due at once, be claimed, and be released again
        if execution.must_record_first() and any(wait.what == status.WAITING_RETRY for wait in self._open.values()):
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
        """What it is shown to wait for: a check, which can be hurried; else everything, what others can do
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
