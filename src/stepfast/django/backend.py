"""``StepfastBackend``: enqueues tasks on Django's connection, and reads their results."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, cast

from django.core.checks import CheckMessage
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from .. import Backoff, ErrorInfo, RunInfo, RunNotFound, SchemaError, Stepfast
from .applications import application
from .checks import check_backend, refuse_unusable
from .eager import execute
from .execution import Call, Using, class_path, declare, enqueued_at, result_of, told_time, without_own_frames
from .interface import (
    AnyResult,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)

AnyTask = Any
"""A task, also one that was declared for another backend."""
Seconds = float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StepfastTask(Task):  # type: ignore[type-arg]
    """A task with the options of Stepfast: ``@task(max_attempts=5, timeout=60)``."""

    max_attempts: int | None = None
    """Attempts of the task; by default those of the backend, which are one."""
    timeout: Seconds | None = None
    """For each attempt."""
    deadline: Seconds | None = None
    """For the whole task, from when it is enqueued."""
    backoff: Backoff | None = None
    """The wait between two attempts."""
    expires_in: Seconds | None = None
    """The task fails if no worker has begun it so long after it was due."""
    key: str | None = None
    """The same key of the same task: the same run, never a second one."""
    concurrency_key: str | None = None
    """Whose limits of the queue it counts for: a customer, say."""
    tags: tuple[str, ...] = ()

    def using(self, **changes: Any) -> StepfastTask:
        """The task with other options: those of Django's tasks, and all of Stepfast's but ``backoff``."""
        known = {field.name for field in dataclasses.fields(self)} - {"func", "takes_context", "backoff"}
        for name in changes:
            if name not in known:
                raise TypeError(
                    f"using() got an unexpected keyword argument {name!r}; it takes {', '.join(sorted(known))}"
                )
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)


class StepfastBackend(BaseTaskBackend):
    """Tasks as runs of Stepfast, in a database of ``DATABASES``."""

    task_class = StepfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", DEFAULT_DB_ALIAS)
        self.max_attempts: int = self.options.get("max_attempts", 1)
        self.eager = bool(self.options.get("eager", False))
        self._eager_results: dict[str, AnyResult] = {}
        self._discovered = False
        self.found_usable = False
        """Whether the settings were checked."""
        self.used = False
        """Whether there may be runs since the last removal of all."""

    # -- declaring ---------------------------------------------------------------------------------------------------

    @property
    def app(self) -> Stepfast:
        """The Stepfast application, on the database that the settings name."""
        self.used = True
        return application(self)

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot be executed, and note the one that can."""
        try:
            super().validate_task(task)
        except InvalidTask as error:
            if "module level" not in str(error):
                raise
            name = getattr(task.func, "__qualname__", repr(task.func))
            raise InvalidTask(
                f"{error} {name!r} is not: a worker finds a function by its module and name. Move it to the top level"
            ) from None
        attempts = getattr(task, "max_attempts", None)
        if attempts is not None and (not isinstance(attempts, int) or attempts < 1):
            raise InvalidTask(f"max_attempts must be a whole number of at least 1, not {attempts!r}")
        known = _declared.get(task.module_path)
        if known is None or known.func is not task.func:
            _declared[task.module_path] = task

    def workflow_of(self, task: AnyTask) -> str:
        """The name of the workflow that executes a task, which is declared by then."""
        name, app = str(task.module_path), self.app
        known = app.workflows.get(name)
        if known is None or getattr(known.function, "__wrapped__", None) is not task.func:
            app.workflows.pop(name, None)
            declare(self, as_declared(task))
        return name

    def declare_all(self) -> Stepfast:
        """The application with all tasks of the project, as a worker needs it: those in the modules ``tasks`` and
        ``workflows`` of its apps, in the modules of ``OPTIONS["modules"]``, and what these import."""
        self._discover()
        for task in list(_declared.values()):
            self.workflow_of(task)
        return self.app

    def _discover(self) -> None:
        if self._discovered:
            return
        autodiscover_modules("tasks", "workflows")
        for module in self.options.get("modules", ()):
            import_module(module)
        for loaded in list(sys.modules.values()):
            for found in list(getattr(loaded, "__dict__", {}).values()):
                if issubclass(type(found), Task) and "<locals>" not in found.module_path:
                    _declared.setdefault(found.module_path, found)
        self._discovered = True

    def as_called(self, task: AnyTask, using: Using) -> AnyTask:
        """A task as it was enqueued."""
        known = {field.name for field in dataclasses.fields(task)}
        changes = {"backend": self.alias, **{name: value for name, value in using.items() if name in known}}
        if "run_after" in using:
            changes["run_after"] = told_time(datetime.fromisoformat(using["run_after"]))
        if "tags" in changes:
            changes["tags"] = tuple(using["tags"])
        if all(getattr(task, name) == value for name, value in changes.items()):
            return task
        return dataclasses.replace(task, **changes)

    # -- enqueueing --------------------------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task on Django's connection: in a transaction that is open, it is committed or rolled back with
        that."""
        self.validate_task(task)
        if self.eager:
            result = execute(self, task, args, kwargs)
            self._eager_results[result.id] = result
            return result
        refuse_in_loop("enqueue", "aenqueue")
        call = Call(args=cast(Any, normalize_json(list(args))), kwargs=cast(Any, normalize_json(dict(kwargs))))
        if using := _changes(task):
            call["using"] = using
        run_id, existed = self._start(task, call)
        if existed:  # its key was taken
            with contextlib.suppress(TaskResultDoesNotExist):
                return self.get_result(run_id)
        result = TaskResult(
            task=task,
            id=run_id,
            status=TaskResultStatus.READY,
            enqueued_at=enqueued_at(run_id),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=call["args"],
            kwargs=call["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if connections[self.database].in_atomic_block:
            self._uncommitted()[run_id] = result
        task_enqueued.send(type(self), task_result=result)
        return result

    def _start(self, task: AnyTask, call: Call) -> tuple[str, bool]:
        refuse_unusable(self)
        name, app, connection = self.workflow_of(task), self.app, connections[self.database]
        options = {name: getattr(task, name, None) for name in _OF_START}
        options |= {"queue": task.queue_name, "priority": task.priority, "at": _aware(task.run_after)}
        options["max_attempts"] = options["max_attempts"] or self.max_attempts
        given = {option: value for option, value in options.items() if value is not None}
        if tags := getattr(task, "tags", ()):
            given["tags"] = list(tags)
        with transaction.atomic(using=self.database), told_to_migrate():
            connection.ensure_connection()
            # The start is part of Django's transaction, not of a run whose code enqueues.
            run = outside_of_runs(app.sync.start, name, call, connection=connection.connection, **given)
        return run.id, run.existed

    def _uncommitted(self) -> dict[str, AnyResult]:
        """What the open transaction has enqueued, by id: no other connection sees it yet."""
        connection = connections[self.database]
        found: dict[str, AnyResult] = connection.__dict__.setdefault("_stepfast_uncommitted", {})
        if not any(entry[1] == found.clear for entry in connection.run_on_commit):  # of a transaction that is over
            found.clear()
            if connection.in_atomic_block:
                transaction.on_commit(found.clear, using=self.database, robust=True)
        return found

    def remove_all(self) -> None:
        """Remove every run, and what else is in the tables."""
        app = self.app

        async def remove() -> None:
            await (await app.store()).reset()
            await app.migrate()

        app.sync.call(remove())
        self.used = False

    # -- results -----------------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> AnyResult:
        """The result of a task by its id. TaskResultDoesNotExist."""
        if self.eager:
            if result_id not in self._eager_results:
                raise TaskResultDoesNotExist(result_id)
            return copy.copy(self._eager_results[result_id])
        refuse_in_loop("get_result", "aget_result")
        try:
            run = self.app.sync.get(str(result_id)).this
            with told_to_migrate():
                info = cast(RunInfo, outside_of_runs(run.info))
        except RunNotFound:
            uncommitted = self._uncommitted().get(str(result_id))
            if uncommitted is None:
                raise TaskResultDoesNotExist(result_id) from None
            return copy.copy(uncommitted)
        task = self._task_of(info)
        workers, errors = _attempts(info, run)
        return result_of(task, info, workers, errors)

    def _task_of(self, info: RunInfo) -> AnyTask:
        if info.workflow not in _declared:
            self._discover()
        task = _declared.get(info.workflow)
        if task is None or not isinstance(info.input, dict) or not info.input.keys() >= {"args", "kwargs"}:
            raise TaskResultDoesNotExist(
                f"{info.id} is a run of {info.workflow!r}, and no imported module declares a task of that name. If it "
                "was renamed, keep the old name as well; if its module is not called tasks, name it in "
                "OPTIONS['modules']"
            )
        return self.as_called(as_declared(task), info.input.get("using", {}))

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What is wrong with the settings of this backend."""
        return [*super().check(**kwargs), *check_backend(self)]


