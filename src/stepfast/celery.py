"""The face of Celery for applications that move: change the imports first, and the code later.

Each task is a workflow of one step, so that it may be retried, may start others and is recorded. Chains, chords and
nested groups are runs of one workflow that calls their tasks as children. Neither Celery nor Kombu is needed.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import dataclasses
import functools
import importlib
import inspect
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

from . import (
    ConfigurationError,
    Context,
    NonRetryableError,
    RetryLater,
    RunCancelled,
    RunFailed,
    RunInfo,
    StepFailed,
    Stepfast,
    StepfastError,
    SyncContext,
)

__all__ = [
    "AsyncResult", "Celery", "GroupResult", "MaxRetriesExceededError", "Retry", "Signature", "Task", "TaskRevokedError",
    "chain", "chord", "group", "shared_task",
]  # fmt: skip

T = TypeVar("T")

_ABSENT = {
    "Ignore": "return from the task instead",
    "Reject": "raise stepfast.RetryLater to be tried again, or an error to fail",
    "chunks": "make lists of the items, and a group of tasks with one list each",
    "crontab": "use app.schedule of the Stepfast application, with cron=",
    "signals": "use Stepfast(observers=[…])",
}
"""Names of Celery that have no counterpart here, and what to do instead."""

_ABSENT_OF_APP = {
    "conf": "pass Settings to Stepfast(settings=…), and options to the tasks",
    "config_from_object": "pass Settings to Stepfast(settings=…), and options to the tasks",
    "control": "use AsyncResult(id).revoke(), and the calls of the Stepfast application",
    "on_after_configure": "declare schedules by app.schedule of the Stepfast application",
    "worker_main": "start a worker by `stepfast worker module:app`, with the Stepfast application",
}

STATES = {
    "queued": "PENDING", "waiting": "STARTED", "running": "STARTED", "paused": "PENDING", "compensating": "STARTED",
    "completed": "SUCCESS", "failed": "FAILURE", "compensated": "FAILURE", "cancelled": "REVOKED",
}  # fmt: skip
"""Status of a run → state of a task."""


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise AttributeError(f"stepfast.celery has no {name}: {_ABSENT[name]}")
    raise AttributeError(f"module 'stepfast.celery' has no attribute {name!r}")


class Retry(Exception):
    """Raised by ``Task.retry``: this try ends, and another one follows."""

    def __init__(self, delay: float, cause: BaseException | None = None) -> None:
        super().__init__(f"retry in {delay:g} s" + ("" if cause is None else f": {cause}"))
        self.delay = delay
        self.cause = cause


class MaxRetriesExceededError(Exception):
    """A task has no retries left, and gave no error of its own."""


class TaskRevokedError(StepfastError):
    """The task was revoked before it had a result."""


class TaskKeywords(TypedDict, total=False):
    """The options of a task."""

    name: str | None
    bind: bool
    """Whether the function gets the task as its first argument."""
    max_retries: int | None
    """None: without a bound."""
    default_retry_delay: float
    autoretry_for: tuple[type[BaseException], ...]
    dont_autoretry_for: tuple[type[BaseException], ...]
    retry_backoff: bool | int
    retry_backoff_max: float
    retry_jitter: bool
    time_limit: float | timedelta | None
    queue: str | None
    priority: int
    expires: float | timedelta | datetime | None
    ignore_result: bool
    """Accepted: results are recorded in any case, and removed with the runs."""
    acks_late: bool
    """Accepted: a task whose worker dies is always taken over."""
    track_started: bool
    serializer: str


class SendKeywords(TypedDict, total=False):
    """The options of ``apply_async`` and of a signature."""

    countdown: float | timedelta | None
    eta: datetime | None
    expires: float | timedelta | datetime | None
    priority: int
    queue: str | None
    time_limit: float | timedelta | None
    ignore_result: bool
    connection: Any
    """A connection of the caller's, whose transaction the start joins."""


