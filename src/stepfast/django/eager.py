"""Eager mode, for tests: a task is executed where it is enqueued, without Stepfast's tables and without a worker."""

from __future__ import annotations

import copy
import inspect
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async
from django.utils import timezone

from .. import ContextMisuse
from .execution import task_error
from .interface import (
    AnyResult,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)

if TYPE_CHECKING:
    from .backend import StepfastBackend, StepfastTask

_context: ContextVar[EagerContext | None] = ContextVar("stepfast_django_eager", default=None)


def eager_context() -> EagerContext | None:
    """The context of the task that is executed eagerly, outside of its steps."""
    return _context.get()


class EagerContext:
    """The durable calls that make sense without a database: steps are called, sleeps are over at once."""

    attempt = 1

    def __init__(self, run_id: str, workflow: str, is_async: bool) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self._is_async = is_async
        self._values: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        raise ContextMisuse(
            f"context.{name} needs a database and a worker, and TASKS is set to be eager: test this task by "
            "stepfast.django.testing.run_tasks in a TransactionTestCase"
        )

    def options(self, **options: Any) -> EagerContext:
        """Itself: steps are called once."""
        return self

    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the step."""
        if isinstance(target, str):
            target, *args = args  # type: ignore[assignment]
        return self._call(target, args, kwargs)

    def sleep(self, duration: Any) -> Any:
        """Do not sleep."""
        return self._call(lambda: None, (), {})

    def sleep_until(self, when: Any) -> Any:
        """Do not sleep."""
        return self._call(lambda: None, (), {})

    def set(self, key: str, value: Any) -> Any:
        """No reader is there."""
        return self._call(lambda: None, (), {})

    def progress(self, detail: str, data: Any = None) -> Any:
        """No reader is there."""
        return None

    def now(self) -> datetime:
        """The time of this machine."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()

    def uuid(self) -> uuid.UUID:
        """A random UUID."""
        return uuid.uuid4()

    def _call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._await(function, args, kwargs) if self._is_async else self._block(function, args, kwargs)

    def _block(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        token = _context.set(None)
        try:
            if inspect.iscoroutinefunction(function):
                return async_to_sync(function)(*args, **kwargs)
            return function(*args, **kwargs)
        finally:
            _context.reset(token)

    async def _await(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        token = _context.set(None)
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            return await sync_to_async(function)(*args, **kwargs)
        finally:
            _context.reset(token)


def execute(backend: StepfastBackend, task: StepfastTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AnyResult:
    """Execute a task here and now; its result."""
    now = timezone.now()
    result: AnyResult = TaskResult(
        task=task,
        id=str(uuid.uuid4()),
        status=TaskResultStatus.READY,
        enqueued_at=now,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend.alias,
        errors=[],
        worker_ids=[],
    )
    task_enqueued.send(type(backend), task_result=result)
    began = timezone.now()
    _set(result, status=TaskResultStatus.RUNNING, started_at=began, last_attempted_at=began)
    result.worker_ids.append("eager")
    task_started.send(type(backend), task_result=result)
    given: tuple[Any, ...] = (TaskContext(task_result=result),) if task.takes_context else ()
    token = _context.set(EagerContext(result.id, task.module_path, inspect.iscoroutinefunction(task.func)))
    try:
        try:
            value = task.call(*given, *result.args, **result.kwargs)
        finally:
            _context.reset(token)
        value = normalize_json(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # ends here: also SystemExit is an error of the task, as in ImmediateBackend
        result.errors.append(task_error(error))
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        task_finished.send(type(backend), task_result=result)
    else:
        _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        task_finished.send(type(backend), task_result=result)
    return result


def copied(result: AnyResult) -> AnyResult:
    """A result that another reader may refresh."""
    return copy.copy(result)


def _set(result: AnyResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


__all__ = ["EagerContext", "copied", "eager_context", "execute"]
