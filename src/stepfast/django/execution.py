"""How a worker executes a task: as a workflow whose body is the task's function, with Django's signals around it."""

from __future__ import annotations

import builtins
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast
from uuid import UUID

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.conf import settings
from django.db import connections
from django.utils import timezone

from .. import Context, RunInfo, SyncContext, Workflow, cancelled
from .. import errors as own_errors
from ..errors import ConfigurationError, ContextMisuse, InvalidInput, NonRetryableError, PayloadError, RecordedError
from ..telemetry import Observer, RunClaimed, RunEnded, RunLost, RunReleased, RunReleasing
from .interface import (
    AnyResult,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)

if TYPE_CHECKING:
    from .backend import StepfastBackend

STATUSES = {
    "queued": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "waiting": TaskResultStatus.RUNNING,
    "compensating": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "compensated": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
"""Status of a run → status of a task. A paused run is ready if it has not begun, otherwise running."""

_TRACE = "stepfast.django"
_MOST_WORKERS = 40
"""Ids of workers that are passed on with a run; what is passed on with it is small."""


class Using(TypedDict, total=False):
    """What a call changed of a task as it is declared (``task.using``)."""

    priority: int
    queue_name: str
    run_after: str
    max_attempts: int
    timeout: float
    deadline: float
    expires_in: float
    key: str
    concurrency_key: str
    tags: list[str]


class Call(TypedDict):
    """The input of the run of a task."""

    args: list[Any]
    kwargs: dict[str, Any]
    using: NotRequired[Using]


class Claim:
    """What is known of the claim that a task is executed in."""

    def __init__(self, worker: str, attempt: int, trace: Mapping[str, str]) -> None:
        passed_on = json.loads(trace.get(_TRACE, "{}"))
        self.worker = worker
        self.attempt = attempt
        self.resumes = passed_on.get("attempt") == attempt
        """Whether this attempt has begun before, and waited."""
        self.workers: list[str] = passed_on.get("workers", [])[: attempt - 1]
        """Of the attempts before."""
        self.workers += [""] * (attempt - 1 - len(self.workers)) + [worker]


_claim: ContextVar[Claim | None] = ContextVar("stepfast_django_claim", default=None)


class ClaimObserver(Observer):
    """Lets tasks know the worker that executes them, and passes on with a run which workers have."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], Claim] = {}

    def claimed(self, event: RunClaimed) -> None:
        """Note the claim, in the task that executes the run."""
        claim = Claim(event.worker, event.attempt, event.trace)
        self._claims[event.run_id, event.claim] = claim
        _claim.set(claim)

    def releasing(self, event: RunReleasing) -> None:
        """Pass on what the next worker needs."""
        claim = self._claims.get((event.run_id, event.claim))
        if claim is not None:
            passed_on = {"attempt": claim.attempt, "workers": claim.workers[-_MOST_WORKERS:]}
            event.trace[_TRACE] = json.dumps(passed_on)

    def _left(self, event: RunReleased | RunEnded | RunLost) -> None:
        self._claims.pop((event.run_id, event.claim), None)

    suspended = ended = lost = _left


# -- the workflow ----------------------------------------------------------------------------------------------------


def declare(backend: StepfastBackend, task: Any) -> Workflow[Any, Any]:
    """Register a task as a workflow of its own, under the path of its function."""
    function = task.func
    execute: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        async def execute_async(ctx: Context, call: Call) -> Any:
            return await _execute_async(Attempt(backend, task, ctx, call))

        execute = execute_async
    else:

        def execute_plain(ctx: SyncContext, call: Call) -> Any:
            return _execute(Attempt(backend, task, ctx, call))

        execute = execute_plain
    # Its version is that of the task's code; its parameters and its name are its own.
    signature = inspect.signature(execute)
    execute.__dict__.update(__wrapped__=function, __signature__=signature)
    execute.__doc__ = function.__doc__
    options: dict[str, Any] = {
        "max_attempts": attempts_of(backend, task),
        "timeout": getattr(task, "timeout", None) or backend.options.get("timeout"),
        "deadline": getattr(task, "deadline", None),
        "backoff": getattr(task, "backoff", None),
    }
    decorate = backend.app.workflow(name=task.module_path, queue=task.queue_name, **options)
    return decorate(execute)


def attempts_of(backend: StepfastBackend, task: Any) -> int:
    """How many attempts a task has."""
    return getattr(task, "max_attempts", None) or backend.max_attempts


class Attempt:
    """One execution of the function of a task."""

    def __init__(self, backend: StepfastBackend, task: Any, ctx: Context | SyncContext, call: Call) -> None:
        self.sender = type(backend)
        self.task = backend.as_called(task, call.get("using", {}))
        claim = _claim.get() or Claim("", ctx.attempt, {})
        self.is_new = not claim.resumes
        self.attempts_allowed = attempts_of(backend, self.task)
        began = told_time(ctx.now())
        self.result: AnyResult = TaskResult(
            task=self.task,
            id=ctx.run_id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=enqueued_at(ctx.run_id, ctx.now()),
            started_at=began,
            finished_at=None,
            last_attempted_at=timezone.now() if ctx.attempt > 1 else began,
            args=call["args"],
            kwargs=call["kwargs"],
            backend=self.task.backend,
            errors=[],
            worker_ids=claim.workers,
        )

    def call(self) -> Any:
        """Call the function, with its context if it takes that."""
        given: tuple[Any, ...] = (TaskContext(task_result=self.result),) if self.task.takes_context else ()
        return self.task.func(*given, *self.result.args, **self.result.kwargs)

    def succeeded(self, value: Any) -> None:
        """Note what the function has returned."""
        _set(self.result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)

    def failed(self, error: BaseException) -> bool:
        """Note what the function has raised; whether that is the end of the task."""
        if not is_final(error, self.result.attempts, self.attempts_allowed):
            return False
        self.result.errors.append(task_error(error))
        _set(self.result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        return True


def _execute(attempt: Attempt) -> Any:
    """Execute a plain function, in a thread of the worker."""
    close_old_connections()
    try:
        if attempt.is_new:
            task_started.send_robust(attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(attempt.call())
        except EXITS as error:
            raised = as_failure(error)
            if attempt.failed(raised) and not cancelled():
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
            raise raised from None
        except Exception as error:
            if attempt.failed(error) and not cancelled():
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        if not cancelled():  # it may have left the worker, as by its timeout: nothing of it counts then
            task_finished.send_robust(attempt.sender, task_result=attempt.result)
        return value
    finally:
        close_old_connections()


async def _execute_async(attempt: Attempt) -> Any:
    """Execute a coroutine function, in the event loop of the worker."""
    async with OwnThread():
        if attempt.is_new:
            await task_started.asend_robust(attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(await cast(Awaitable[Any], attempt.call()))
        except EXITS as error:
            raised = as_failure(error)
            if attempt.failed(raised):
                await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
            raise raised from None
        except Exception as error:
            if attempt.failed(error):
                await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
        return value


def close_old_connections() -> None:
    """Close the connections of this thread that are broken or too old, unless a transaction is open on them."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


class OwnThread(ThreadSensitiveContext):
    """A thread for the calls that a coroutine makes by ``sync_to_async``, with database connections of its own, which
    are closed at the end. The end waits for no call: the event loop is that of all runs of the worker."""

    async def __aexit__(self, *_: object) -> None:
        executor = SyncToAsync.context_to_thread_executor.pop(self, None)
        if executor is not None:
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)
        if self.token:
            SyncToAsync.thread_sensitive_context.reset(self.token)


