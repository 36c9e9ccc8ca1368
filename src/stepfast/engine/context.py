"""The context of an ``async def`` workflow: what a durable function is given to make its steps durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import (
    Any,
    Concatenate,
    Literal,
    Never,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)  # fmt: skip

from ..errors import ContextMisuse
from .branches import BranchCall, Many, MapCall, gather, to_await
from .children import ChildCall, StartCall
from .context_base import ContextBase
from .durable_call import DurableCall, call_line
from .first import FirstCall, check_runners
from .options import ChildKeywords, RemoteKeywords, RemoteOptions, shows_options
from .polling import UntilCall
from .remote_call import RemoteCall
from .signals import SignalCall
from .signature import name_of
from .sleeping import SleepCall
from .step_call import StepCall
from .transaction import TransactionCall
from .unplaced import UnplacedCall
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


@shows_options
class Context(ContextBase):
    """The context of an ``async def`` workflow."""

    _written_with = "async def"

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
        return self._make_call(target, args, kwargs, call_line(2))

    # -- waiting -------------------------------------------------------------------------------------------------

    def sleep(self, duration: float | timedelta) -> SleepCall:
        """Sleep for so many seconds, or a timedelta. The time to wake is decided once; no worker is held until then."""
        return self._make_sleep(duration, call_line(2))

    def sleep_until(self, when: datetime) -> SleepCall:
        """Sleep until a point in time (with a time zone)."""
        return self._make_sleep_until(when, call_line(2))

    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: float | timedelta | None = None) -> SignalCall[T]: ...
    @overload
    def wait_signal(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> SignalCall[Any]: ...
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> SignalCall[Any]:
        """Wait for ``run.signal(name, value)``; one that was sent before counts. SignalTimeout after ``timeout``."""
        return self._make_signal(name, type, timeout, call_line(2))

    @overload
    def wait_until(
        self,
        check: Callable[..., Awaitable[T | None]],
        /,
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        check: Callable[..., T | None],
        /,
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[T | None]],
        /,
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., T | None],
        /,
        *args: Any,
        every: float | timedelta = ...,
        timeout: float | timedelta | None = None,
    ) -> UntilCall[T]: ...
    def wait_until(
        self,
        target: Any,
        /,
        *args: Any,
        every: float | timedelta = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
    ) -> UntilCall[Any]:
        """Wait until ``check(*args)`` answers with something true, and get that answer. The slot is free between two
        checks; a resume or a signal makes the next check due at once. WaitTimeout after ``timeout``."""
        return self._make_until(target, args, every, timeout, call_line(2))

    # -- children ------------------------------------------------------------------------------------------------

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[ChildKeywords]) -> StartCall[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[ChildKeywords]) -> StartCall[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> StartCall[Any]:
        """Start a child run, exactly once whatever crashes; ``await child.result()`` waits for it."""
        return self._make_start(workflow, input, options, call_line(2))

    @overload
    def call(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[ChildKeywords]) -> ChildCall[O]: ...
    @overload
    def call(self, workflow: str, input: Any = None, **options: Unpack[ChildKeywords]) -> ChildCall[Any]: ...
    def call(self, workflow: Any, input: Any = None, **options: Any) -> ChildCall[Any]:
        """Start a child run and wait for its result. ChildFailed if it has none."""
        return self._make_child_call(workflow, input, options, call_line(2))

    # -- remote steps --------------------------------------------------------------------------------------------

    @overload
    def remote(
        self, name: str, input: Any = None, *, type: type[T], **options: Unpack[RemoteOptions]
    ) -> RemoteCall[T]: ...
    @overload
    def remote(self, name: str, input: Any = None, **options: Unpack[RemoteKeywords]) -> RemoteCall[Any]: ...
    def remote(self, name: str, input: Any = None, **options: Any) -> RemoteCall[Any]:
        """A step that a worker elsewhere serves, in any language: ``await ctx.remote("pipeline.extract", {…})``. No
        worker is held while it is waited for. RemoteStepError if it fails for good."""
        return self._make_remote(name, input, cast(RemoteKeywords, options), call_line(2))

    # -- branches ------------------------------------------------------------------------------------------------

    def branch(
        self, function: Callable[Concatenate[Context, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BranchCall[T]:
        """A branch beside this one: ``async def g(ctx, order)`` with steps of its own."""
        self._check("ctx.branch")
        execution = self._execution
        return BranchCall(
            execution,
            self._cursor,
            name_of(function),
            lambda cursor: to_await(function, function(Context(execution, cursor), *args, **kwargs)),
            call_line(2),
        )

    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        return_errors: Literal[False] = False,
    ) -> MapCall[T]: ...
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        return_errors: bool,
    ) -> MapCall[T | Exception]: ...
    def map(
        self,
        function: Callable[[Context, Any], Awaitable[Any]],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        return_errors: bool = False,
    ) -> MapCall[Any]:
        """A branch for each item, at most ``limit`` at once; the results in the order of the items. All come
        to their end before an error is raised; ``return_errors=True`` gives the errors among the results instead."""
        self._check("ctx.map")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ContextMisuse(f"the limit of ctx.map must be a whole number of at least 1, not {limit!r}")
        execution = self._execution
        return MapCall(
            execution,
            self._cursor,
            name_of(function),
            lambda cursor, item: to_await(function, function(Context(execution, cursor), item)),
            Many(list(items), limit, return_errors),
            call_line(2),
        )

    @overload
    def gather(self, a: Awaitable[T1], /) -> UnplacedCall[tuple[T1]]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def gather(self, a: Awaitable[T1], b: Awaitable[T2], /) -> UnplacedCall[tuple[T1, T2]]: ...
    @overload
    def gather(self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> UnplacedCall[tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], d: Awaitable[T4], /
    ) -> UnplacedCall[tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(self, *calls: Awaitable[T]) -> UnplacedCall[list[T]]: ...
    @overload
    def gather(self, *calls: Awaitable[T], return_errors: bool) -> UnplacedCall[list[T | Exception]]: ...
    def gather(self, *calls: Awaitable[Any], return_errors: bool = False) -> UnplacedCall[Any]:
        """All of these at once, their results in the order given. All come to their end before an error is raised;
        ``return_errors=True`` gives the errors among the results instead."""
        self._refuse_options("ctx.gather")
        execution, cursor = self._execution, self._cursor
        execution.check_caller(cursor)
        return UnplacedCall(execution, cursor, "ctx.gather(…)", lambda: gather(execution, cursor, calls, return_errors))

    def first(self, *unnamed: Never, **calls: DurableCall[Any]) -> FirstCall:
        """A race: ``winner, value = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(3600))``. Who won is
        recorded; the others are given up, and a signal they waited for stays in the mailbox."""
        self._check("ctx.first")
        check_runners(unnamed, calls)
        return FirstCall(self._execution, self._cursor, calls, call_line(2))

    # -- data ----------------------------------------------------------------------------------------------------

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    def transaction(self, target: Any, /, *args: Any, **kwargs: Any) -> TransactionCall[Any]:
        """``await ctx.transaction(write_rows, order)`` calls ``write_rows(connection, order)`` inside a transaction
        that also holds the record of its result: both happen, once, or neither."""
        return self._make_transaction(target, args, kwargs, call_line(2))

    def set(self, key: str, value: Any) -> UnplacedCall[None]:
        """Let others read a value: ``await run.get(key)``. Committed when it was awaited; the latest wins."""
        return self._make_set(key, value)