_UNBOUNDED = 2**31 - 1
_SEND_REMEDIES = {
    "task_id": "ids are made by Stepfast; for one run of a name, start the workflow with key=",
    "link": "use a chain",
    "link_error": "use Stepfast(observers=[…]), or a workflow that catches the error",
    "routing_key": "use queue=",
    "exchange": "use queue=",
    "soft_time_limit": "use time_limit=",
    "serializer": "arguments and results are JSON",
    "compression": "pass a codec to Stepfast(codec=…)",
}
_TASK_REMEDIES = {
    "base": "write what it does into the function, or observe runs by Stepfast(observers=[…])",
    "rate_limit": "use app.queue(name, rate=Rate(…)) of the Stepfast application",
    "soft_time_limit": "use time_limit=",
    "retry_kwargs": "use max_retries= and default_retry_delay=",
    "backend": "results are kept in the database of the Stepfast application",
}


def _refuse_options(what: str, given: Mapping[str, Any], known: Iterable[str], remedies: Mapping[str, str]) -> None:
    for name in given:
        if name not in known:
            remedy = remedies.get(name)
            raise ConfigurationError(f"{what} takes no {name}=" + (f": {remedy}" if remedy else ""))
    if given.get("serializer", "json") != "json":
        raise ConfigurationError(f"{what} takes no serializer {given['serializer']!r}: {_SEND_REMEDIES['serializer']}")


@dataclasses.dataclass(frozen=True)
class Request:
    """The call that a task is doing."""

    id: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    retries: int = 0
    called_directly: bool = True


_request: contextvars.ContextVar[Request | None] = contextvars.ContextVar("stepfast_celery_request", default=None)


class _Call(TypedDict):
    """The input of the run of a task."""

    args: list[Any]
    kwargs: dict[str, Any]


