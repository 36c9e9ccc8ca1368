"""The mail of one run in memory: what was found in its mailbox, and who in its code waits for it."""

from __future__ import annotations

import asyncio
from collections import deque

from ..model import status
from ..model.records import Mail, Mailbox

Waiter = asyncio.Future[Mail | None]


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
        self._seen: set[str] = set()
        self._signals: dict[str, deque[Mail]] = {}
        self._children: dict[str, Mail] = {}
        self._waiters: dict[tuple[str, str], deque[Waiter]] = {}
        self._watchers: set[asyncio.Future[None]] = set()

    def put(self, box: Mailbox) -> None:
        """Take in what a look brought."""
        moved = box.wakes != self.wakes
        self.wakes, self.ends = box.wakes, box.ends
        for mail in box.mail:
            if mail.id not in self._seen:
                self._seen.add(mail.id)
                self._sort(mail)
        if moved:
            for watcher in self._watchers:
                if not watcher.done():
                    watcher.set_result(None)

    def _sort(self, mail: Mail) -> None:
        """To the first who waits for it, or to the rest."""
        if self._hand_over(mail):
            return
        if mail.kind == status.MAIL_CHILD:
            self._children[mail.id] = mail
        else:
            self._signals.setdefault(mail.name, deque()).append(mail)

    def _hand_over(self, mail: Mail) -> bool:
        """Give it to the first who waits for it, if anybody does."""
        waiting = self._waiters.get((mail.kind, mail.id if mail.kind == status.MAIL_CHILD else mail.name))
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(mail)
                return True
        return False

    def take(self, kind: str, key: str) -> Mail | None:
        """Mail of a kind: the oldest signal of a name, or the end of a child."""
        if kind == status.MAIL_CHILD:
            return self._children.pop(key, None)
        waiting = self._signals.get(key)
        return waiting.popleft() if waiting else None

    def share(self, mail: Mail) -> None:
        """The end of a child is there for everybody who asks for it, now and later."""
        for waiter in self._waiters.pop((mail.kind, mail.id), ()):
            if not waiter.done():
                waiter.set_result(mail)
        self._children[mail.id] = mail

    def give_back(self, mail: Mail) -> None:
        """It was not recorded after all; it is the next to be taken, by whoever has begun to wait for it meanwhile."""
        if self._hand_over(mail):
            return
        if mail.kind == status.MAIL_CHILD:
            self._children[mail.id] = mail
        else:
            self._signals.setdefault(mail.name, deque()).appendleft(mail)

    def wait(self, kind: str, key: str) -> Waiter:
        """A future for mail that is not there yet."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((kind, key), deque()).append(waiter)
        return waiter

    def watch(self) -> asyncio.Future[None]:
        """A future for any wake at all."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return watcher
