"""Handlers of remote steps: their declaration, and calling them with the input of a task."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ..engine.function_spec import input_type, is_async, name_of, positional, source_line
from ..engine.step import being_cancelled, cancelled_by_code, under_step
from ..errors import ConfigurationError, InvalidInput, PayloadError, sentence
from ..model.payload import Payloads, check_type
from ..settings import FORMAT
from .protocol import COMPLETED, FAILED, ClaimedTask, RemoteTask, TaskOutcome, error_text, no_handler, refusal

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
    return Handler(name, function, is_async(function), len(needed) == 2 or _asks_for_task(parameters), type_)


def _asks_for_task(parameters: list[Any]) -> bool:
    """A second parameter that has a default is the task only if it is called so."""
    return len(parameters) > 1 and parameters[1].name == "task"


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
    """What is wrong with a value. Errors of ours are sentences; of others, such as a nesting that is too deep to be
    read, the class is told too."""
    return str(error) if isinstance(error, PayloadError) else sentence(error)
