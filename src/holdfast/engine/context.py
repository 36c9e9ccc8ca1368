"""The context of a workflow: what a durable function is given to make its steps durable."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from ..errors import ContextMisuse
from ..model.backoff import Backoff
from ..model.names import check_name
from ..model.records import RUN_ITSELF, StepRunning
from .calls import StepCall, call_line, step_key
from .execution import Execution
from .scope import current_call
from .signature import shape_of
from .step import NO_OPTIONS, StepFunction, StepOptions, step_options

P = ParamSpec("P")
T = TypeVar("T")


class Noted:
    """Nothing to wait for; may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_NOTED = Noted()


class ContextBase:
    """What the contexts for ``async def`` and for ``def`` have in common: positions, facts about the run."""

    def __init__(self, execution: Execution, branch: str = "") -> None:
        self._execution = execution
        self._branch = branch
        self._position = 0
        self._draws = 0

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._execution.run_id

    @property
    def attempt(self) -> int:
        """Which try of the code this is, from 1. A worker's death or a wait does not count."""
        return self._execution.claimed.attempt

    @property
    def workflow(self) -> str:
        """The name of this workflow."""
        return self._execution.workflow.name

    @property
    def step_key(self) -> str:
        """Inside a step: its key, the same on every try. Outside: the key of the step called next."""
        call = current_call.get()
        if call is not None and call._execution is self._execution:
            return call.step_key
        return step_key(self._execution.run_id, self._branch, self._position)

    def now(self) -> datetime:
        """The database's time of the newest record seen here; the same on every replay."""
        execution = self._execution
        milliseconds = execution.newest.get(self._branch) or execution.claimed.started_at
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    def random(self) -> float:
        """A number from 0 up to 1; the same on every replay."""
        return int.from_bytes(self._draw()[:7], "big") / 2**56

    def uuid(self) -> uuid.UUID:
        """A random UUID; the same on every replay."""
        return uuid.UUID(bytes=self._draw()[:16], version=4)

    def progress(self, detail: str, data: Any = None) -> Noted:
        """Say how far the work is, for whoever watches. Fire and forget; the latest word wins."""
        execution = self._execution
        if execution.closed is not None:
            raise execution.closed
        payloads = execution.recorder.payloads
        text = str(detail)[:1000].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        encoded = None if data is None else payloads.encode(data, "the data of ctx.progress")
        call = current_call.get()
        if call is not None and call._execution is execution:
            call.note_progress(text, encoded, 0)
        else:
            execution.recorder.note(
                StepRunning(
                    execution.run_id,
                    execution.claim,
                    self._branch,
                    RUN_ITSELF,
                    self.workflow,
                    text,
                    encoded,
                    0,
                    payloads.format,
                )
            )
        return _NOTED

    def _draw(self) -> bytes:
        call = current_call.get()
        if call is not None and call._execution is self._execution:
            # A step draws for itself: a replay does not call it, so it must not move what the workflow draws.
            call.draws += 1
            seed = f"{call.step_key}/step/{call.draws}"
        else:
            self._draws += 1
            seed = f"{self._execution.run_id}/{self._branch}/{self._position}/{self._draws}"
        return hashlib.blake2b(seed.encode(), digest_size=16).digest()

    # -- making calls ------------------------------------------------------------------------------------------

    def _make_call(
        self, options: StepOptions, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], line: str
    ) -> StepCall[Any]:
        execution = self._execution
        call = current_call.get()
        if call is not None and call._execution is execution and execution.closed is None:
            raise ContextMisuse(
                f"step {call.name!r} called the context from inside; a step is one piece of work with one record. "
                "Call ctx.step from the workflow, one step after the other"
            )
        execution.check_caller()
        label = options.name
        if isinstance(target, str):
            if not args:
                raise ContextMisuse(f"ctx.step({target!r}, …) names a step but gives no function to call")
            label, target, args = target, args[0], args[1:]
        if isinstance(target, StepFunction):
            shape, function = target.shape, target.function
            options = target.options if options is NO_OPTIONS else options.over(target.options)
        elif callable(target):
            shape, function = shape_of(target), target
        else:
            raise ContextMisuse(f"ctx.step takes a function, or a label and a function, not {target!r}")
        name = label or shape.name
        if label is not None:
            check_name(label, "the label of a step", execution.recorder.settings.max_name)
        elif name == "<lambda>":
            raise ContextMisuse('a lambda has no name to be recorded under; write ctx.step("a label", lambda: …)')
        position = self._position
        self._position = position + 1
        return StepCall(execution, self._branch, position, name, function, shape, options, line, args, kwargs)


class Context(ContextBase):
    """The context of an ``async def`` workflow."""

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(
        self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepCall[T]: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> StepCall[Any]:
        """Do a piece of work once: its result is recorded, and a replay gets it from the record.

        ``await ctx.step(charge, order)``, or with a label: ``await ctx.step("add tax", add_tax, order, 1.2)``.
        """
        return self._make_call(NO_OPTIONS, target, args, kwargs, call_line(2))

    def options(
        self,
        *,
        name: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | timedelta | None = None,
        record_arguments: bool | None = None,
    ) -> OptionedContext:
        """Options for one call, because every other argument belongs to the function:
        ``await ctx.options(retries=3).step(charge, order)``."""
        return OptionedContext(self, step_options(name, retries, backoff, timeout, record_arguments))


class OptionedContext:
    """``ctx.options(…)``: the same calls with options."""

    def __init__(self, context: Context, options: StepOptions) -> None:
        self._context = context
        self._options = options

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(
        self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepCall[T]: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> StepCall[Any]:
        """As ``ctx.step``, with the options given."""
        return self._context._make_call(self._options, target, args, kwargs, call_line(2))


class SyncContext(ContextBase):
    """The context of a plain ``def`` workflow, which runs in a thread: the same calls, without ``await``."""

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
    ) -> OptionedSyncContext:
        """Options for one call: ``ctx.options(retries=3).step(charge, order)``."""
        return OptionedSyncContext(self, step_options(name, retries, backoff, timeout, record_arguments))

    def _wait(self, call: StepCall[Any]) -> Any:
        execution = self._execution

        async def perform() -> Any:
            execution.performing = asyncio.current_task()
            try:
                return await call
            finally:
                execution.performing = None

        return asyncio.run_coroutine_threadsafe(perform(), self._loop).result()


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
