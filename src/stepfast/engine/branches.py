"""Several branches in one run. Each branch counts its own positions, so that all replay the same whatever finished
first; and whoever waits for several gets them in the order of the code, not of the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..cancellation import seen
from ..errors import ContextMisuse, HistoryEnded
from .children import ResultCall
from .clock import TURNS
from .cursor import Cursor, sub_branch
from .durable_call import DurableCall
from .remote_call import RemoteCall
from .scope import current_cursor
from .signature import name_of
from .step_call import EXITS, being_cancelled, exited
from .unplaced import UnplacedCall

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")
Body = Callable[[Cursor], Awaitable[Any]]


class BranchCall(DurableCall[T]):
    """``ctx.branch``: a function with a context of its own. It leaves no record itself; its steps do."""

    __slots__ = ("_body",)

    def __init__(self, execution: Execution, cursor: Cursor, name: str, body: Body, where: str) -> None:
        self._body = body
        super().__init__(execution, cursor, "branch", name, where)

    async def _perform(self) -> T:
        execution, cursor = self._execution, Cursor(sub_branch(self.branch, self.position), outer=self._cursor)
        try:
            (outcome,) = await finish_all(execution, self._cursor, [run_branch(execution, cursor, self._body)])
        except asyncio.CancelledError:
            self.give_up()
            raise
        if isinstance(outcome, BaseException):
            execution.was_given([outcome], self._cursor)
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def give_up(self) -> None:
        """Stop the branch, and all that belongs to it: it lost a race, or its time was up."""
        super().give_up()
        self._execution.give_up(sub_branch(self.branch, self.position))


class Many(NamedTuple):
    """What ``ctx.map`` was given beside its function."""

    items: list[Any]
    limit: int | None
    return_errors: bool


class MapCall(DurableCall[list[T]]):
    """``ctx.map``: a branch for each item, at most ``limit`` of them at once."""

    __slots__ = ("_body", "_items", "_limit", "_return_errors")

    def __init__(
        self,
        execution: Execution,
        cursor: Cursor,
        name: str,
        body: Callable[[Cursor, Any], Awaitable[Any]],
        many: Many,
        where: str,
    ) -> None:
        self._body = body
        self._items, self._limit, self._return_errors = many
        super().__init__(execution, cursor, "map", name, where)

    async def _perform(self) -> list[T]:
        execution, results = self._execution, [None] * len(self._items)
        todo = iter(enumerate(self._items))
        width = min(len(self._items), self._limit or len(self._items))
        try:
            ends = await finish_all(execution, self._cursor, [self._work(todo, results) for _ in range(width)])
        except asyncio.CancelledError:
            self.give_up()
            raise
        unwinding = [end for end in ends if isinstance(end, BaseException)]
        if unwinding:
            raise unwinding[0]
        return given(execution, self._cursor, results, self._return_errors)

    def give_up(self) -> None:
        """Stop the map, and the branches of all its items: it lost a race, or its time was up."""
        super().give_up()
        self._execution.give_up(sub_branch(self.branch, self.position))

    async def _work(self, todo: Iterator[tuple[int, Any]], results: list[Any]) -> None:
        """One of those who take item after item. All items are done even if one fails: which of them had begun by then
        depends on the clock, and a replay must find the same."""
        stopped: HistoryEnded | None = None
        for index, item in todo:
            cursor = Cursor(sub_branch(self.branch, self.position, index), outer=self._cursor)
            try:
                results[index] = await run_branch(self._execution, cursor, lambda cursor: self._body(cursor, item))  # noqa: B023
            except Exception as error:
                results[index] = Failed(error)
            except HistoryEnded as error:
                stopped = error
        if stopped is not None:
            raise stopped


class Failed:
    """An error that stands among results."""

    def __init__(self, error: Exception) -> None:
        self.error = error


async def gather(
    execution: Execution, cursor: Cursor, calls: tuple[Awaitable[Any], ...], return_errors: bool
) -> list[Any]:
    """``ctx.gather``: all of them, in the order they were given. All come to their end before an error is raised."""
    group = object()
    for call in calls:
        if isinstance(call, (ResultCall, RemoteCall)):
            call.group = group
    try:
        outcomes = await finish_all(execution, cursor, [as_coroutine(call) for call in calls])
    except asyncio.CancelledError:
        for call in calls:
            if isinstance(call, (DurableCall, UnplacedCall)):
                call.give_up()  # it may not have begun
        raise
    unwinding = [end for end in outcomes if isinstance(end, BaseException) and not isinstance(end, Exception)]
    if unwinding:
        raise unwinding[0]
    results = [Failed(end) if isinstance(end, Exception) else end for end in outcomes]
    return given(execution, cursor, results, return_errors)


def given(execution: Execution, cursor: Cursor, results: list[Any], return_errors: bool) -> list[Any]:
    """The results; the first error in the order of the code is raised, unless errors are wanted as results."""
    failed = [result.error for result in results if isinstance(result, Failed)]
    if failed:
        execution.was_given(failed, cursor, raised=not return_errors)
    if failed and not return_errors:
        raise failed[0]
    return [result.error if isinstance(result, Failed) else result for result in results]


async def run_branch(execution: Execution, cursor: Cursor, body: Body) -> Any:
    """The code of a branch, counted as at work whenever none of its calls is."""
    cursor.owner = asyncio.current_task()
    current_cursor.set(cursor)
    if execution.closed is not None:
        raise execution.closed
    execution.busy += 1
    failed = True
    try:
        result = await body(cursor)
        failed = False
        return result
    except EXITS as error:
        raise exited(error) from None
    except asyncio.CancelledError:
        if execution.closed is None and not being_cancelled():
            raise RuntimeError("the branch was cancelled by something it awaited") from None
        raise
    except Exception as error:
        execution.trail.failed(cursor.branch, error)
        raise
    finally:
        if execution.has_given_up:
            execution.trail.branch_ended(cursor.branch, failed)
        cursor.owner = None
        execution.busy -= 1
        execution.check_rest_soon()


class Party:
    """The calls that a branch waits for: all of them, or only so many. The one that ends the wait hands over before it
    is gone: until the branch goes on, the run must not look as if it only waited."""

    def __init__(self, execution: Execution, left: int) -> None:
        self._execution = execution
        self._left = left
        self._handed_over = False

    def ended(self) -> None:
        """One of those whom the branch waits for is done."""
        self._left -= 1
        if self._left == 0:
            self._handed_over = True
            self._execution.busy += 1

    def over(self) -> None:
        """The branch goes on, and is counted itself."""
        self._left = 0
        if self._handed_over:
            self._execution.busy -= 1
            self._execution.check_rest_soon()


def spawn(execution: Execution, work: Coroutine[Any, Any, T], party: Party) -> asyncio.Task[T]:
    """A task that ends with its run. It is at work from now on, not only when the loop comes to it: until then another
    that waits must not take the run for one in which all wait."""

    async def run() -> T:
        try:
            return await work
        finally:
            party.ended()

    execution.busy += 1
    task: asyncio.Task[T] = execution.clock.task(run())
    task.add_done_callback(lambda _: work.close())  # if it was cancelled before it began
    execution.recorder.loop.call_soon(_has_begun, execution)  # right after the task's first step
    execution.tasks.add(task)
    return task


def _has_begun(execution: Execution) -> None:
    execution.busy -= 1
    execution.check_rest_soon()


async def finish_all(execution: Execution, cursor: Cursor, works: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Do all of them at once: their results or errors, in order."""
    party = Party(execution, len(works))
    tasks = [spawn(execution, work, party) for work in works]
    execution.wait_for_others(cursor)
    try:
        execution.stop_if_late()
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await _stop_all(execution, tasks)
        if any(task.cancelled() for task in tasks) or not tasks:
            raise
        # All that was waited for is on record: a timeout of the code around it came too late, and a replay would not
        # see it. The next call is stopped.
        execution.tasks.was_cancelled_late()
    finally:
        execution.go_on(cursor)
        party.over()
    outcomes = [_outcome(task) for task in tasks]
    if execution.closed is not None:
        raise execution.closed
    return outcomes


