"""``@step``: a function with its own retries, timeout and backoff. Called directly it is just the function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, overload

from ..errors import ConfigurationError
from ..model.backoff import Backoff, check_backoff, seconds
from ..model.names import check_name, refuse_unknown
from .declaring import check_function, check_types, check_undo, located, warn_if_types_are_lost
from .options import StepKeywords, shows_options
from .signature import Shape, is_async, mark_async, name_of, return_type

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What can be set for a step; None: not said here."""

    name: str | None = None
    retries: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    record_arguments: bool | None = None
    compensate: Callable[..., Any] | None = None
    """What undoes the step when the run fails for good or is cancelled: called with the output and the arguments."""

    def over(self, other: StepOptions) -> StepOptions:
        """These options, and the other's where these say nothing."""
        return StepOptions(
            *(getattr(other, f) if getattr(self, f) is None else getattr(self, f) for f in self.__dataclass_fields__)
        )


NO_OPTIONS = StepOptions()


class Work:
    """What a step does: the function, under which name, what is known of it, and its options."""

    __slots__ = ("function", "name", "options", "shape")

    def __init__(self, name: str, function: Callable[..., Any], shape: Shape, options: StepOptions) -> None:
        self.name = name
        self.function = function
        self.shape = shape
        self.options = options


class Undoable(NamedTuple):
    """A completed step that can be undone."""

    seq: int
    step: str
    undo: Callable[..., Any]
    args: tuple[Any, ...]
    """The step's output, then its arguments."""
    kwargs: dict[str, Any]
    line: str


def step_options(said_by: str, **given: Unpack[StepKeywords]) -> StepOptions:
    """Checked options, as given to ``@step`` or ``ctx.options``. How long a name may be is known where it is called."""
    refuse_unknown(said_by, given, StepKeywords.__annotations__)
    name, retries, compensate = given.get("name"), given.get("retries"), given.get("compensate")
    if name is not None:
        check_name(name, "the name of a step")
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 2**31):
        raise ConfigurationError(f"retries must be a whole number of zero or more, not {retries!r}")
    if compensate is not None and not callable(compensate):
        raise ConfigurationError(f"compensate must be a function, not {compensate!r}")
    timeout = given.get("timeout")
    limit = None if timeout is None else seconds(timeout, "the timeout of a step")
    backoff = check_backoff(given.get("backoff"))
    return StepOptions(name, retries, backoff, limit, given.get("record_arguments"), compensate)


class StepFunction(Generic[P, R]):
    """A function declared with ``@step``."""

    def __init__(self, function: Callable[P, R], options: StepOptions, scope: dict[str, Any] | None = None) -> None:
        check_function(function, "step")
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self.shape = Shape(options.name or name_of(function), is_async(function), return_type(function, scope))
        self.work = Work(self.shape.name, function, self.shape, options)
        """As a plain call of it takes it; made once, because most calls are plain."""
        if self.shape.is_async:
            mark_async(self, function)
        check_types({"the result": self.shape.returns}, "step", function)
        warn_if_types_are_lost(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<step {self.shape.name}>"


def under_step(function: Any, what: str) -> Any:
    """The function itself, where one declared with ``@step`` is declared as something else too. Options of the step
    would have no effect there, and are refused by name."""
    if not isinstance(function, StepFunction):
        return function
    options = function.options
    given = [name for name in options.__dataclass_fields__ if getattr(options, name) is not None]
    if given:
        raise ConfigurationError(
            f"{what} {located(function.function)} is declared over @step with {', '.join(given)}, which only "
            f"ctx.step(…) applies. Give these to the {what} by options of its own and leave out @step; or, if it is a "
            f"step elsewhere, declare the {what} with its function, {name_of(function)}.function"
        )
    return function.function


class UndoableStep(StepFunction[P, R]):
    """One that says how it is undone. A class of its own, so that calls of all others need not ask."""

    def __init__(self, function: Callable[P, R], options: StepOptions, scope: dict[str, Any] | None = None) -> None:
        super().__init__(function, options, scope)
        check_undo(options.compensate, function)


def recorded_name(function: Callable[..., Any]) -> str:
    """The name under which a function is recorded as a step, or as the undo of one."""
    return function.shape.name if isinstance(function, StepFunction) else name_of(function)


@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(**options: Unpack[StepKeywords]) -> Callable[[Callable[P, R]], StepFunction[P, R]]: ...
@shows_options
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function as a step: ``@step`` or ``@step(retries=5, timeout=10, backoff=Backoff(…))``."""
    scope = sys._getframe(1).f_locals
    chosen = step_options("@step", **options)
    kind = StepFunction if chosen.compensate is None else UndoableStep
    if function is not None:
        return kind(function, chosen, scope)
    return lambda wrapped: kind(wrapped, chosen, scope)
