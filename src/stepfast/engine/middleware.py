"""Middleware: functions of the application around each attempt of a run and each try of a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ..errors import ConfigurationError, ContextMisuse
from .dag import SKIP
from .function_spec import is_async, located
from .history import UNDO
from .step import TRANSACTION

if TYPE_CHECKING:
    from .execution import Execution
    from .step import StepCall

Proceed = Callable[[], Awaitable[Any]]
"""Calls the next middleware, or the code itself; gives what that returns."""


@dataclass(frozen=True, slots=True)
class MiddlewareCall:
    """What a middleware is called around."""

    kind: Literal["run", "step"]
    """An attempt of a run, or a try of a step. A step of a dag is a step."""
    name: str
    """The name of the workflow or the step."""
    run_id: str
    attempt: int
    """Which attempt of the run or try of the step this is, from 1. An attempt that waited is called again with the same
    number."""
    attributes: Mapping[str, Any]
    """The attributes that the run had when this worker claimed it."""
    undoing: bool = False
    """Whether completed work is undone."""


Middleware = Callable[[MiddlewareCall, Proceed], Awaitable[Any]]


def check_middleware(function: Any) -> Middleware:
    """Refuse what is not an ``async def`` function."""
    if not callable(function) or not is_async(function):
        name = located(function) if callable(function) else repr(function)
        raise ConfigurationError(
            f"a middleware is an async def function of a call and what proceeds with it, not {name}: "
            "async def with_tenant(call, proceed): return await proceed()"
        )
    return cast(Middleware, function)


class AttemptMiddleware:
    """The middleware around one attempt and its steps."""

    def __init__(self, functions: Sequence[Middleware], execution: Execution, attributes: Mapping[str, Any]) -> None:
        claimed = execution.claimed
        self._functions = functions
        self._run_id = claimed.dag_id or claimed.id
        self._attributes = attributes
        self._execution = execution

    def around_attempt(self, work: Proceed) -> Awaitable[Any]:
        """Do the work of the attempt within the middleware."""
        claimed, workflow = self._execution.claimed, self._execution.workflow
        kind, name = ("run", workflow.name) if claimed.dag_step is None else ("step", claimed.dag_step)
        call = self._of(kind, name, claimed.attempt, claimed.undoing)
        if claimed.undoing:
            return self._keeping(call, work)
        return self._skippable(call, work) if claimed.dag_step is not None else self._call(0, call, work)

    def around_step(self, step: StepCall[Any]) -> Awaitable[Any]:
        """Call the function of a step within the middleware."""
        call = self._of("step", step.name, step.number_of_try, step.kind == UNDO)
        return self._keeping(call, step._call) if step.kind == TRANSACTION else self._call(0, call, step._call)

    def _of(self, kind: Any, name: str, attempt: int, undoing: bool) -> MiddlewareCall:
        return MiddlewareCall(kind, name, self._run_id, attempt, self._attributes, undoing)

    async def _keeping(self, call: MiddlewareCall, work: Proceed) -> Any:
        """Call what has a result that is not for middleware: the record of a transaction, or which undos failed."""
        kept: list[Any] = []

        async def proceed() -> None:
            kept.append(await work())

        await self._call(0, call, proceed)
        if not kept:
            what = "undos" if call.undoing else "a transaction"
            raise ContextMisuse(f"a middleware returned without proceed() around {what} of {call.name!r}")
        return kept[0]

    async def _skippable(self, call: MiddlewareCall, work: Proceed) -> Any:
        """Call the function of a step of a dag, unless its condition skips it."""
        skipped = False

        async def proceed() -> Any:
            nonlocal skipped
            result = await work()
            skipped = result is SKIP
            return None if skipped else result

        result = await self._call(0, call, proceed)
        return SKIP if skipped else result

    async def _call(self, index: int, call: MiddlewareCall, work: Proceed) -> Any:
        if index == len(self._functions):
            return await work()
        proceeded = False

        def proceed() -> Awaitable[Any]:
            nonlocal proceeded
            if proceeded:
                raise ContextMisuse(
                    f"the middleware {located(self._functions[index])} called proceed() twice around {call.kind} "
                    f"{call.name!r}: what is to be tried again is a matter of retries= and max_attempts="
                )
            proceeded = True
            return self._call(index + 1, call, work)

        return await self._functions[index](call, proceed)
