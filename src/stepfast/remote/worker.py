"""``RemoteWorker``: serves the steps of one group, for any engine that speaks the contract, in a process of its own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from ..engine.function_spec import input_type, is_async, name_of, positional, source_line
from ..engine.observers import tell_each
from ..engine.step import being_cancelled, cancelled_by_code, under_step
from ..errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    InvalidState,
    PayloadError,
    StepfastError,
    WorkerBroken,
    sentence,
)
from ..model.names import nearest
from ..model.payload import Payloads, check_type
from ..model.urls import redact
from ..settings import FORMAT, Settings
from ..worker.db_retry import dutifully
from ..worker.shutdown import bounded, ended, run_until_signal, to_the_end
from ..worker.threads import REAL, Clockwork
from .protocol import (
    COMPLETED,
    DEFAULT_PREFIX,
    FAILED,
    LONGEST,
    SQS,
    ClaimedTask,
    RemoteTask,
    TaskOutcome,
    check_group,
    check_step_name,
    error_text,
    ids_of_step,
    no_handler,
    refusal,
)
from .task_store import Key, Recorder, Serving, TaskSource, located, open_database, sqs_location

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Handler(NamedTuple):
    """A function, and how it is called."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes_task: bool
    input_type: Any


def declared(name: str, function: Callable[..., Any]) -> Handler:
    """A handler, refused now if it could never be called."""
    what = f"the handler of {name!r}"
    if not callable(function):
        raise ConfigurationError(f"{what} must be a function, not {type(function).__name__}")
    function = under_step(function, "remote handler")
    parameters = positional(function)
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not parameters or len(needed) > 2:
        raise ConfigurationError(
            f"{what}, {name_of(function)!r} ({source_line(function)}), must take the input, and may take the task "
            "as a second parameter"
        )
    type_ = input_type(function, parameters[0], None)
    try:
        check_type(type_, f"the input of {what}")
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from None
    # A second parameter with a default is the task only if it is named so.
    takes_task = len(needed) == 2 or (len(parameters) > 1 and parameters[1].name == "task")
    return Handler(name, function, is_async(function), takes_task, type_)


class Performer:
    """Calls handlers, and returns every outcome, also errors, as a `TaskOutcome`."""

    def __init__(self, handlers: dict[str, Handler], payloads: Payloads, in_thread: InThread) -> None:
        self._handlers = handlers
        self._payloads = payloads
        self._in_thread = in_thread

    async def perform(self, task: ClaimedTask, started_at: int, given_up: Callable[[], bool]) -> TaskOutcome:
        """The outcome. A cancellation comes through only if the worker has given the task up; one that the code made is
        an error of the code, and an outcome, too."""
        handler = self._handlers.get(task.name)
        if handler is None:
            return _failed(task, no_handler(task.name), started_at)
        try:
            value = self._payloads.decode(
                "null" if task.input is None else task.input, handler.input_type, FORMAT, f"the input of {task.name!r}"
            )
        except Exception as error:
            return _failed(task, refusal(_said(error)), started_at)
        try:
            output = await self._call(handler, task, value)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                if given_up():
                    raise
                error = cancelled_by_code(error, f"the handler of {task.name!r}") if being_cancelled() else error
            return _failed(task, error_text(error), started_at)
        try:
            text = self._payloads.encode(output, f"the output of {task.name!r}")
        except Exception as error:
            return _failed(task, refusal(_said(error)), started_at)
        return TaskOutcome(task.step_id, task.attempt, COMPLETED, text, None, started_at)

    async def _call(self, handler: Handler, task: ClaimedTask, value: Any) -> Any:
        arguments = [value]
        if handler.takes_task:
            arguments.append(RemoteTask(task.step_id, task.run_id, task.name, task.attempt))
        if handler.is_async:
            return await handler.function(*arguments)
        variables = contextvars.copy_context()
        output = await self._in_thread(lambda: variables.run(handler.function, *arguments))
        return await output if inspect.isawaitable(output) else output


def _failed(task: ClaimedTask, error: str, started_at: int) -> TaskOutcome:
    return TaskOutcome(task.step_id, task.attempt, FAILED, None, error, started_at)


def _said(error: Exception) -> str:
    """Describe the error of a value; with its class, unless it is an error of this library."""
    return str(error) if isinstance(error, PayloadError) else sentence(error)


_CLAIM_ENDS = 5.0
"""Seconds for a claim that is under way when the worker stops, so that its tasks can be given back."""
_LAST_RESULTS = 5.0
"""Seconds for results that are still to be written when the worker stops."""
_GIVE_BACK = 3.0
"""Seconds for giving back what was not finished."""


class Options(NamedTuple):
    """How a worker works; times in seconds."""

    poll_interval: float
    lease: float
    batch: int
    concurrency: int
    shutdown_grace: float
    clock: Clockwork = REAL
    """Where its time, threads and chance come from. A test may give it another."""


