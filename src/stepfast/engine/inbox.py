"""The mail of one run in memory: what was found in its mailbox, and who in its code waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Collection

from ..model import status
from ..model.records import Look, Mail, Mailbox
from ..store.store import holds_all

Waiter = asyncio.Future[Mail | None]

_AHEAD = 16
"""Signals of a name that are read ahead of those who wait for them."""
_MOST_NAMES = 20
"""Names that are looked for, beside those that somebody wants."""


class Inbox:
    """Mail goes to whoever asked for it first; what nobody has asked for yet is kept."""

    def __init__(self, wakes: int, ends: int) -> None:
        self.wakes = wakes
        self.ends = ends
        """The counters of the mailbox at the last look."""
        self.known_empty = wakes == 0 and ends == 0
        """Whether there is no need to look: nothing had ever been delivered when the run was claimed."""
        self.looked_at: float | None = None
        """When the last look began, by this process's clock."""
        self.recalled = False
        """Whether the ends of children that are on record are in here."""
        self.alive: asyncio.Future[dict[str, int | None]] | None = None
        """Remote steps that still come to something, once somebody has asked."""
        self._seen: set[str] = set()
        self._there: set[str] = set()
        """What was brought and may still lie in the mailbox: it need not be brought again."""
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
        """From now on looks ask for this: surely until it is wanted no more, and for a while after. Of names that
        nobody wants the oldest are forgotten."""
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
        """What the next look is to bring: for whoever wants it, and some more."""
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
        if self._hand_over(mail):
            return
        if mail.kind in status.MAIL_ENDS:
            self._ends[mail.id] = mail
        else:
            self._signals.setdefault(mail.name, deque()).append(mail)

    def _hand_over(self, mail: Mail) -> bool:
        """Give it to the first who waits for it, if anybody does."""
        waiting = self._waiters.get((mail.kind, mail.id if mail.kind in status.MAIL_ENDS else mail.name), {})
        for waiter, refused in waiting.items():
            if not waiter.done() and mail.id not in refused:
                waiter.set_result(mail)
                del waiting[waiter]  # before its task goes on: many signals may come at once
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
        """Mail was taken, and lies in the mailbox no longer."""
        self._there.difference_update(mail_ids)

    def share(self, mail: Mail) -> None:
        """The end of a child is there for everybody who asks for it, now and later."""
        for waiter in self._waiters.pop((mail.kind, mail.id), ()):
            if not waiter.done():
                waiter.set_result(mail)
        self._ends[mail.id] = mail

    def give_back(self, mail: Mail) -> None:
        """Mail that was taken was not recorded after all; it is the next to be taken, by whoever has begun to wait for
        it meanwhile."""
        if self._hand_over(mail):
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