class Task:
    """A task. Calling it calls the function; ``delay`` and ``apply_async`` start a run of it."""

    def __init__(self, function: Callable[..., Any], options: TaskKeywords) -> None:
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"{function.__qualname__} is an async def, which Celery has no tasks of: declare it by app.task of the "
                "Stepfast application"
            )
        _refuse_options("a task", options, TaskKeywords.__annotations__, _TASK_REMEDIES)
        self.function = function
        self.name = options.get("name") or f"{function.__module__}.{function.__qualname__}"
        self.max_retries = options.get("max_retries", 3)
        self.default_retry_delay = options.get("default_retry_delay", 180.0)
        self.options = options
        self._app: Celery | None = None
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here: nothing is recorded."""
        return self.function(self, *args, **kwargs) if self.options.get("bind") else self.function(*args, **kwargs)

    run = __call__

    @property
    def app(self) -> Celery:
        """The application the task belongs to."""
        if self._app is None:
            raise ConfigurationError(
                f"the shared task {self.name!r} belongs to no application yet: make one, "
                "as in Celery('shop', stepfast=app)"
            )
        return self._app

    @property
    def request(self) -> Request:
        """What is known of the call that is being done."""
        return _request.get() or Request()

    # -- starting ----------------------------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Start it with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[SendKeywords]
    ) -> AsyncResult:
        """Start it, now or later; when this returns, the run is committed, or part of the transaction of
        ``connection=``."""
        return self.signature(args, kwargs, **options).apply_async()

    def signature(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[SendKeywords]
    ) -> Signature:
        """A call of it that is made later."""
        return Signature(self, args, kwargs, **options)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A call of it, which also takes the result of the task before it in a chain."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """A call of it with these arguments only."""
        return Signature(self, args, kwargs, immutable=True)

    # -- retrying ----------------------------------------------------------------------------------------------------

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        max_retries: int | None = None,
        throw: bool = True,
    ) -> Retry:
        """End this try, and have another: ``raise self.retry(countdown=5)``. Without retries left, raise ``exc``."""
        retries, bound = self.request.retries, self.max_retries if max_retries is None else max_retries
        if self.max_retries is not None and bound is not None and bound > self.max_retries:
            raise ConfigurationError(
                f"retry(max_retries={bound}) is more than the {self.max_retries} of the task {self.name!r}: "
                "declare it with the task"
            )
        if bound is not None and retries >= bound:
            raise exc or MaxRetriesExceededError(f"the task {self.name!r} has used its {bound} retries")
        delay = float(self.default_retry_delay if countdown is None else countdown)
        if eta is not None:
            delay = max(0.0, _seconds_until(eta))
        again = Retry(delay, exc)
        if throw:
            raise again
        return again

    def _autoretry(self, error: Exception) -> Retry | None:
        """The retry that the options ask for after an error, if they do."""
        options = self.options
        if not isinstance(error, options.get("autoretry_for", ())):
            return None
        if isinstance(error, options.get("dont_autoretry_for", ())):
            return None
        if self.max_retries is not None and self.request.retries >= self.max_retries:
            return None
        factor = options.get("retry_backoff", False)
        if not factor:
            return Retry(float(self.default_retry_delay), error)
        longest = min(int(options.get("retry_backoff_max", 600)), int(factor) * 2 ** min(self.request.retries, 60))
        return Retry(random.uniform(0, longest) if options.get("retry_jitter", True) else longest, error)

    # -- executing ---------------------------------------------------------------------------------------------------

    def _declare(self, app: Celery) -> None:
        """Register the task as a workflow of one step."""

        def execute(ctx: SyncContext, call: _Call) -> Any:
            request = Request(ctx.run_id, tuple(call["args"]), call["kwargs"], ctx.attempt - 1, called_directly=False)
            try:
                return ctx.options(record_arguments=False, retries=0).step(self.name, perform, request)
            except StepFailed as failed:
                if failed.delay is None:
                    raise _final(failed) from failed
                raise

        def perform(request: Request) -> Any:
            token = _request.set(request)
            try:
                return self(*request.args, **request.kwargs)
            except RetryLater:
                raise
            except Exception as error:
                again = error if isinstance(error, Retry) else self._autoretry(error)
                if again is None:
                    raise
                raise RetryLater(again.delay, str(again.cause or again)) from error
            finally:
                _request.reset(token)

        execute.__module__ = self.function.__module__
        app.stepfast.workflow(
            name=self.name,
            queue=self.options.get("queue"),
            max_attempts=_UNBOUNDED if self.max_retries is None else self.max_retries + 1,
            timeout=self.options.get("time_limit"),
        )(execute)
        self._app = app


def _final(failed: StepFailed) -> NonRetryableError:
    """The error of a task under its own name, as one that ends the run: Celery retries a task only when asked to."""
    kind = type(failed.error_type.rpartition(".")[2], (NonRetryableError,), {"__module__": "builtins"})
    final: NonRetryableError = kind(failed.message)
    return final


def _seconds_until(when: datetime) -> float:
    if when.tzinfo is None:
        raise ConfigurationError(f"a time needs a time zone, and {when.isoformat()} has none")
    return (when - datetime.now(UTC)).total_seconds()


def _start_options(options: SendKeywords) -> dict[str, Any]:
    """The options of Celery as those of a start."""
    start: dict[str, Any] = {}
    countdown, eta, expires = options.get("countdown"), options.get("eta"), options.get("expires")
    if countdown is not None and eta is not None:
        raise ConfigurationError("apply_async takes either countdown= or eta=, not both")
    due = 0.0
    if countdown is not None:
        start["delay"] = countdown
        due = countdown.total_seconds() if isinstance(countdown, timedelta) else float(countdown)
    elif eta is not None:
        start["at"] = eta
        due = max(0.0, _seconds_until(eta))
    if expires is not None:
        if isinstance(expires, datetime):
            span = _seconds_until(expires)
        else:
            span = expires.total_seconds() if isinstance(expires, timedelta) else float(expires)
        if span <= due:
            raise ConfigurationError("apply_async: it would expire before it is due")
        start["expires_in"] = span - due  # there it counts from when the run is due
    for name, of_start in (("priority", "priority"), ("queue", "queue"), ("time_limit", "timeout")):
        value = options.get(name)
        if value is not None:
            start[of_start] = value
    if options.get("connection") is not None:
        start["connection"] = options["connection"]
    return start


class _Canvas(abc.ABC):
    """Something that is started: a signature, a chain, a group or a chord."""

    @abc.abstractmethod
    def node(self) -> dict[str, Any]:
        """It as the input of the workflow of canvases."""

    @abc.abstractmethod
    def tasks_within(self) -> Iterator[Signature]:
        """The signatures in it."""

    def apply_async(self, **options: Unpack[SendKeywords]) -> Any:
        """Start it."""
        app = next(self.tasks_within()).task.app
        _refuse_options("apply_async", options, SendKeywords.__annotations__, _SEND_REMEDIES)
        return _start(app, app._canvas_name, self.node(), _start_options(options))

    def delay(self) -> Any:
        """Start it."""
        return self.apply_async()

    def __call__(self) -> Any:
        return self.apply_async()

    def __or__(self, other: object) -> chain:
        if not isinstance(other, _Canvas):
            return NotImplemented
        return chain(self, other)


class Signature(_Canvas):
    """A call of a task that is made later."""

    def __init__(
        self,
        task: Task,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[SendKeywords],
    ) -> None:
        _refuse_options("apply_async", options, SendKeywords.__annotations__, _SEND_REMEDIES)
        self.task = task
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.options = options
        self.immutable = immutable

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task.name}({', '.join(given)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here, with these arguments before its own."""
        return self.task(*args, *self.args, **{**self.kwargs, **kwargs})

    def set(self, *, immutable: bool | None = None, **options: Unpack[SendKeywords]) -> Signature:
        """Set options of the call, and return the signature."""
        _refuse_options("set", options, SendKeywords.__annotations__, _SEND_REMEDIES)
        self.options = cast(SendKeywords, {**self.options, **options})
        self.immutable = self.immutable if immutable is None else immutable
        return self

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Start it, with these arguments before its own."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[SendKeywords]
    ) -> AsyncResult:
        """Start it, with these arguments before its own."""
        _refuse_options("apply_async", options, SendKeywords.__annotations__, _SEND_REMEDIES)
        call = _Call(args=[*args, *self.args], kwargs={**self.kwargs, **(kwargs or {})})
        return _start(self.task.app, self.task.name, call, self._start_options(options))

    def _start_options(self, options: SendKeywords) -> dict[str, Any]:
        of_task = {name: self.task.options[name] for name in ("priority", "expires") if name in self.task.options}
        return _start_options(cast(SendKeywords, {**of_task, **self.options, **options}))

    def node(self) -> dict[str, Any]:
        """It as the input of the workflow of canvases."""
        options = self._start_options({})
        if "connection" in options:
            raise ConfigurationError("a task within a chain, group or chord takes no connection=: give it to the whole")
        if "at" in options:
            options["at"] = options["at"].isoformat()
        options = {
            key: value.total_seconds() if isinstance(value, timedelta) else value for key, value in options.items()
        }
        return {
            "task": self.task.name,
            "args": list(self.args),
            "kwargs": self.kwargs,
            "options": options,
            "immutable": self.immutable,
        }

    def tasks_within(self) -> Iterator[Signature]:
        """Itself."""
        yield self


