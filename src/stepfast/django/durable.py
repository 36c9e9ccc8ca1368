"""``context``: durable calls in the code of a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from .. import Context, ContextMisuse, SyncContext, current, step
from .eager import eager_context
from .execution import close_old_connections


class TaskDurability:
    """The context of the task that calls: ``context.step(charge, order)`` in a plain task, ``await context.step(…)`` in
    an async one. It has every call of Stepfast's contexts. The functions of its steps find Django's connections usable,
    in each thread."""

    def __init__(self, chosen: Any = None) -> None:
        self._chosen = chosen

    def __repr__(self) -> str:
        return "<the context of the task that calls>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._of_caller(name), name)

    def _of_caller(self, called: str) -> Any:
        found = self._chosen or eager_context() or current()
        if found is None:
            raise ContextMisuse(
                f"context.{called} was called outside of the code of a task, or in a function of one of its steps: "
                "call it in the task itself, where a worker executes it"
            )
        return found

    @property
    def active(self) -> bool:
        """Whether the code that calls is that of a task."""
        return self._chosen is not None or eager_context() is not None or current() is not None

    def options(self, **options: Any) -> TaskDurability:
        """The context with options for what is called by it: ``context.options(retries=3).step(charge, order)``."""
        return TaskDurability(self._of_caller("options").options(**options))

    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do a piece of work once: its result is recorded, and a later attempt takes it from the record."""
        found = self._of_caller("step")
        if eager_context() is not None:
            return found.step(target, *args, **kwargs)  # the connections are those of the test
        if isinstance(target, str) and args:
            return found.step(target, with_connections(args[0]), *args[1:], **kwargs)
        return found.step(with_connections(target), *args, **kwargs)


_wrapped: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_StepFunction = type(step(lambda: None))


def with_connections(function: Any) -> Any:
    """A plain function that closes unusable connections of its thread before it begins and when it has ended; under
    the same name, with the same options."""
    if inspect.iscoroutinefunction(function) or not callable(function):
        return function
    try:
        return _wrapped[function]
    except (KeyError, TypeError):
        pass
    if isinstance(function, _StepFunction):
        made: Any = type(function)(_clean(function.function), function.options)
    else:
        made = _clean(function)
    try:
        _wrapped[function] = made
    except TypeError:  # not weakly referable
        pass
    return made


def _clean(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    if not hasattr(function, "__name__"):
        call.__name__ = type(function).__name__ if not isinstance(function, functools.partial) else _name(function)
    return call


def _name(function: functools.partial[Any]) -> str:
    return getattr(function.func, "__name__", "partial")


context: Any = TaskDurability()
"""The context of the task whose code calls it."""

__all__ = ["Context", "SyncContext", "TaskDurability", "context", "with_connections"]
