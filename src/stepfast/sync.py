"""The application for code without an event loop: a thread runs one, and each call waits for its answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from .app import Stepfast
from .caller_thread import CallersThread
from .engine.options import StartKeywords, StartManyKeywords, WorkerKeywords, shows_options
from .engine.workflow import Workflow
from .errors import AppClosed, ContextMisuse
from .info import StepInfo
from .model.names import refuse_unknown
from .run import Run
from .streams import LogLine, StreamItem
from .worker import Worker

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")
C = TypeVar("C", covariant=True)
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[Stepfast, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncApp, P], T]:
    """Make the blocking form of a method of the application."""

    @functools.wraps(method)
    def call(self: SyncApp, /, *args: P.args, **options: P.kwargs) -> T:
        return self.call(method(self._app, *args, **options), options.get("connection"))

    return call


@shows_options
class SyncApp:
    """``app.sync``: the methods of the application, with the same arguments, for code without an event loop."""

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

    signal = _blocking(Stepfast.signal)
    complete = _blocking(Stepfast.complete)
    fail = _blocking(Stepfast.fail)
    beat = _blocking(Stepfast.beat)
    signal_many = _blocking(Stepfast.signal_many)
    publish = _blocking(Stepfast.publish)
    events = _blocking(Stepfast.events)
    runs = _blocking(Stepfast.runs)
    count = _blocking(Stepfast.count)
    bulk = _blocking(Stepfast.bulk)
    queues = _blocking(Stepfast.queues)
    stats = _blocking(Stepfast.stats)
    pause_queue = _blocking(Stepfast.pause_queue)
    resume_queue = _blocking(Stepfast.resume_queue)
    set_limits = _blocking(Stepfast.set_limits)
    put_schedule = _blocking(Stepfast.put_schedule)
    delete_schedule = _blocking(Stepfast.delete_schedule)
    schedules = _blocking(Stepfast.schedules)
    pause_schedule = _blocking(Stepfast.pause_schedule)
    resume_schedule = _blocking(Stepfast.resume_schedule)
    prune = _blocking(Stepfast.prune)
    check = _blocking(Stepfast.check)
    replay = _blocking(Stepfast.replay)
    migrate = _blocking(Stepfast.migrate)
    drain = _blocking(Stepfast.drain)

    def trigger(self, name: str) -> SyncRun[Any]:
        """Start a run of a schedule now."""
        return SyncRun(self.call(self._app.trigger(name)), self)

    def backfill(
        self, name: str, since: datetime, until: datetime, *, progress: Callable[[int, int], None] | None = None
    ) -> list[SyncRun[Any]]:
        """Start a run for each tick of a schedule in a span. ``progress`` is called in the thread of ``app.sync``."""
        return [SyncRun(run, self) for run in self.call(self._app.backfill(name, since, until, progress=progress))]

    @contextlib.contextmanager
    def worker(self, queues: Sequence[str] | None = None, **options: Unpack[WorkerKeywords]) -> Iterator[Worker]:
        """A worker in the thread of ``app.sync``, for as long as the ``with`` lasts; the options are those of
        ``app.worker``. WorkerBroken at the end of the block, if the worker broke."""
        refuse_unknown("app.sync.worker", options, WorkerKeywords.__annotations__)
        worker = self.call(self._app._make_worker(queues, **options))
        self.call(worker.start())
        try:
            yield worker
        finally:
            if not self._over:  # closing has stopped it
                self.call(worker.stop())
        if worker.broken.is_set():
            raise worker.breakage()

    def __enter__(self) -> SyncApp:
        self.call(self._connected())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _connected(self) -> None:
        await self._app._connect()

    def close(self) -> None:
        """Disconnect, and end the thread. Pending calls raise `AppClosed`."""
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


def _of_run(method: Callable[Concatenate[Run[Any], P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the blocking form of a method of a run."""

    @functools.wraps(method)
    def call(self: SyncRun[Any], /, *args: P.args, **options: P.kwargs) -> T:
        return self._app.call(method(self._run, *args, **options), options.get("connection"))

    return call


class SyncRun(Generic[C]):
    """The handle of a run for code without an event loop: the methods of `Run`, with the same arguments."""

    def __init__(self, run: Run[C], app: SyncApp) -> None:
        self._run = run
        self._app = app

    def __repr__(self) -> str:
        return repr(self._run)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def existed(self) -> bool:
        """Whether the start that gave this handle found the run there."""
        return self._run.existed

    @property
    def this(self) -> SyncRun[C]:
        """A handle that reads this run alone; see ``Run.this``."""
        return SyncRun(self._run.this, self._app)

    status = _of_run(Run.status)
    info = _of_run(Run.info)
    steps = _of_run(Run.steps)
    activity = _of_run(Run.activity)
    export = _of_run(Run.export)
    streams = _of_run(Run.streams)
    logs = _of_run(Run.logs)
    get = _of_run(Run.get)
    wait_value = _of_run(Run.wait_value)
    values = _of_run(Run.values)
    signal = _of_run(Run.signal)
    ask = _of_run(Run.ask)
    cancel = _of_run(Run.cancel)
    pause = _of_run(Run.pause)
    resume = _of_run(Run.resume)
    reschedule = _of_run(Run.reschedule)
    delete = _of_run(Run.delete)

    def result(self, timeout: float | timedelta | None = None) -> C:
        """Wait for the end of the run, and return its result."""
        return self._app.call(self._run.result(timeout))

    def retry(self, *, from_start: bool = False) -> SyncRun[C]:
        """Queue the run again, or start a new one like it."""
        return SyncRun(self._app.call(self._run.retry(from_start=from_start)), self._app)

    def fork(self, *, before: str | int | StepInfo, input: Any = None) -> SyncRun[C]:
        """Start a new run with the records of this one up to a step."""
        return SyncRun(self._app.call(self._run.fork(before=before, input=input)), self._app)

    def rewind(self, *, before: str | int | StepInfo) -> SyncRun[C]:
        """Execute the run again from a step on."""
        return SyncRun(self._app.call(self._run.rewind(before=before)), self._app)

    def stream(
        self, name: str, *, after: str | None = None, type: Any = Any, timeout: float | timedelta | None = None
    ) -> Iterator[StreamItem[Any]]:
        """The items of a stream, while the run works and after: ``for item in run.stream("tokens")``."""
        return self._followed(self._run.stream(name, after=after, type=type, timeout=timeout))

    def follow_logs(self, *, timeout: float | timedelta | None = None) -> Iterator[LogLine]:
        """What the code of the run logs, while it works: ``for line in run.follow_logs()``."""
        return self._followed(self._run.follow_logs(timeout=timeout))

    def _followed(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        end: Any = object()

        async def following() -> T:
            return await anext(items, end)

        try:
            while (item := self._app.call(following())) is not end:
                yield item
        finally:
            self._app.call(items.aclose())
