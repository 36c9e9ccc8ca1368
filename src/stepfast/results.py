"""Waiting for results: one query per process for all that wait, and a warning where no worker serves a run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from .engine.host import Clock
from .errors import AppClosed, DatabaseUnavailable, RunNotFound, SchemaError, StepfastError
from .model import status
from .model.health import why_unserved
from .model.records import Transition
from .model.rows import Outcome, RunRow
from .model.status import COMPENSATED
from .settings import Settings
from .store import Store
from .store.answers import AwaitedValue, Wakeups
from .worker.notifier import Switchboard

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

_FIRST = 0.01
_MOST_AT_ONCE = 5000
_GONE_AFTER, _GONE_EVERY = 1.0, 5.0
"""Seconds of waiting after which it is checked whether the run exists, and seconds between further checks: a run that
was removed has no end."""


class Poller:
    """Polls the database for all of a process that wait for something, while there are any. Wake-ups make it poll at
    once; without them it polls less and less often."""

    _name: str
    """What it does, for the log."""

    def __init__(
        self, store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
    ) -> None:
        self._store = store
        self._settings = settings
        self._logger = logger
        self._switchboard = switchboard
        self._clock = clock
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._polled_all = float("-inf")
        """When everything was last polled for, apart from what wake-ups have told."""

    def drop(self) -> list[asyncio.Task[None]]:
        """Stop, and fail all waits. Return the task, to be cancelled."""
        self._over = True
        self._switchboard.unsubscribe(self._woken)
        self._fail(None)
        return [] if self._task is None else [self._task]

    def _start(self, look: bool = True) -> None:
        """Poll from now on, and ``look`` at once."""
        if self._task is None or self._task.done():
            self._switchboard.unsubscribe(self._woken)
            self._switchboard.subscribe(self._woken)
            self._task = asyncio.create_task(self._poll(), name=f"stepfast-{self._name.split()[-1]}")
            self._task.add_done_callback(self._stopped)
            look = True
        if look:
            self._look.set()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Fail all waits if the task ended by an error or a cancellation. If it ended for lack of waits, a newer wait
        has started another."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._logger.error("%s: unexpected error", self._name, exc_info=error)
        if task is self._task:
            self._switchboard.unsubscribe(self._woken)
            if error is not None or task.cancelled():
                self._fail(error)

    async def _poll(self) -> None:
        wait = _FIRST
        while self._waits():
            self._look.clear()
            every = self._settings.poll_interval if self._hears else self._settings.poll_interval / 2
            found, everything = False, self._clock.now() - self._polled_all >= every
            try:
                found = await self._ask(everything)
            except AppClosed:
                raise
            except (DatabaseUnavailable, SchemaError) as error:
                self._logger.debug("%s: %s", self._name, error)
                await self._clock.sleep(0.2)
            else:
                self._polled_all = self._clock.now() if everything else self._polled_all
            wait = _FIRST if found else min(wait * 2, every)
            try:
                async with self._clock.timeout(every if self._hears else wait):
                    await self._look.wait()
            except TimeoutError:
                pass

    @property
    def _hears(self) -> bool:
        """Whether wake-ups tell of what other processes do."""
        return self._store.can_wake

    def _waits(self) -> bool:
        """Whether anything is waited for."""
        raise NotImplementedError

    def _woken(self, wakeups: Wakeups) -> None:
        """Poll, if what has happened may be what is waited for."""
        raise NotImplementedError

    async def _ask(self, everything: bool) -> bool:
        """Resolve what can be resolved, and return whether there was anything. ``everything``: also look for what a
        wake-up should have told."""
        raise NotImplementedError

    def _fail(self, error: BaseException | None) -> None:
        """Fail all waits: by an error, or because the application was closed."""
        raise NotImplementedError


class KeyWatcher(Poller, Generic[K, R]):
    """Resolves waits for things in the database that have keys, with one query for all that wait in this process."""

    def __init__(
        self, what: str, find: Callable[[list[K]], Awaitable[dict[K, R]]], store: Store, settings: Settings,
        logger: logging.Logger, switchboard: Switchboard, clock: Clock, closed: Callable[[], AppClosed], *,
        notified: bool = True,
    ) -> None:  # fmt: skip
        """``find`` returns what there is to return of some keys. ``notified``: other processes notify this one."""
        super().__init__(store, settings, logger, switchboard, clock)
        self._name = f"watching {what}"
        self._find = find
        self._closed = closed
        self._notified = notified
        self._waiting: dict[K, set[asyncio.Future[R]]] = {}

    async def wait(self, key: K, timeout: float | None) -> R:
        """Return what is found. TimeoutError after ``timeout`` seconds of real time."""
        if self._over:
            raise self._closed()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        self._start()
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
            if not done:
                raise TimeoutError
            return future.result()
        finally:
            waiters = self._waiting.get(key)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    del self._waiting[key]

    def look(self) -> None:
        """Ask the database now."""
        self._look.set()

    @property
    def _hears(self) -> bool:
        return self._notified and self._store.can_wake

    def _waits(self) -> bool:
        return bool(self._waiting)

    def _fail(self, error: BaseException | None) -> None:
        for waiters in self._waiting.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(error or self._closed())

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.streams or wakeups.ended or wakeups.anything:
            self._look.set()

    async def _ask(self, everything: bool) -> bool:
        keys, any_found = list(self._waiting), False
        for start in range(0, len(keys), _MOST_AT_ONCE):
            for key, found in (await self._find(keys[start : start + _MOST_AT_ONCE])).items():
                any_found = True
                for future in self._waiting.get(key, ()):
                    if not future.done():
                        future.set_result(found)
        return any_found


class Watcher(Poller):
    """Resolves the waits for the ends of runs."""

    _name = "watching results"

    def __init__(
        self, store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
    ) -> None:
        super().__init__(store, settings, logger, switchboard, clock)
        self._waiting: dict[str, set[asyncio.Future[Outcome]]] = {}
        self._gone_at: dict[str, float] = {}
        """When to check whether a run exists."""
        switchboard.outcomes.append(self._ended_here)

    async def wait(self, run_id: str, timeout: float | None) -> Outcome | None:
        """Return how the run ended; None after the timeout, which is measured in real time."""
        if self._over:
            raise _closed(run_id)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        self._gone_at.setdefault(run_id, time.monotonic() + _GONE_AFTER)
        self._start()
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
            return future.result() if done else None
        finally:
            waiters = self._waiting.get(run_id)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    del self._waiting[run_id]
                    self._gone_at.pop(run_id, None)

    def _waits(self) -> bool:
        return bool(self._waiting)

    def _fail(self, error: BaseException | None) -> None:
        for run_id, waiters in self._waiting.items():
            for future in waiters:
                if not future.done():
                    future.set_exception(error or _closed(run_id))

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.ended or wakeups.anything:
            self._look.set()

    def _ended_here(self, moves: Sequence[Transition]) -> None:
        for move in moves:
            if move.status == COMPENSATED:
                self._look.set()  # the error it had ended with is in its row
            elif move.run_id in self._waiting:
                self._resolve(Outcome(move.run_id, move.status, move.reason, move.output, move.error, move.format))

    async def _ask(self, everything: bool) -> bool:
        ids = list(self._waiting)
        found = False
        for start in range(0, len(ids), _MOST_AT_ONCE):
            for outcome in await self._store.outcomes(ids[start : start + _MOST_AT_ONCE]):
                found = True
                self._resolve(outcome)
        await self._look_for_gone()
        return found

    async def _look_for_gone(self) -> None:
        """Fail the waits for runs that were removed. Each run is checked at its own times, counted from its first
        wait."""
        now = time.monotonic()
        due = [run_id for run_id, at in self._gone_at.items() if at <= now]
        self._gone_at.update(dict.fromkeys(due, now + _GONE_EVERY))
        ids = [run_id for run_id in due if not all(future.done() for future in self._waiting.get(run_id, ()))]
        for start in range(0, len(ids), _MOST_AT_ONCE):
            with contextlib.suppress(DatabaseUnavailable, SchemaError):
                for run_id in await self._store.missing(ids[start : start + _MOST_AT_ONCE]):
                    for future in self._waiting.get(run_id, ()):
                        if not future.done():
                            future.set_exception(RunNotFound(run_id))

    def _resolve(self, outcome: Outcome) -> None:
        for future in self._waiting.get(outcome.id, ()):
            if not future.done():
                future.set_result(outcome)


def _closed(run_id: str) -> AppClosed:
    return AppClosed(
        f"the application was closed before run {run_id} had ended; the run continues, and can be asked for again"
    )


SOON = 1.0
"""Seconds of waiting after which workers are checked: a live one has claimed the run by then."""
_AT_MOST_EVERY = 5.0
"""Seconds between two checks of one process."""


class NoWorkerWarning:
    """Warns callers who wait for a run that no worker serves."""

    def __init__(self, store: Store, logger: logging.Logger, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._looked = float("-inf")

    async def warn(self, run_id: str) -> None:
        """Log a warning if no worker will take the run. Checks of one process are limited in frequency."""
        if self._clock.now() - self._looked < _AT_MOST_EVERY:
            return
        self._looked = self._clock.now()
        if (found := await self._look(run_id)) is not None:
            row, missing = found
            ids = {"run_id": run_id, "workflow": row.workflow, "attempt": row.attempt}
            self._logger.warning("run %s: %s", run_id, missing, extra=ids)

    async def missing(self, run_id: str) -> str | None:
        """Return the warning for a ready run that no worker will take; None if one will, or if it is not known."""
        found = await self._look(run_id)
        return None if found is None else found[1]

    async def _look(self, run_id: str) -> tuple[RunRow, str] | None:
        """Return the row of a run that no worker will take, with the warning."""
        with contextlib.suppress(StepfastError):
            row = await self._store.run(run_id)
            if row is not None and row.status == status.QUEUED and row.ready:
                why = why_unserved(await self._store.workers(), row.workflow, row.queue)
                if why is not None:
                    return row, f"it is queued; {why}: start one with `stepfast worker module:app`"
        return None


def value_watcher(
    store: Store, settings: Settings, logger: logging.Logger, switchboard: Switchboard, clock: Clock
) -> KeyWatcher[tuple[str, str], AwaitedValue]:
    """Resolves the waits for values, by run and key: when the value is set, or the run is over. Other processes are
    not notified of values, which some runs set often."""

    async def set_or_over(keys: list[tuple[str, str]]) -> dict[tuple[str, str], AwaitedValue]:
        rows = await store.awaited_values(keys)
        return {(row.run_id, row.key): row for row in rows if row.value is not None or row.over}

    return KeyWatcher(
        "values", set_or_over, store, settings, logger, switchboard, clock,
        lambda: AppClosed("the application was closed before the value was set"), notified=False,
    )  # fmt: skip
