"""The application for code without an event loop: a thread runs one, and each call waits for its answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from .caller_thread import CallersThread
from .compatibility import CheckedRun, CheckKeywords
from .engine.options import ScheduleKeywords, Seconds, StartKeywords, StartManyKeywords, shows_options
from .errors import AppClosed, ContextMisuse
from .filters import ListKeywords
from .info import Activity, RunInfo, StepInfo
from .model.queue_config import LimitKeywords
from .queues import QueueInfo
from .retention import PruneKeywords
from .run import Run
from .schedules import ScheduleInfo
from .stats import Stats

if TYPE_CHECKING:
    from .app import Stepfast
    from .engine.workflow import Workflow

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")
C = TypeVar("C", covariant=True)


@shows_options
class SyncApp:
    """``app.sync``: the methods of the application for code without an event loop."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._over = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = _promise()
        self._ended: concurrent.futures.Future[None] = _promise()
        self._thread = threading.Thread(target=self._main, name="stepfast-sync", daemon=True)
        self._thread.start()
        self._loop, self._stop = self._started.result()

    @property
    def forked(self) -> bool:
        """Whether this is the child of the process whose thread it was: threads do not come along."""
        return os.getpid() != self._process

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartKeywords]) -> SyncRun[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[StartKeywords]) -> SyncRun[Any]: ...
    def start(self, workflow: Any, input: Any = None, *more: Any, **options: Any) -> SyncRun[Any]:
        """Start a run; the options are those of ``app.start``."""
        started = self._untyped.start(workflow, input, *more, **options)
        return SyncRun(self.call(started, options.get("connection")), self)

    @property
    def _untyped(self) -> Any:
        """The application, which takes, and refuses, what no type checker lets through."""
        return self._app

    @overload
    def start_many(
        self, workflow: Workflow[I, O], inputs: Sequence[I], **options: Unpack[StartManyKeywords]
    ) -> list[SyncRun[O]]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Sequence[Any], **options: Unpack[StartManyKeywords]
    ) -> list[SyncRun[Any]]: ...
    def start_many(self, workflow: Any, inputs: Sequence[Any], *more: Any, **options: Any) -> list[SyncRun[Any]]:
        """Start many runs, all or none."""
        started = self._untyped.start_many(workflow, inputs, *more, **options)
        runs = self.call(started, options.get("connection"))
        return [SyncRun(run, self) for run in runs]

    def get(self, run_id: str) -> SyncRun[Any]:
        """A handle for a run, without a query."""
        return SyncRun(self._app.get(run_id), self)

    @overload
    def find(self, workflow: Workflow[I, O], *, key: str) -> SyncRun[O]: ...
    @overload
    def find(self, workflow: str, *, key: str) -> SyncRun[Any]: ...
    def find(self, workflow: Workflow[Any, Any] | str, *, key: str) -> SyncRun[Any]:
        """The run of a workflow that was started with a key."""
        return SyncRun(self.call(self._app.find(workflow, key=key)), self)

    def signal(self, run_id: str, name: str, value: Any = None, *, connection: Any = None) -> None:
        """Send a signal to a run."""
        self.call(self._app.signal(run_id, name, value, connection=connection), connection)

    def runs(self, **filters: Unpack[ListKeywords]) -> list[RunInfo]:
        """A page of runs; the filters are those of ``app.runs``."""
        return self.call(self._app.runs(**filters))

    def queues(self) -> list[QueueInfo]:
        """Every queue as it stands."""
        return self.call(self._app.queues())

    def stats(self, since: Seconds = 3600) -> Stats:
        """What has happened within a span of time."""
        return self.call(self._app.stats(since))

    def pause_queue(self, name: str) -> None:
        """Hold a queue: no run of it is claimed from now on."""
        self.call(self._app.pause_queue(name))

    def resume_queue(self, name: str) -> None:
        """Let a paused queue go on."""
        self.call(self._app.resume_queue(name))

    def set_limits(self, name: str, *, reset: bool = False, **limits: Unpack[LimitKeywords]) -> None:
        """Set limits of a queue, or let what the code declares hold again."""
        self.call(self._app.set_limits(name, reset=reset, **limits))

    def put_schedule(
        self, name: str, workflow: Workflow[Any, Any] | str, **given: Unpack[ScheduleKeywords]
    ) -> ScheduleInfo:
        """Make a schedule at run time, or change it; the options are those of ``app.put_schedule``."""
        return self.call(self._app.put_schedule(name, workflow, **given))

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its runs stay."""
        self.call(self._app.delete_schedule(name))

    def schedules(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        return self.call(self._app.schedules())

    def pause_schedule(self, name: str) -> None:
        """Hold a schedule until it is resumed."""
        self.call(self._app.pause_schedule(name))

    def resume_schedule(self, name: str) -> None:
        """Let a schedule go on with its next tick."""
        self.call(self._app.resume_schedule(name))

    def trigger(self, name: str) -> SyncRun[Any]:
        """Start a run of a schedule now."""
        return SyncRun(self.call(self._app.trigger(name)), self)

    def backfill(
        self, name: str, since: datetime, until: datetime, *, progress: Callable[[int, int], None] | None = None
    ) -> list[SyncRun[Any]]:
        """Start a run for each tick of a schedule in a span. ``progress`` is called in the thread of ``app.sync``."""
        return [SyncRun(run, self) for run in self.call(self._app.backfill(name, since, until, progress=progress))]

    def prune(self, older_than: Seconds, **options: Unpack[PruneKeywords]) -> int:
        """Remove runs that ended longer ago than this; the options are those of ``app.prune``."""
        return self.call(self._app.prune(older_than, **options))

    def check(self, **options: Unpack[CheckKeywords]) -> list[CheckedRun]:
        """Which unfinished runs this code does not fit; the options are those of ``app.check``."""
        return self.call(self._app.check(**options))

    def replay(self, exported: Any, *, timeout: Seconds = 10.0) -> CheckedRun:
        """Replay an exported run against this code, for at most so many seconds; see ``app.replay``."""
        return self.call(self._app.replay(exported, timeout=timeout))

    def migrate(self) -> list[str]:
        """Make or update the tables."""
        return self.call(self._app.migrate())

    def drain(self, queues: Sequence[str] | None = None, concurrency: int | None = None) -> None:
        """Work until nothing is runnable."""
        self.call(self._app.drain(queues, concurrency))

    def close(self) -> None:
        """Disconnect, and end the thread. Threads that wait for an answer are told that the application was closed."""
        with self._app._sync_lock:
            if self._app._sync is self:
                self._app._sync = None
        if not self.forked:
            self._tell_to_stop()
            self._ended.result()
            self._thread.join()

    async def stopped(self) -> None:
        """Wait in an event loop until the thread has ended. If cancelled, the thread still ends."""
        if not self.forked:
            self._tell_to_stop()
            await asyncio.wrap_future(self._ended)
            self._thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T], connection: Any = None) -> T:
        """Wait for a coroutine that runs in the thread; an interruption cancels it. Statements on a connection of the
        caller are executed here."""
        if self.forked:
            return self._app.sync.call(coroutine, connection)
        if asyncio._get_running_loop() is not None:
            said = awaited(coroutine)
            coroutine.close()
            raise ContextMisuse(
                f"app.sync was called in a running event loop, which it would block: write `await {said}` here, or "
                "call app.sync in a thread"
            )
        with self._lock:
            if self._over:
                coroutine.close()
                raise AppClosed
            here = None if connection is None else CallersThread()
            with contextlib.nullcontext() if here is None else here.known():
                future = asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)
        try:
            return future.result() if here is None else here.work_until(future)
        except concurrent.futures.CancelledError:
            coroutine.close()  # it may not have begun
            if self._over:
                raise AppClosed from None
            raise
        except BaseException:
            future.cancel()  # Ctrl+C; what the call itself has raised is not moved by it
            raise

    def _tell_to_stop(self) -> None:
        with self._lock:
            if not self._over:
                self._over = True
                self._loop.call_soon_threadsafe(self._stop.set)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # ends here: a thread is not cancelled
            if not self._started.done():
                self._started.set_exception(error)  # there was no room for one more event loop
        finally:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        calls = list(self._calls)
        for call in calls:  # before the connections go: a worker among them has something to give back
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._app._connections.close()

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)


def awaited(coroutine: Coroutine[Any, Any, Any]) -> str:
    """A call as async code writes it: ``app.start(…)``, ``run.result(…)``."""
    owner, _, name = getattr(coroutine, "__qualname__", "").rpartition(".")
    return f"{'run' if owner.endswith('Run') else 'app'}.{name}(…)"


def _promise() -> concurrent.futures.Future[Any]:
    """Make a future that a thread will fulfil, and that waits cannot cancel."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    return future


