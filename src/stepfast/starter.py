"""Starting runs: many concurrent callers share one statement, as steps share the journal's commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from .engine.host import Clock
from .engine.observers import Observers
from .errors import AppClosed, DatabaseRefused, StepfastError
from .model.queue_config import Bound
from .model.records import NewRun
from .model.transitions.start import Debounce
from .settings import Settings
from .store import Store
from .store.store import KeysHeld
from .worker.db_retry import patiently
from .worker.notifier import Switchboard, started_lanes

_PATIENCE = 5.0
"""Seconds a start rides out trouble before its caller hears of it; the id is ours, so repeating is safe."""

Item = tuple[NewRun, "asyncio.Future[str]"]


class Starter:
    """Collects starts and inserts them together."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        switchboard: Switchboard,
        clock: Clock,
        observers: Observers | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._observers = observers
        self._settings = settings
        self._logger = logger
        self._switchboard = switchboard
        # Starts with a key may have to wait for somebody else's commit; those without must not wait with them.
        self._queues: dict[bool, list[Item]] = {False: [], True: []}
        self._senders: dict[bool, asyncio.Task[None] | None] = {False: None, True: None}
        self._waiting: dict[asyncio.Task[None], tuple[str, str]] = {}
        """Starts that wait for somebody's commit, each by itself, and the workflow and key of each."""
        self._over = False

    async def start(self, run: NewRun) -> str:
        """The id of the run once it is committed: its own, or that of the run that has its key."""
        if self._over:
            raise AppClosed
        keyed = run.key is not None
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if keyed and self._waiting and _keyed(run) in self._waiting.values():
            self._wait_apart((run, future))  # together with others it would only hold them up
            return await future
        self._queues[keyed].append((run, future))
        sender = self._senders[keyed]
        if sender is None or sender.done():
            self._senders[keyed] = asyncio.create_task(self._send(keyed), name="stepfast-start")
        return await future

    async def start_many(self, runs: Sequence[NewRun]) -> list[str]:
        """Start all of these runs, or none of them."""
        try:
            ids = await self._insert(runs, at_once=True)
        except KeysHeld:
            ids = await self._insert(runs, at_once=False)
        self._started(runs, ids)
        return ids

    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """Start all of these runs, or none of them if too many would be ready in their queue."""
        until = self._clock.now() + _PATIENCE
        ids = await patiently(
            lambda: self._store.start_bounded(runs, bound),
            "start",
            self._logger,
            1.0,
            lambda: self._clock.now() > until,
            clock=self._clock,
        )
        self._started(runs, ids)
        return ids

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> str:
        """The id of the run that waits for more starts of the key: this one, or an earlier one that is put off."""
        if self._over:
            raise AppClosed
        until = self._clock.now() + _PATIENCE
        done = await patiently(
            lambda: self._store.start_debounced(run, debounce),
            "start", self._logger, 1.0, lambda: self._clock.now() > until, clock=self._clock,
        )  # fmt: skip
        if done.lane is not None:
            self._switchboard.ready([done.lane])
        self._started([run], [done.run_id])
        return done.run_id

    def drop(self) -> list[asyncio.Task[None]]:
        """Start nothing more; whoever waits is told so. The tasks, to be cancelled."""
        self._over = True
        for items in self._queues.values():  # a sender that is cancelled before its first step cannot tell them
            _fail(items, AppClosed())
            items.clear()
        return [*(task for task in self._senders.values() if task is not None), *self._waiting]

    async def _send(self, keyed: bool) -> None:
        try:
            while self._queues[keyed]:
                items, self._queues[keyed] = self._queues[keyed], []
                self._queues[keyed] = items[self._settings.start_batch :]
                await self._send_batch(items[: self._settings.start_batch])
        except asyncio.CancelledError:
            _fail(self._queues[keyed], AppClosed())
            raise

    def _wait_apart(self, item: Item) -> None:
        """Start it by itself, however long somebody holds its key, unless its caller is cancelled."""
        if self._over:
            _fail([item], AppClosed())
            return
        run, future = item
        task = asyncio.create_task(self._send_batch([item], at_once=False), name="stepfast-start")
        self._waiting[task] = _keyed(run)

        def over(_: object) -> None:
            del self._waiting[task]
            _fail([item], AppClosed())  # if it was cancelled before it had begun

        task.add_done_callback(over)
        future.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)

    async def _send_batch(self, items: list[Item], at_once: bool = True) -> None:
        runs = [run for run, _ in items]
        try:
            ids = await self._insert(runs, at_once)
        except KeysHeld:
            for item in sorted(items, key=lambda item: _keyed(item[0])):
                if not item[1].done():
                    self._wait_apart(item)
        except DatabaseRefused as error:
            if len(items) > 1:
                await self._send_one_by_one(items)
            else:
                _fail(items, error)
        except StepfastError as error:
            _fail(items, error)
        except asyncio.CancelledError:
            _fail(items, AppClosed("the application was closed; the run may have been started or not: look for it"))
            raise
        except Exception as error:
            self._logger.exception("start: unexpected error")
            _fail(items, error)
        else:
            for (_, future), run_id in zip(items, ids, strict=True):
                if not future.done():
                    future.set_result(run_id)
            self._started(runs, ids)

    async def _send_one_by_one(self, items: list[Item]) -> None:
        """One bad start must not fail its neighbours."""
        try:
            for item in items:
                await self._send_batch([item])
        except asyncio.CancelledError:
            _fail(items, AppClosed())  # those whose turn had not come
            raise

    async def _insert(self, runs: Sequence[NewRun], at_once: bool) -> list[str]:
        clock, until = self._clock, self._clock.now() + _PATIENCE
        return await patiently(
            lambda: self._store.start(runs, at_once),
            "start",
            self._logger,
            1.0,
            lambda: clock.now() > until,
            clock=clock,
        )

    def _started(self, runs: Sequence[NewRun], ids: Sequence[str]) -> None:
        """The runs are committed: wake workers, and tell whoever wants to know."""
        self._wake(runs)
        if self._observers is not None:
            self._observers.starts(runs, ids)

    def _wake(self, runs: Sequence[NewRun]) -> None:
        ready, later = started_lanes(runs)
        if ready:
            self._switchboard.ready(ready)
        if later and any(0 < run.shape.delay_ms < self._settings.poll * 1000 for run in runs):
            self._switchboard.tick_soon()


def _keyed(run: NewRun) -> tuple[str, str]:
    """The workflow and the key of a start, which together name one run."""
    return run.shape.workflow, run.key or ""


def _fail(items: list[Item], error: BaseException) -> None:
    for _, future in items:
        if not future.done():
            future.set_exception(error)