async def _stop_all(execution: Execution, tasks: list[asyncio.Task[Any]]) -> None:
    """Stop them; each records that it was cancelled, unless it has its outcome. What only reads records comes first: in
    a replay that was held up a timeout of the code's own must not be quicker than what is recorded."""
    try:
        if execution.history.records and execution.closed is None:
            await _read_on(execution, tasks)
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(seen)  # now, because the wait below may be cancelled once more
    if execution.closed is not None:
        raise execution.closed from None
    if tasks:
        await asyncio.wait(tasks)


async def _read_on(execution: Execution, tasks: list[asyncio.Task[Any]]) -> None:
    """Until nothing moves any more for a few turns of the loop."""
    last = None
    while (now := (sum(task.done() for task in tasks), len(execution.taken), execution.seq)) != last:
        last = now
        for _ in range(TURNS):
            await asyncio.sleep(0)


def _outcome(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


async def as_coroutine(call: Awaitable[T]) -> T:
    """Any awaitable as the body of a task."""
    try:
        return await call
    except EXITS as error:
        raise exited(error) from None


def to_await(function: Callable[..., Any], work: Any) -> Awaitable[Any]:
    """What the function of a branch gave, which must be something to wait for."""
    if not isinstance(work, Awaitable):
        raise ContextMisuse(
            f"{name_of(function)!r} is no async def: it gave a {type(work).__name__} at once. ctx.branch and ctx.map "
            "take an async def, with a context of its own; plain work belongs into ctx.step"
        )
    return work