def _canvases(given: tuple[Any, ...], what: str) -> list[_Canvas]:
    """The members of a canvas, given one by one or as one iterable."""
    if len(given) == 1 and not isinstance(given[0], _Canvas):
        given = tuple(given[0])
    for member in given:
        if not isinstance(member, _Canvas):
            raise ConfigurationError(f"a {what} takes signatures, as task.s(…), not {member!r}")
    if not given:
        raise ConfigurationError(f"a {what} needs at least one signature")
    return list(given)


class _Several(_Canvas):
    """Canvases together."""

    kind: str

    def __init__(self, *tasks: Any) -> None:
        self.tasks = _canvases(tasks, self.kind)

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.tasks))})"

    def node(self) -> dict[str, Any]:
        """It as the input of the workflow of canvases."""
        return {self.kind: [task.node() for task in self.tasks]}

    def tasks_within(self) -> Iterator[Signature]:
        """The signatures in it."""
        for task in self.tasks:
            yield from task.tasks_within()


class chain(_Several):
    """Tasks one after the other, each with the result of the one before as its first argument."""

    kind = "chain"


class group(_Several):
    """Tasks side by side; their results as a list."""

    kind = "group"

    def apply_async(self, **options: Unpack[SendKeywords]) -> GroupResult:
        """Start each of them."""
        return GroupResult([task.apply_async(**options) for task in self.tasks])


