"""A store whose calls are counted and which a lab can cut off: how a worker of a lab dies."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..store import Store
from ..worker.gc_tuning import collector
from ..worker.worker import Worker

_LOOKS = frozenset({"tick", "beats", "listen", "notify", "workers"})
"""What changes nothing, and is asked again and again."""
COMMITS = frozenset({"flush", "transact"})
"""What writes records of runs."""


class Cut:
    """Where a worker is to die: at which commit of all that the lab makes, and on which side of it."""

    def __init__(self, number: int | None = None, after: bool = False) -> None:
        self.number = number
        self.after = after
        self.commits = 0
        """How many commits have been begun."""

    def comes(self) -> bool:
        """Another commit begins: whether it is the one."""
        self.commits += 1
        return self.commits == self.number


class MortalStore:
    """Passes everything on while its worker lives. What is asked afterwards is never answered."""

    def __init__(self, store: Store, cut: Cut, die: Callable[[], object]) -> None:
        self._store = store
        self._cut = cut
        self._die = die
        self.dead = False
        self._death = asyncio.Event()
        self.under_way = 0
        """Questions that are not answered yet."""
        self.asked = 0
        """Questions that may have changed something."""

    def end(self) -> None:
        """The worker has died."""
        self.dead = True
        self._death.set()

    async def unless_dead(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Do something that asks this store; False, if it died meanwhile and would never have answered."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self._death.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else False
        finally:
            task.cancel()
            death.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not inspect.iscoroutinefunction(value):
            return value
        made = self._counted(name, value)
        setattr(self, name, made)
        return made

    def _counted(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        commits, listens = name in COMMITS, name == "listen"

        async def ask(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                await _never()
            self.asked += name not in _LOOKS
            self.under_way += not listens
            try:
                result = await (self._cut_at(call, args, kwargs) if commits else call(*args, **kwargs))
            finally:
                self.under_way -= not listens
            if self.dead:
                await _never()
            return result

        return ask

    async def _cut_at(self, call: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = self._cut.comes()
        if here and not self._cut.after:
            self._die()
            await _never()
        result = await call(*args, **kwargs)
        if here:
            self._die()
        return result


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def kill(worker: Worker) -> None:
    """Nothing more of it is written: its store is dead. Its handlers are cut off where they await something; code in
    a thread comes to its end, and nobody hears of it."""
    duties = worker.duties
    duties.stopping = duties.claimer.stopped = duties.sweeper.stopped = duties.remote_dispatcher.stopped = True
    duties.unsubscribe()
    collector.restore(worker)
    duties.executor.lose_all()
    for task in (*worker._tasks, *duties.chores):
        task.cancel()
    worker.left.set()


async def bury(worker: Worker, mortal: MortalStore) -> None:
    """Leave no task and no thread of it behind."""
    mortal.end()
    if not worker.left.is_set():
        kill(worker)
    duties = worker.duties
    await asyncio.gather(*worker._tasks, *duties.chores, return_exceptions=True)
    for closing in (duties.mailbox_poller.close, duties.dag_cache.close, duties.executor.close):
        await closing()
