"""The context of an ``async def`` workflow: the calls that make steps durable."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
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
)

from ..errors import ContextMisuse, SignalTimeout
from ..model.backoff import Again, Backoff, Done
from .attributes import AttributesCall
from .call import DurableCall, UnplacedCall, call_line, refuse_in_step
from .callbacks import CallbackCall
from .children import ChildCall, StartCall, StartManyCall
from .concurrency import BranchCall, BranchGroup, FirstCall, check_runners, to_await
from .context_base import ContextBase, check_count
from .events import EventCall
from .execution import Execution
from .function_spec import name_of
from .history import Cursor
from .maps import GatherCall, Many, MapCall, Results, Share, check_items, gather, goal_of
from .options import CheckKeywords, OwnChildKeywords, RemoteKeywords, RemoteOptions, shows_options
from .questions import Question, QuestionCall
from .remote_step import RemoteCall
from .signals import SendCall, SignalCall, SignalCount
from .step import StepCall
from .timers import SleepCall, UntilCall
from .transaction import TransactionCall
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
    def take_signals(self, name: str, *, type: type[T]) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def take_signals(self, name: str, *, type: Any = Any) -> Coroutine[Any, Any, list[Any]]: ...
    def take_signals(self, name: str, *, type: Any = Any) -> Coroutine[Any, Any, list[Any]]:
        """Take all signals of a name that are in the mailbox, without waiting: the oldest first, at most a thousand.
        What does not fit ``type`` stays."""
        return self._take_signals(self._make_count(name, type, call_line(2)), call_line(2))

    async def _take_signals(self, counted: SignalCount, where: str) -> list[Any]:
        taken = list[Any]()
        try:
            for _ in range(await counted):
                with contextlib.suppress(SignalTimeout):  # another branch took it before a crash
                    taken.append(await self._make_taking(counted, where))
        finally:
            counted.give_back()
        return taken

    def signal(self, run_id: str, name: str, value: Any = None) -> SendCall:
        """Send a signal to another run, exactly once despite crashes. StepFailed if that run has ended, is missing, or
        waits for a value of another type."""
        return self._make_send(run_id, name, value, call_line(2))

    def set_attributes(self, **attributes: Any) -> AttributesCall:
        """Set attributes by which the run is found (``app.runs(attributes=…)``), once: texts, numbers, bools, and
        datetimes with a time zone. Those of the same names are replaced."""
        return self._make_attributes(attributes, call_line(2))

    @overload
    def wait_question(
        self, name: str, *, type: type[T], timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[T]]: ...
    @overload
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[Any]]: ...
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[Any]]:
        """Wait for ``run.ask(name, value)``, and answer by ``await question.answer(…)`` or ``question.refuse(…)``. One
        that was asked before counts. QuestionTimeout after ``timeout``."""
        return self._make_question(name, type, timeout, call_line(2))

    @overload
    def callback(
        self,
        name: str,
        *,
        type: type[T],
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[T]: ...
    @overload
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[Any]: ...
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[Any]:
        """A token for someone outside: ``callback = await ctx.callback("payment")``, give ``callback.token`` to them,
        then ``await callback.result()``. Who has the token ends it by ``app.complete(token, value)`` or ``app.fail``.
        ``timeout`` counts from here; with a ``heartbeat`` no longer than that may pass between two ``app.beat``."""
        return self._make_callback(name, type, timeout, heartbeat, call_line(2))

    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: type[T],
        timeout: float | timedelta | None = None,
    ) -> EventCall[T]: ...  # fmt: skip
    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> EventCall[Any]: ...  # fmt: skip
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> EventCall[Any]:  # fmt: skip
        """Wait for an event that ``app.publish`` publishes: the next of its name (and key) that the run has not taken,
        since its start, or from now on. EventTimeout after ``timeout``."""
        return self._make_event(name, key, since, type, timeout, call_line(2))

    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[Done[T] | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[T | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[Done[T] | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[T | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    def wait_until(
        self,
        target: Any,
        /,
        *args: Any,
        every: float | timedelta | Backoff = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
        max_checks: int | None = None,
    ) -> UntilCall[Any]:
        """Wait until ``check(*args)`` answers with something true, and get that. ``Done(value)`` ends it with any
        value; ``Again(state)`` gives the next check its first argument. The slot is free between two checks, ``every``
        so many seconds or as a Backoff grows; a resume or a signal makes the next check due at once. WaitTimeout after
        ``timeout``, or after ``max_checks`` checks."""
        return self._make_until(target, args, every, timeout, max_checks, call_line(2))

    # -- children ------------------------------------------------------------------------------------------------

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[OwnChildKeywords]) -> StartCall[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[OwnChildKeywords]) -> StartCall[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> StartCall[Any]:
        """Start a child run, exactly once despite crashes; ``await child.result()`` waits for it."""
        return self._make_start(workflow, input, options, call_line(2))

    @overload
    def start_many(
        self, workflow: Workflow[I, O], inputs: Iterable[I], **options: Unpack[OwnChildKeywords]
    ) -> StartManyCall[O]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Iterable[Any], **options: Unpack[OwnChildKeywords]
    ) -> StartManyCall[Any]: ...
    def start_many(self, workflow: Any, inputs: Iterable[Any], **options: Any) -> StartManyCall[Any]:
        """Start a child for each input, with one record: ``children = await ctx.start_many(mail, people)``."""
        return self._make_start_many(workflow, inputs, options, call_line(2))

    @overload
    def call(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[OwnChildKeywords]) -> ChildCall[O]: ...
    @overload
    def call(self, workflow: str, input: Any = None, **options: Unpack[OwnChildKeywords]) -> ChildCall[Any]: ...
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
        name = self._check_named("ctx.branch")
        execution = self._execution
        return BranchCall(
            execution,
            self._cursor,
            name or name_of(function),
            lambda cursor: to_await(function, function(Context(execution, cursor), *args, **kwargs)),
            call_line(2),
        )

    def branches(self) -> Branches:
        """A place here for branches that other tasks begin, each under a key: for tools that a framework calls side by
        side, in tasks of its own. ``place = ctx.branches()``, then in any task of the run
        ``await place.branch(call_id, run_tool, call)`` with ``async def run_tool(ctx, call)``."""
        self._check("ctx.branches")
        return Branches(BranchGroup(self._execution, self._cursor, call_line(2)), self._execution, self._cursor)

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
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        min_successful: Share | None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        max_failures: Share | None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    def map(
        self,
        function: Callable[[Context, Any], Awaitable[Any]],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Any]:
        """A branch for each item, at most ``limit`` at once; the results in the order of the items. All come
        to their end before an error is raised; ``return_errors=True`` gives the errors among the results instead. It
        ends with ``min_successful`` results, or by MapFailed with more errors than ``max_failures``: an int is a count,
        a float below 1 a share of the items."""
        name = self._check_named("ctx.map")
        if limit is not None:
            check_count(limit, "the limit of ctx.map")
        given = list(items)
        goal = goal_of("ctx.map", len(given), min_successful, max_failures)
        execution = self._execution
        return MapCall(
            execution,
            self._cursor,
            name or name_of(function),
            lambda cursor, item: to_await(function, function(Context(execution, cursor), item)),
            given,
            Many(limit, return_errors, goal),
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
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        limit: int | None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        min_successful: Share | None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        max_failures: Share | None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    def gather(
        self,
        *calls: Any,
        limit: int | None = None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> UnplacedCall[Any] | DurableCall[Any]:
        """All of these at once, their results in the order given. All come to their end before an error is raised;
        ``return_errors=True`` gives the errors among the results instead. ``limit``, ``min_successful`` and
        ``max_failures`` are those of ``ctx.map``."""
        self._refuse_options("ctx.gather")
        execution, cursor = self._execution, self._cursor
        execution.check_caller(cursor)
        goal = goal_of("ctx.gather", len(calls), min_successful, max_failures)
        if limit is None and goal is None:
            perform = lambda: gather(execution, cursor, calls, return_errors)
            return UnplacedCall(execution, cursor, "ctx.gather(…)", perform)
        if limit is not None:
            check_count(limit, "the limit of ctx.gather")
        check_items(calls)
        return GatherCall(execution, cursor, calls, Many(limit, return_errors, goal), call_line(2))

    def first(self, *unnamed: Never, **calls: DurableCall[Any]) -> FirstCall:
        """A race: ``winner, value = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(3600))``. Who won is
        recorded; the others are given up, and a signal they waited for stays in the mailbox."""
        name = self._check_named("ctx.first")
        check_runners(unnamed, calls)
        return FirstCall(self._execution, self._cursor, calls, call_line(2), name)

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


class Branches:
    """What ``ctx.branches`` gives: begins branches in any task of the run, and replays them by their keys."""

    def __init__(self, group: BranchGroup, execution: Execution, cursor: Cursor) -> None:
        self._group = group
        self._execution = execution
        self._cursor = cursor

    def branch(
        self,
        key: str,
        function: Callable[Concatenate[Context, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> UnplacedCall[T]:
        """A branch of this place: ``function(ctx, *args)`` with a context of its own, found again by its key. The keys
        must be the same on every replay, and differ from each other; the same key again begins another branch, in the
        order of these calls."""
        execution = self._execution
        refuse_in_step("Branches.branch", execution)
        if not isinstance(key, str) or not key:
            raise ContextMisuse(f"the key of a branch must be a text that is not empty, not {key!r}")
        if execution.closed is not None:
            raise execution.closed
        branch = self._group.name_for(key)

        def body(cursor: Cursor) -> Awaitable[Any]:
            return to_await(function, function(Context(execution, cursor), *args, **kwargs))

        perform = lambda: self._group.perform(branch, body)
        return UnplacedCall(execution, self._cursor, f"the branch {key!r} of ctx.branches()", perform)