class chord(_Canvas):
    """A group, and a task that gets the list of its results: ``chord([add.s(1, 2), add.s(3, 4)])(total.s())``."""

    def __init__(self, header: Any, body: _Canvas | None = None) -> None:
        self.header = header if isinstance(header, group) else group(*_canvases((header,), "chord"))
        self.body = body

    def __repr__(self) -> str:
        return f"chord({self.header!r}, {self.body!r})"

    def __call__(self, body: _Canvas | None = None) -> AsyncResult:
        """Start it, with this body."""
        result: AsyncResult = chord(self.header, body or self.body).apply_async()
        return result

    def node(self) -> dict[str, Any]:
        """It as the input of the workflow of canvases."""
        if self.body is None:
            raise ConfigurationError("a chord needs a body: chord(header)(body), or chord(header, body)")
        return {"chain": [self.header.node(), self.body.node()]}

    def tasks_within(self) -> Iterator[Signature]:
        """The signatures in it."""
        yield from self.header.tasks_within()
        if self.body is not None:
            yield from self.body.tasks_within()


async def _play(ctx: Context, node: dict[str, Any], before: list[Any]) -> Any:
    """Do a canvas; ``before``: the result of the task before it, if there is one."""
    if "chain" in node:
        for part in node["chain"]:
            before = [await _play(ctx, part, before)]
        return before[0]
    if "group" in node:

        async def member(branch: Context, index: int) -> Any:
            return await _play(branch, node["group"][index], before)

        results = await ctx.map(member, range(len(node["group"])), return_errors=True)  # all are done, as in Celery
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results
    options = dict(node["options"])
    if "at" in options:
        options["at"] = datetime.fromisoformat(options["at"])
    args = node["args"] if node["immutable"] else [*before, *node["args"]]
    return await ctx.call(node["task"], _Call(args=args, kwargs=node["kwargs"]), **options)


class AsyncResult:
    """The handle of a task, a chain or a chord that was started."""

    def __init__(self, id: str, app: Celery | None = None) -> None:
        self.id = id
        self._app = app or _current()

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    @property
    def task_id(self) -> str:
        """The id of its run."""
        return self.id

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """Wait for the result. A failure is RunFailed, with the ``error_type`` of the task's own error."""
        try:
            return self._run.result(timeout)
        except RunCancelled as error:
            if propagate:
                raise TaskRevokedError(f"the task {self.id} was revoked") from error
            return error
        except RunFailed as error:
            if propagate:
                raise
            return error

    wait = get

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED."""
        info = self._info()
        if (info.status == "queued" and info.attempt > 1) or info.waiting_for == "retry":
            return "RETRY"
        return STATES[info.status]

    status = state

    @property
    def result(self) -> Any:
        """The result, or the error, if there is one by now."""
        return self.get(propagate=False) if self.ready() else None

    @property
    def date_done(self) -> datetime | None:
        """When it ended."""
        return self._info().completed_at

    @property
    def traceback(self) -> str | None:
        """Of its failure, if it failed."""
        error = self._info().error
        return None if error is None else error.traceback

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        """Whether it ended with a result."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether it failed."""
        return self.state == "FAILURE"

    def revoke(self, *, terminate: bool = False) -> None:
        """Cancel it, also while it is executed (``terminate`` changes nothing)."""
        _outside_loop(self._app, self._run.cancel)

    @property
    def _run(self) -> Any:
        return self._app.stepfast.sync.get(self.id)

    def _info(self) -> RunInfo:
        return cast(RunInfo, _outside_loop(self._app, self._run.info))