class SyncRun(Generic[C]):
    """The handle of a run for code without an event loop."""

    def __init__(self, run: Run[C], app: SyncApp) -> None:
        self._run = run
        self._app = app

    def __repr__(self) -> str:
        return repr(self._run)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    def status(self) -> str:
        """Where the run stands."""
        return self._app.call(self._run.status())

    def info(self) -> RunInfo:
        """Everything about the run but its steps."""
        return self._app.call(self._run.info())

    def result(self, timeout: float | timedelta | None = None) -> C:
        """Wait for the end of the run, and give its result."""
        return self._app.call(self._run.result(timeout))

    def steps(self) -> list[StepInfo]:
        """The steps of the run, recorded or under way."""
        return self._app.call(self._run.steps())

    def activity(self) -> list[Activity]:
        """The log of every call."""
        return self._app.call(self._run.activity())

    def export(self) -> dict[str, Any]:
        """The run with all its records, for a file of JSON."""
        return self._app.call(self._run.export())

    def get(self, key: str, default: Any = None) -> Any:
        """A value that the run has set."""
        return self._app.call(self._run.get(key, default))

    def values(self) -> dict[str, Any]:
        """Everything that the run has set."""
        return self._app.call(self._run.values())

    def signal(self, name: str, value: Any = None, *, connection: Any = None) -> None:
        """Send a signal to the run."""
        self._app.call(self._run.signal(name, value, connection=connection), connection)

    def cancel(self) -> None:
        """Cancel the run, as ``Run.cancel`` does."""
        self._app.call(self._run.cancel())

    def pause(self) -> None:
        """Pause the run until it is resumed."""
        self._app.call(self._run.pause())

    def resume(self) -> None:
        """Let the run go on after a pause."""
        self._app.call(self._run.resume())

    def reschedule(
        self, *, delay: Seconds | None = None, at: datetime | None = None, priority: int | None = None
    ) -> None:
        """Move the time at which the run is due, or its priority, as ``Run.reschedule`` does."""
        self._app.call(self._run.reschedule(delay=delay, at=at, priority=priority))

    def retry(self, *, from_start: bool = False) -> SyncRun[C]:
        """Queue the run again, or start a new one like it."""
        return SyncRun(self._app.call(self._run.retry(from_start=from_start)), self._app)

    def delete(self) -> None:
        """Remove the run, which has ended, with all that belongs to it."""
        self._app.call(self._run.delete())
