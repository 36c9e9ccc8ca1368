"""The context of a plain ``def`` workflow, which runs in a thread: the same calls, without ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import (
    Any,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)  # fmt: skip

from ..model.backoff import Backoff
from .children import ChildRun
from .context_base import ContextBase
from .durable_call import call_line
from .execution import Execution
from .options import StartOptions
from .step import NO_OPTIONS, StepOptions, step_options
from .step_call import EXITS, exited
from .workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
A = TypeVar("A")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


class SyncContext(ContextBase):
    """The context of a plain ``def`` workflow, which runs in a thread: the same calls, without ``await``."""

    _written_with = "def"

    def __init__(self, execution: Execution, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(execution)
        self._loop = loop

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do a piece of work once; see ``Context.step``."""
        return self._wait(self._make_call(NO_OPTIONS, target, args, kwargs, call_line(2)))

    def options(
        self,
        *,
        name: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | timedelta | None = None,
        record_arguments: bool | None = None,
        compensate: Callable[..., Any] | None = None,
    ) -> OptionedSyncContext:
        """Options for one call: ``ctx.options(retries=3).step(charge, order)``."""
        return OptionedSyncContext(self, step_options(name, retries, backoff, timeout, record_arguments, compensate))

    def sleep(self, duration: float | timedelta) -> None:
        """Sleep for so many seconds, or a timedelta; see ``Context.sleep``."""
        self._wait(self._make_sleep(duration, call_line(2)))

    def sleep_until(self, when: datetime) -> None:
        """Sleep until a point in time (with a time zone)."""
        self._wait(self._make_sleep_until(when, call_line(2)))

    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: float | timedelta | None = None) -> T: ...
    @overload
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> Any: ...
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> Any:
        """Wait for a signal; see ``Context.wait_signal``."""
        return self._wait(self._make_signal(name, type, timeout, call_line(2)))

    @overload
    def wait_until(
        self,
        check: Callable[..., Awaitable[T | None]],
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> T: ...
    @overload
    def wait_until(
        self,
        check: Callable[..., T | None],
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> T: ...
    def wait_until(
        self,
        check: Callable[..., Any],
        *args: Any,
        every: float | timedelta = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Wait until a check answers with something true; see ``Context.wait_until``."""
        return self._wait(self._make_until(NO_OPTIONS, check, args, every, timeout, call_line(2)))

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartOptions]) -> SyncChildRun[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> SyncChildRun[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> SyncChildRun[Any]:
        """Start a child run; see ``Context.start``."""
        return SyncChildRun(self._wait(self._make_start(workflow, input, options, call_line(2))), self)

    @overload
    def call(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartOptions]) -> O: ...
    @overload
    def call(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> Any: ...
    def call(self, workflow: Any, input: Any = None, **options: Any) -> Any:
        """Start a child run and wait for its result; see ``Context.call``."""
        return self._wait(self._make_child_call(workflow, input, options, call_line(2)))

    def transaction(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Rows and record in one commit; see ``Context.transaction``."""
        return self._wait(self._make_transaction(NO_OPTIONS, target, args, kwargs, call_line(2)))

    def set(self, key: str, value: Any) -> None:
        """Let others read a value; see ``Context.set``."""
        self._wait(self._make_set(key, value))

    def _wait(self, call: Awaitable[Any]) -> Any:
        execution = self._execution

        async def perform() -> Any:
            execution.performing = asyncio.current_task()
            try:
                return await call
            except EXITS as error:
                raise exited(error) from None
            finally:
                execution.performing = None

        return asyncio.run_coroutine_threadsafe(perform(), self._loop).result()


class SyncChildRun(Generic[O]):
    """The handle of a child in a plain ``def`` workflow."""

    def __init__(self, child: ChildRun[O], context: SyncContext) -> None:
        self._child = child
        self._context = context
        self.id = child.id

    def __repr__(self) -> str:
        return f"SyncChildRun({self.id!r})"

    def result(self) -> O:
        """Its result; ChildFailed if it has none."""
        result: O = self._context._wait(self._child.result())
        return result


class OptionedSyncContext:
    """``ctx.options(…)`` of a plain ``def`` workflow."""

    def __init__(self, context: SyncContext, options: StepOptions) -> None:
        self._context = context
        self._options = options

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As ``ctx.step``, with the options given."""
        return self._context._wait(self._context._make_call(self._options, target, args, kwargs, call_line(2)))

    def transaction(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As ``ctx.transaction``, with the options given."""
        return self._context._wait(self._context._make_transaction(self._options, target, args, kwargs, call_line(2)))

    @overload
    def wait_until(
        self,
        check: Callable[..., Awaitable[T | None]],
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> T: ...
    @overload
    def wait_until(
        self,
        check: Callable[..., T | None],
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> T: ...
    def wait_until(
        self,
        check: Callable[..., Any],
        *args: Any,
        every: float | timedelta = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
    ) -> Any:
        """As ``ctx.wait_until``, with the options given (those of each check)."""
        context = self._context
        return context._wait(context._make_until(self._options, check, args, every, timeout, call_line(2)))