_declared: dict[str, AnyTask] = {}
"""Tasks by the paths of their functions."""

_OF_START = ("max_attempts", "timeout", "deadline", "expires_in", "key", "concurrency_key")
"""Options of a task that go with its start as they are."""


def as_declared(task: AnyTask) -> AnyTask:
    """A task as its module declares it, without what ``using`` has changed."""
    found = getattr(sys.modules.get(task.func.__module__), task.func.__name__, None)
    return found if isinstance(found, Task) and found.func is task.func else task


def outside_of_runs(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Make a blocking call of the application as code that belongs to no run."""
    return contextvars.Context().run(call, *args, **options)


@contextlib.contextmanager
def told_to_migrate() -> Iterator[None]:
    """Say what makes the tables here, where they are missing."""
    try:
        yield
    except SchemaError as error:
        if "stepfast migrate" not in str(error):
            raise
        raise SchemaError(str(error).replace("`stepfast migrate`", "`manage.py migrate`")) from error


def refuse_in_loop(called: str, instead: str) -> None:
    """Refuse a blocking call in an event loop, as Django does for its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation(f"{called}() was called in an event loop, which it would block: await {instead}()")


def _changes(task: AnyTask) -> Using:
    """What was changed of a task since it was declared."""
    declared, using = as_declared(task), Using()
    if task.priority != declared.priority:
        using["priority"] = task.priority
    if task.queue_name != declared.queue_name:
        using["queue_name"] = task.queue_name
    if task.run_after is not None:
        using["run_after"] = cast(datetime, _aware(task.run_after)).isoformat()
    changed: dict[str, Any] = {}
    for name in (*_OF_START, "tags"):
        value = getattr(task, name, None)
        if value is not None and value != getattr(declared, name, None):
            changed[name] = value.total_seconds() if isinstance(value, timedelta) else value
    if "tags" in changed:
        changed["tags"] = list(changed["tags"])
    using.update(cast(Using, changed))
    return using


def _aware(moment: datetime | None) -> datetime | None:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment


def _attempts(info: RunInfo, run: Any) -> tuple[list[str], list[TaskError]]:
    """The workers of the attempts of a run, one for each, and the errors that ended them."""
    last = info.executed_by
    if info.started_at is None and last is None:
        return [], [*([_error(info.error)] if info.error is not None else []), *_cancelled(info)]
    workers, errors = {info.attempt: "" if last is None else last.worker}, {}
    if info.attempt > 1:
        for call in outside_of_runs(run.activity):
            if call.position is None and call.error is not None:
                errors[call.attempt] = _error(call.error)
                workers[call.attempt] = "" if call.executed_by is None else call.executed_by.worker
    if info.error is not None:
        errors[info.attempt] = _error(info.error)
    of_each = [workers.get(number, "") for number in range(1, info.attempt + 1)]
    return of_each, [*(errors[number] for number in sorted(errors)), *_cancelled(info)]


def _cancelled(info: RunInfo) -> list[TaskError]:
    """What a task that was cancelled has in place of an error."""
    if info.status != "cancelled" or info.error is not None:
        return []
    said = f"stepfast.errors.RunCancelled: run {info.id} was cancelled\n"
    return [TaskError(exception_class_path="stepfast.errors.RunCancelled", traceback=said)]


def _error(error: ErrorInfo) -> TaskError:
    text = without_own_frames(error.traceback or f"{error.type}: {error.message}")
    return TaskError(
        exception_class_path=class_path(error.type), traceback=text if text.endswith("\n") else f"{text}\n"
    )