class GroupResult:
    """The handles of the members of a group that was started."""

    def __init__(self, results: Sequence[AsyncResult]) -> None:
        self.results = list(results)

    def __iter__(self) -> Iterator[AsyncResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def get(self, timeout: float | None = None, propagate: bool = True) -> list[Any]:
        """Wait for all results; ``timeout`` is for each of them."""
        return [result.get(timeout, propagate) for result in self.results]

    join = get

    def completed_count(self) -> int:
        """How many of them ended with a result."""
        return sum(result.successful() for result in self.results)

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(result.ready() for result in self.results)

    def successful(self) -> bool:
        """Whether all ended with a result."""
        return all(result.successful() for result in self.results)

    def failed(self) -> bool:
        """Whether any failed."""
        return any(result.failed() for result in self.results)

    def revoke(self) -> None:
        """Cancel all of them."""
        for result in self.results:
            result.revoke()


_apps: list[Celery] = []
_shared: list[Task] = []
_lock = threading.Lock()


def _current() -> Celery:
    """The application that was made last."""
    if not _apps:
        raise ConfigurationError("there is no Celery application: make one, as in Celery('shop', stepfast=app)")
    return _apps[-1]


class Celery:
    """An application whose tasks are workflows of a Stepfast application: ``Celery("shop", stepfast=app)``."""

    def __init__(self, main: str | None = None, *, stepfast: Stepfast | None = None, **options: Any) -> None:
        for name in options:
            raise ConfigurationError(
                f"Celery takes no {name}= here: runs and results are kept in the database of the Stepfast application, "
                "as in Celery('shop', stepfast=Stepfast('postgresql://…'))"
            )
        self.main = main
        self.stepfast = stepfast or Stepfast()
        self.tasks: dict[str, Task] = {}
        self._canvas_name = f"{main or 'celery'}.canvas"

        async def canvas(ctx: Context, node: dict[str, Any]) -> Any:
            return await _play(ctx, node, [])

        self.stepfast.workflow(name=self._canvas_name)(canvas)
        with _lock:
            _apps.append(self)
            shared = list(_shared)
        for task in shared:
            self._add(task)

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT_OF_APP:
            raise AttributeError(f"this application has no {name}: {_ABSENT_OF_APP[name]}")
        raise AttributeError(f"'Celery' object has no attribute {name!r}")

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...
    @overload
    def task(self, /, **options: Unpack[TaskKeywords]) -> Callable[[Callable[..., Any]], Task]: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a task: ``@app.task``, or ``@app.task(bind=True, max_retries=5)``."""

        def declare(function: Callable[..., Any]) -> Task:
            return self._add(Task(function, cast(TaskKeywords, options)))

        return declare if function is None else declare(function)

    def _add(self, task: Task) -> Task:
        task._declare(self)
        self.tasks[task.name] = task
        return task

    def autodiscover_tasks(self, packages: Iterable[str], related_name: str = "tasks") -> None:
        """Import the modules of tasks of these packages."""
        for package in packages:
            importlib.import_module(f"{package}.{related_name}")

    def send_task(
        self, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SendKeywords],
    ) -> Any:  # fmt: skip
        """Start a task by its name, whose code may be elsewhere."""
        _refuse_options("send_task", options, SendKeywords.__annotations__, _SEND_REMEDIES)
        return _start(self, name, _Call(args=list(args), kwargs=dict(kwargs or {})), _start_options(options))

    def AsyncResult(self, id: str) -> Any:
        """The handle of a task that was started."""
        return AsyncResult(id, self)


def _start(app: Celery, name: str, input: Any, options: dict[str, Any]) -> AsyncResult:
    start = functools.partial(app.stepfast.sync.start, name, input, **options)
    run = start() if "connection" in options else _outside_loop(app, start)
    return AsyncResult(run.id, app)


@overload
def shared_task(function: Callable[..., Any], /) -> Task: ...
@overload
def shared_task(**options: Unpack[TaskKeywords]) -> Callable[[Callable[..., Any]], Task]: ...
def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a task that belongs to every application, also to those that are made later."""

    def declare(function: Callable[..., Any]) -> Task:
        return _share(Task(function, cast(TaskKeywords, options)))

    return declare if function is None else declare(function)


def _share(task: Task) -> Task:
    with _lock:
        _shared.append(task)
        apps = list(_apps)
    for app in apps:
        app._add(task)
    return task


def _outside_loop(app: Celery, call: Callable[[], T]) -> T:
    """Make a blocking call, also where an event loop runs: as with Celery, the loop waits for it. The loop of
    ``app.sync`` cannot wait for itself, and refuses."""
    loop = asyncio._get_running_loop()
    if loop is None or loop is app.stepfast.sync._loop:
        return call()
    with ThreadPoolExecutor(1, "stepfast-celery") as thread:
        return thread.submit(contextvars.copy_context().run, call).result()