class Shift:
    """The tasks and services of a worker between start and stop."""

    def __init__(
        self,
        id_: str,
        serving: TaskSource,
        options: Options,
        handlers: dict[str, Handler],
        settings: Settings,
        logger: logging.Logger,
    ) -> None:
        self.id = id_
        self._options = options
        self._settings = settings
        self._logger = logger
        clock = self._clock = options.clock
        self._threads = clock.pool("remote")
        self._performer = Performer(handlers, Payloads(settings, None, logger), self._threads.submit)
        self._serving = serving
        self._freed = asyncio.Event()
        self._recorder = Recorder(self._serving, settings, logger, clock, self._freed.set)
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._cut_off = False
        """Whether handlers are waited for no longer."""
        self._claim_lost = False
        """Whether the answer to a claim was lost: tasks may be claimed that this worker does not know of."""
        self.broken = asyncio.Event()
        """Set if a service ended by an error, which is a bug."""
        self.cause: tuple[str, BaseException] | None = None
        self._services: dict[str, asyncio.Task[None]] = {}

    # -- life ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the three services."""
        services = {"claiming": self._claim(), "holding": self._hold(), "recording": self._recorder.run()}
        for name, service in services.items():
            self._begin_service(name, service)

    def _begin_service(self, name: str, service: Coroutine[Any, Any, None]) -> None:
        task = self._services[name] = asyncio.create_task(service, name=f"stepfast-remote-{name}")
        task.add_done_callback(lambda done: self._service_ended(name, done))

    def _service_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._logger.critical("the service %s of a remote worker ended by an error", name, exc_info=error)
        self.cause = self.cause or (name, error)
        self.broken.set()

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._running)

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._hurried.set()

    async def end(self, grace: float) -> None:
        """Stop claiming, let handlers finish, record their outcomes, give back the other tasks."""
        self._stopping.set()
        clock = self._clock
        if not self._serving.long_polls:
            await clock.wait((self._services["claiming"],), _CLAIM_ENDS)
        await ended((self._services["claiming"],), clock)
        await self._wait_for_handlers(grace)
        left, self._cut_off = list(self._running), True
        await ended(list(self._running.values()), clock)
        if not await self._wait_for(self._recorder.emptied, _LAST_RESULTS):
            lost = [ids_of_step(step_id) for step_id, _ in self._recorder.unrecorded]
            tell_each(self._logger, "the result could not be recorded", lost)
        if left:
            await bounded(self._serving.give_back(left), _GIVE_BACK, "giving remote tasks back", self._logger, clock)
        await ended(list(self._services.values()), clock)
        self._threads.close()

    async def _wait_for_handlers(self, grace: float) -> None:
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            async with self._clock.timeout(grace):
                while self._running and not hurried.done():
                    await asyncio.wait((hurried, *self._running.values()), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            hurried.cancel()

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> bool:
        try:
            async with self._clock.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True

    # -- claiming --------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        while not self._stopping.is_set():
            room = self._room()
            if not room:
                self._freed.clear()
                await self._either(self._freed, None)
                continue
            wanted = min(room, self._options.batch)
            tasks = await self._ask(wanted)
            for task in tasks:
                self._accept(task)
            if len(tasks) < wanted and not self._serving.long_polls:
                pause = self._settings.min_poll_interval if tasks else self._options.poll_interval
                await self._either(None, pause * self._clock.random.uniform(0.8, 1))

    def _room(self) -> int:
        """Free slots; none while results pile up that the database does not take in time."""
        behind = len(self._recorder.unrecorded) >= 2 * max(self._options.concurrency, self._options.batch)
        return 0 if behind else self._options.concurrency - len(self._running)

    async def _ask(self, wanted: int) -> list[ClaimedTask]:
        try:
            return await dutifully(
                lambda: self._claim_once(wanted),
                "claiming remote tasks",
                self._logger,
                self._clock,
                self._settings.outage_backoff_max,
                self._stopping.is_set,
            )
        except StepfastError:
            if not self._stopping.is_set():
                raise
            return []

    async def _claim_once(self, wanted: int) -> list[ClaimedTask]:
        if self._claim_lost:
            await self._serving.give_back_unknown(self._keys())
            self._claim_lost = False
        try:
            return await self._serving.claim(wanted)
        except DatabaseUnavailable:
            self._claim_lost = True
            raise

    def _accept(self, task: ClaimedTask) -> None:
        """Start a task, unless it is running here already: then its lease had expired, and it was claimed again."""
        if task.key not in self._running and task.key not in self._recorder.unrecorded:
            self._running[task.key] = self._clock.task(self._perform(task))

    async def _perform(self, task: ClaimedTask) -> None:
        began = self._clock.now()
        try:
            # Only the database's clock is told to others.
            started_at = task.now + int((self._clock.now() - began) * 1000)
            outcome = await self._performer.perform(task, started_at, lambda: not self._is_wanted(task))
            if self._is_ours(task):
                self._recorder.add(outcome)
        finally:
            if self._is_ours(task):
                del self._running[task.key]
            self._freed.set()

    def _is_wanted(self, task: ClaimedTask) -> bool:
        """Whether the worker will record the outcome of the task, so that a cancellation comes from its code."""
        return self._is_ours(task) and not self._cut_off and not self._services["recording"].cancelling()

    def _is_ours(self, task: ClaimedTask) -> bool:
        """Whether the running coroutine is still that of the task: a handler may ignore that its task was lost."""
        return self._running.get(task.key) is asyncio.current_task()

    async def _either(self, event: asyncio.Event | None, seconds: float | None) -> None:
        """Wait for an event, a time or the stop of the worker."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._stopping, event) if one is not None]
        try:
            if seconds is None:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            else:
                await self._clock.wait(waits, seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # -- holding ---------------------------------------------------------------------------------------------------

    def _keys(self) -> list[Key]:
        return [*self._running, *self._recorder.unrecorded]

    async def _hold(self) -> None:
        while True:
            await self._clock.sleep(self._options.lease / 3)
            keys = self._keys()
            if not keys:
                continue
            held = await dutifully(
                lambda keys=keys: self._serving.renew(keys),  # type: ignore[misc]
                "holding remote tasks",
                self._logger,
                self._clock,
                self._settings.outage_backoff_max,
            )
            for key in set(keys) - held:
                self._lose(key)

    def _lose(self, key: Key) -> None:
        """Cancel a handler whose step was cancelled, or whose task another worker has."""
        task = self._running.pop(key, None)
        if task is not None:
            message = "the task of step %s, attempt %d, is not this worker's any more; its handler is cancelled"
            self._logger.warning(message, *key, extra=ids_of_step(key[0]))
            task.cancel()
            self._freed.set()


Function = TypeVar("Function", bound=Callable[..., Any])


class RemoteWorker:
    """Serves remote steps: ``RemoteWorker(url, group="pipeline.extract")``, handlers by ``@worker.handle("…")``, then
    ``await worker.run()`` or ``stepfast remote-worker module:worker``.

    ``url`` names a Postgres (``postgresql://…``), a MariaDB or MySQL (``mysql://…``), or queues of Amazon SQS
    (``sqs://region``, with ``queue_urls`` for those that exist already); without one, ``STEPFAST_URL`` does. ``pool``
    is a pool of asyncpg's or asyncmy's in its place, which stays the application's. ``create=False`` leaves the tables
    or queues to another process. ``poll_interval``, ``lease`` and ``shutdown_grace`` are seconds: how often an
    idle worker polls, after which time the tasks of a silent worker are taken by others, and how long a stop waits for
    handlers. ``batch`` is how many tasks one claim takes at most, ``concurrency`` how many handlers run at once.
    """

    def __init__(
        self,
        url: str | None = None,
        group: str = "",
        prefix: str = DEFAULT_PREFIX,
        *,
        pool: Any = None,
        queue_urls: Mapping[str, str] | None = None,
        create: bool = True,
        poll_interval: float | None = None,
        lease: float | None = None,
        batch: int | None = None,
        concurrency: int | None = None,
        shutdown_grace: float | None = None,
        settings: Settings | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.group = check_group(group)
        self._settings = Settings.from_environment() if settings is None else settings
        self._location = located(_named(url, pool), pool, prefix, queue_urls)
        self._create = create
        self._given = {
            "poll_interval": poll_interval,
            "lease": lease,
            "batch": batch,
            "concurrency": concurrency,
            "shutdown_grace": shutdown_grace,
        }
        self._options = self._chosen()
        self._logger = logging.getLogger("stepfast.remote") if logger is None else logger
        self._handlers: dict[str, Handler] = {}
        self._tasks: TaskSource | None = None
        self._shift: Shift | None = None
        self._cause: tuple[str, BaseException] | None = None
        self.broken = asyncio.Event()
        """Set if the worker ended by itself, which is a bug."""
        self.left = asyncio.Event()
        """Set when it has been stopped."""

    def handle(self, name: str) -> Callable[[Function], Function]:
        """Serve the steps of this name with the function below: ``async def`` or plain ``def``, which runs in a thread.
        It is given the input, and, if it takes a second parameter, the task."""
        check_step_name(name)

        def register(function: Function) -> Function:
            if name in self._handlers:
                raise ConfigurationError(f"this worker has a handler of {name!r} already")
            self._handlers[name] = declared(name, function)
            return function

        return register

    async def run(self) -> None:
        """Work until SIGTERM or Ctrl+C. A second signal does not wait for handlers."""
        await run_until_signal(self)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, make the tables unless ``create=False``, and begin to claim."""
        if self._shift is not None:
            raise InvalidState(f"the remote worker of group {self.group!r} works already")
        if not self._handlers:
            self._logger.warning("group %r: this worker has no handlers, and will fail every step", self.group)
        self.broken, self.left = asyncio.Event(), asyncio.Event()  # of the event loop that works with us now
        id_ = f"stepfast-{socket.gethostname()}-{os.getpid()}-{self._options.clock.new_id()[-8:]}"[-LONGEST:]
        source = self._source(id_)
        await source.open()
        self._tasks = source
        shift = Shift(id_, source, self._options, self._handlers, self._settings, self._logger)
        shift.broken = self.broken
        self._shift = shift
        shift.begin()
        self._logger.info("remote worker %s serves group %r in %s", shift.id, self.group, self._where())

    def _source(self, id_: str) -> TaskSource:
        """Where its tasks come from."""
        if self._location.dialect != SQS:
            database = open_database(self._location, self._settings)
            return Serving(database, id_, self.group, self._options.lease, create=self._create)
        from .sqs import TaskQueue

        where, clock = sqs_location(self._location), self._options.clock
        return TaskQueue(where, self.group, self._options.lease, clock, self._logger, create=self._create)

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, wait for handlers, give back the other tasks, disconnect. A cancellation is raised
        afterwards."""
        patience = self._options.shutdown_grace if grace is None else grace
        await to_the_end(lambda: self._leave(patience))

    async def _leave(self, grace: float) -> None:
        shift, source = self._shift, self._tasks
        if shift is not None:
            await shift.end(grace)
            self._cause, self._shift = shift.cause, None
        if source is not None:
            await source.close()
            self._tasks = None
        self.left.set()

    async def __aenter__(self) -> RemoteWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self.broken.is_set():
            raise self.breakage()

    # -- what is told of it ----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many handlers run."""
        return 0 if self._shift is None else self._shift.running

    @property
    def shutdown_grace(self) -> float:
        """Seconds that a stop waits for handlers."""
        return self._options.shutdown_grace

    @property
    def handlers(self) -> list[str]:
        """The names that have a handler here."""
        return sorted(self._handlers)

    def hurry(self) -> None:
        """Let a stop wait for handlers no longer."""
        if self._shift is not None:
            self._shift.hurry()

    def breakage(self) -> WorkerBroken:
        """Return the error of a worker that ended by itself."""
        duty, error = self._cause or ("a service", None)
        broken = WorkerBroken(f"of group {self.group!r}", duty, "" if error is None else sentence(error), "tasks")
        broken.__cause__ = error
        return broken

    def redirect(self, url: str | None = None, **options: Any) -> None:
        """Replace the database and options, as by those of the command line."""
        if url is not None:
            self._location = located(url, None, self._location.prefix, self._location.queue_urls)
        self._given |= {name: value for name, value in options.items() if value is not None}
        self._options = self._chosen()

    def _chosen(self) -> Options:
        """What was given, and the settings for the rest; a queue hides a task for a minute, as peers have it."""
        if self._location.dialect != SQS:
            return _options(self._settings, self._given)
        from .sqs.task_queue import checked_lease

        return _options(self._settings, self._given | {"lease": checked_lease(self._given["lease"])})

    def _where(self) -> str:
        url = self._location.url
        return "a pool of the application's" if url is None else redact(url.text)


def _named(url: str | None, pool: Any) -> str | None:
    if url is not None or pool is not None:
        return url
    url = os.environ.get("STEPFAST_URL")
    if not url:
        raise ConfigurationError("a remote worker needs a database: give its URL, pool=, or set STEPFAST_URL")
    return url


def _options(settings: Settings, given: dict[str, Any]) -> Options:
    found: dict[str, Any] = {
        "poll_interval": settings.remote_poll,
        "lease": settings.lease,
        "batch": settings.remote_batch,
        "concurrency": settings.remote_concurrency,
        "shutdown_grace": settings.shutdown_grace,
    }
    for name in given:
        if name not in found:
            raise TypeError(f"a remote worker has no option {name!r}{nearest(name, found)}")
    found |= {name: value for name, value in given.items() if value is not None}
    for name in ("batch", "concurrency"):
        if not isinstance(found[name], int) or isinstance(found[name], bool) or found[name] < 1:
            raise ConfigurationError(f"remote worker: {name} must be a whole number of at least 1, not {found[name]!r}")
    for name, least in (("poll_interval", 0.001), ("lease", 0.1), ("shutdown_grace", 0.0)):
        if not isinstance(found[name], (int, float)) or not least <= found[name] < float("inf"):
            raise ConfigurationError(f"remote worker: {name} must be at least {least:g} seconds, not {found[name]!r}")
    return Options(**found)