# -- errors ----------------------------------------------------------------------------------------------------------

EXITS = (SystemExit, KeyboardInterrupt)
_NEVER_AGAIN = (NonRetryableError, PayloadError, InvalidInput, ContextMisuse, ConfigurationError)


def as_failure(error: BaseException) -> Exception:
    """What would end the process as an error of the task, under its own name."""
    kind = type(type(error).__name__, (NonRetryableError,), {"__module__": "builtins"})
    failure = kind(str(error))
    return cast(Exception, failure.with_traceback(error.__traceback__))


def is_final(error: BaseException, attempt: int, allowed: int) -> bool:
    """Whether no attempt follows."""
    again = error.retryable if isinstance(error, RecordedError) else not isinstance(error, _NEVER_AGAIN)
    return attempt >= allowed or not again


def task_error(error: BaseException) -> TaskError:
    """An error as Django has it."""
    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
    )


_OWN_FRAME = re.compile(r'  File "[^"]*[/\\]stepfast[/\\](?:engine|worker|django)[/\\][^"]*"')


def without_own_frames(text: str) -> str:
    """A traceback without the frames of the library."""
    shown, own = [], False
    for line in text.splitlines():
        if line.startswith("  File "):
            own = _OWN_FRAME.match(line) is not None
        elif not line.startswith("    "):
            own = False
        if not own:
            shown.append(line)
    return "\n".join(shown)


def class_path(name: str) -> str:
    """The recorded name of an error's class as the path of the class."""
    if "." not in name and hasattr(builtins, name):
        return f"builtins.{name}"
    if "." not in name and hasattr(own_errors, name):
        return f"stepfast.errors.{name}"
    return name


# -- times and results -------------------------------------------------------------------------------------------------


def told_time(moment: datetime | None) -> datetime | None:
    """A time as Django has times: naive where the project does without time zones."""
    if moment is None or settings.USE_TZ:
        return moment
    return timezone.make_naive(moment)


def enqueued_at(run_id: str, before: datetime | None = None) -> datetime | None:
    """When a task was enqueued: the time in its id, as the caller knew it without a query; at the latest what the
    database says."""
    made = datetime.fromtimestamp((UUID(run_id).int >> 80) / 1000, UTC)
    return told_time(made if before is None else min(made, before))


def _set(result: AnyResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


def result_of(task: Any, info: RunInfo, workers: list[str], errors: list[TaskError]) -> AnyResult:
    """The result of a task, from what is known of its run."""
    status = STATUSES.get(info.status)
    if status is None:
        status = TaskResultStatus.READY if info.started_at is None else TaskResultStatus.RUNNING
    if info.waiting_for == "retry":
        status = TaskResultStatus.READY
    result: AnyResult = TaskResult(
        task=task,
        id=info.id,
        status=status,
        enqueued_at=enqueued_at(info.id, info.created_at),
        started_at=told_time(info.started_at),
        finished_at=told_time(info.completed_at),
        last_attempted_at=told_time(info.started_at),
        args=info.input["args"],
        kwargs=info.input["kwargs"],
        backend=task.backend,
        errors=errors,
        worker_ids=workers,
    )
    if status == TaskResultStatus.SUCCESSFUL:
        _set(result, _return_value=info.output)
    return result
