"""Maps and gathers: items side by side, at most so many at once, until all have ended or enough is known of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from ..errors import ContextMisuse, HistoryEnded, MapFailed, NonDeterminismError, RecordedError, message_of
from ..model import status
from ..model.backoff import is_retryable
from ..model.records import RUN_ITSELF, StepRecord, StepRunning
from ..settings import FORMAT
from .call import DurableCall, UnplacedCall
from .callbacks import CallbackResultCall
from .children import ResultCall
from .concurrency import as_coroutine, finish_all, run_branch, show_stopped
from .history import GATHER, Cursor, Ended, sub_branch
from .host import Timer
from .outcomes import type_name
from .remote_step import RemoteCall

if TYPE_CHECKING:
    from .execution import Execution


_TELL_EVERY, _TELL_FIRST = 1.0, 0.25
"""Seconds between two words of how far a map is; and to the first, in a run that was claimed before."""

T = TypeVar("T")

Share = int | float
"""A number of items: an int is a count, a float below 1 a share of them."""


class Results(list[T | Exception | None], Generic[T]):
    """What the items of a map or gather came to, in their order: a result, an error, or None for one that was not
    run."""

    def __init__(self, ends: Sequence[Any]) -> None:
        super().__init__(end.error if isinstance(end, Failed) else None if end is _NOT_RUN else end for end in ends)
        self.succeeded: list[T] = [end for end in ends if end is not _NOT_RUN and not isinstance(end, Failed)]
        """The results of the items that have one."""
        self.failed: list[Exception] = [end.error for end in ends if isinstance(end, Failed)]
        """The errors of those that failed."""
        self.not_run: list[int] = [index for index, end in enumerate(ends) if end is _NOT_RUN]
        """The indexes of those that were stopped, or never begun."""


_NOT_RUN = object()


class Goal(NamedTuple):
    """When a map or gather ends, although some of its items have not."""

    needed: int | None
    """With so many results it ends."""
    tolerated: int | None
    """With more errors than these it fails."""
    said: str
    """How the code says that."""

    def reason(self, succeeded: int, failed: int, total: int) -> str | None:
        """Why no other item is to be begun; None if there is no reason."""
        if self.needed is not None and succeeded >= self.needed:
            return _ENOUGH
        if self.tolerated is not None and failed > self.tolerated:
            return _TOO_MANY
        return _OUT_OF_REACH if self.needed is not None and total - failed < self.needed else None


_ENOUGH, _TOO_MANY, _OUT_OF_REACH = "enough", "too_many_failures", "out_of_reach"


def goal_of(what: str, total: int, min_successful: Share | None, max_failures: Share | None) -> Goal | None:
    """The goal that the code gives, if it gives one, checked and counted in items."""
    if min_successful is None and max_failures is None:
        return None
    needed = None if min_successful is None else _counted(min_successful, total, 1, f"min_successful of {what}")
    tolerated = None if max_failures is None else _counted(max_failures, total, 0, f"max_failures of {what}")
    given = {"min_successful": min_successful, "max_failures": max_failures}
    return Goal(needed, tolerated, ", ".join(f"{name}={value}" for name, value in given.items() if value is not None))


def _counted(value: Share, total: int, least: int, what: str) -> int:
    if type(value) is int and value >= least:
        return value
    if type(value) is float and 0 <= value < 1 and (value or not least):
        share = Fraction(repr(value)) * total  # as it is written: 0.29 of 100 are 29
        return math.ceil(share) if least else math.floor(share)
    raise ContextMisuse(
        f"{what} must be a whole number of at least {least}, or a share of the items as a float below 1, not {value!r}"
    )


class Ending(msgspec.Struct):
    """The record of how a map or gather with a goal came to its end."""

    succeeded: int
    failed: int
    begun: int
    """So many items were begun; the others never were."""
    stopped: list[int]
    """Those of them that were stopped."""
    reason: str | None
    """Why it ended before all items had; None if all had."""
    again: list[tuple[str, int]]
    """What was given up of them, and what they called after: a retry does it again."""


class Many(NamedTuple):
    """How the items of a map or gather are to be done."""

    limit: int | None
    return_errors: bool
    goal: Goal | None = None


class ItemsCall(DurableCall[list[T]]):
    """Items side by side, at most ``limit`` of them at once. With a goal it leaves a record of which of them ended, by
    which a replay finds the same."""

    __slots__ = ("_ends", "_entered", "_goal", "_limit", "_reason", "_return_errors", "_tally", "_workers")

    def __init__(
        self, execution: Execution, cursor: Cursor, kind: str, name: str, total: int, many: Many, where: str
    ) -> None:
        self._limit, self._return_errors, self._goal = many
        self._ends: list[Any] = [_NOT_RUN] * total
        self._entered = 0
        """So many items were begun."""
        self._tally = 0, 0
        """How many have succeeded, and how many failed."""
        self._reason: str | None = None
        self._workers: list[asyncio.Task[Any] | None] = []
        super().__init__(execution, cursor, kind, name, where)

    def _item(self, index: int) -> Awaitable[Any]:
        """Do one of them."""
        raise NotImplementedError

    def _scope(self, indexes: Collection[int]) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        """The branches of items, and the addresses of their calls, as far as they have any."""
        raise NotImplementedError

    def _members(self) -> frozenset[tuple[str, int]]:
        """Addresses: what is recorded at one of them, or in a branch that began there, is of an item."""
        raise NotImplementedError

    def _drop(self, index: int) -> None:
        """Note that an item is not run to its end."""
        raise NotImplementedError

    def _item_ended(self, failed: bool) -> None:
        succeeded, failures = self._tally
        self._tally = succeeded + (not failed), failures + failed

    def _over(self) -> None:
        """No item is under way any more."""

    def _is_decided(self) -> bool:
        return self._reason is not None

    async def _perform(self) -> list[T]:
        execution = self._execution
        self._began = execution.clock.now()
        if self._goal is not None:
            self._reason = self._goal.reason(0, 0, len(self._ends))
        await self._do(iter(range(len(self._ends))))
        if self._goal is None:
            results = given(execution, self._cursor, self._ends, self._return_errors)
            return results if self.kind != GATHER else Results(self._ends)  # type: ignore[return-value]
        if execution.replaying:
            raise execution.replaying.ends_at(self)
        again = execution.trail.stopped_by((self.branch, self.position)) if self._is_decided() else []
        ending = Ending(*self._tally, self._entered, self._unfinished(), self._reason, again)
        await execution.record(self._entry(status.COMPLETED, msgspec.json.encode(ending).decode(), format_=FORMAT))
        return self._come_to(ending)

    async def _replay(self, record: StepRecord) -> list[T]:
        execution = self._execution
        execution.ledger.saw(self.branch, record.completed_at)
        ending = msgspec.json.decode(record.output or "", type=Ending)
        if execution.replaying and ending.stopped:
            await self._show(ending.stopped)
        stopped = set(ending.stopped)
        for index in stopped:
            self._drop(index)
        await self._do(index for index in range(min(ending.begun, len(self._ends))) if index not in stopped)
        return self._come_to(ending)

    async def _show(self, stopped: Iterable[int]) -> None:
        """A replay that does nothing new is to meet all that is recorded, also of items that were stopped: some of
        their steps may have to be undone."""
        execution = self._execution
        assert execution.replaying is not None
        beyond = execution.replaying.beyond
        try:
            await show_stopped(execution, self._cursor, [self._shown(index) for index in stopped])
        except NonDeterminismError:
            execution.diverged = execution.closed = None  # they are not called again
        execution.replaying.beyond = beyond

    async def _shown(self, index: int) -> None:
        try:
            await self._item(index)
        except (Exception, HistoryEnded):
            return

    async def _do(self, indexes: Iterator[int]) -> None:
        execution, total = self._execution, len(self._ends)
        width = min(total, self._limit or total)
        try:
            ends = await finish_all(execution, self._cursor, [self._work(indexes) for _ in range(width)])
        except asyncio.CancelledError:
            self.give_up()
            raise
        finally:
            self._over()
        unwinding = [end for end in ends if isinstance(end, BaseException)]
        if unwinding:
            raise unwinding[0]

    async def _work(self, indexes: Iterator[int]) -> None:
        """One of those who take item after item. Without a goal all items are done even if one fails: which of them had
        begun by then depends on the clock, and a replay must find the same."""
        stopped: HistoryEnded | None = None
        self._workers.append(asyncio.current_task())
        while not self._is_decided() and (index := next(indexes, None)) is not None:
            self._entered = index + 1
            try:
                self._ends[index] = await self._item(index)
            except Exception as error:
                self._ends[index] = Failed(error)
            except HistoryEnded as error:
                stopped = error
                continue
            except asyncio.CancelledError:  # ends here: the map is over without this item, or raised again
                if not self._is_decided() or self._execution.closed is not None:
                    raise
                break
            self._item_ended(isinstance(self._ends[index], Failed))
            if self._goal is not None and self._record is None and not self._is_decided():
                self._reason = self._goal.reason(*self._tally, len(self._ends))
                if self._is_decided():
                    await self._stop_others()
        if stopped is not None:
            raise stopped

    async def _stop_others(self) -> None:
        """Enough is known: stop the items that are under way. Each of their calls records that it was given up, unless
        it has its outcome."""
        execution, own = self._execution, asyncio.current_task()
        others = [task for task in self._workers if task is not None and task is not own and not task.done()]
        if not others:
            return
        branches, calls = self._scope(self._unfinished())
        execution.trail.ends(Ended((self.branch, self.position), self._members(), (), branches, calls))
        execution.busy += 1  # until they have stopped, the run must not look as if it only waited
        try:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        except asyncio.CancelledError:  # ends here: who cancels the map waits for all of them, or raised again
            if execution.closed is not None:
                raise
        finally:
            execution.busy -= 1

    def _unfinished(self) -> list[int]:
        return [index for index in range(self._entered) if self._ends[index] is _NOT_RUN]

    def _come_to(self, ending: Ending) -> list[T]:
        """What its record means to the code."""
        execution = self._execution
        results: Results[T] = Results(self._ends)
        for index in results.not_run:
            self._drop(index)
        if results.failed or results.not_run or ending.reason is not None:
            execution.trail.ends(Ended((self.branch, self.position), self._members(), ending.again))
        failure = self._failed(ending, results) if ending.reason in (_TOO_MANY, _OUT_OF_REACH) else None
        errors = [*(() if failure is None else (failure,)), *results.failed]
        if errors:
            execution.was_given(errors, self._cursor, raised=failure is not None and not self._return_errors)
        if failure is not None and not self._return_errors:
            raise failure
        return results  # type: ignore[return-value]

    def _failed(self, ending: Ending, results: Results[Any]) -> MapFailed:
        total, failed = len(results), len(results.failed)
        said = "its goal" if self._goal is None else self._goal.said
        if ending.reason == _TOO_MANY:
            what = f"{failed} of {total} items failed, which is more than {said} tolerates"
        else:
            what = f"{failed} of {total} items failed, so that {said} cannot be reached"
        first = [
            f"[{index}] {type_name(end)}: {message_of(end)[:_MOST_OF_ONE]}"
            for index, end in enumerate(results)
            if isinstance(end, Exception) and index not in results.not_run
        ][:_FIRST_ERRORS]
        more = [f"and {failed - len(first)} more"] if failed > len(first) else []
        error = MapFailed(f"{self.kind} {self.name!r}: {what}{': ' * bool(first)}{'; '.join([*first, *more])}", results)
        error.retryable = any(map(is_retryable, results.failed))
        delays = [each.delay for each in results.failed if isinstance(each, RecordedError) and each.delay is not None]
        error.delay = max(delays, default=None)
        error.address = (self.branch, self.position)
        return self._execution.raised(error, self._cursor)


_FIRST_ERRORS, _MOST_OF_ONE = 3, 200


class MapCall(ItemsCall[T]):
    """``ctx.map``: a branch for each item."""

    __slots__ = ("_body", "_items", "_progress")

    def __init__(
        self,
        execution: Execution,
        cursor: Cursor,
        name: str,
        body: Callable[[Cursor, Any], Awaitable[Any]],
        items: list[Any],
        many: Many,
        where: str,
    ) -> None:
        self._body = body
        self._items = items
        super().__init__(execution, cursor, "map", name, len(items), many, where)
        inner = execution.replaying is not None or "." in cursor.branch  # within an item of another map
        self._progress = None if inner else MapProgress(execution, name, len(self._items))

    def give_up(self) -> None:
        """Stop the map, and the branches of all its items: it lost a race, or its time was up."""
        super().give_up()
        self._execution.give_up(sub_branch(self.branch, self.position))

    def _branch(self, index: int) -> str:
        return sub_branch(self.branch, self.position, index)

    def _item(self, index: int) -> Awaitable[Any]:
        item = self._items[index]
        cursor = Cursor(self._branch(index), outer=self._cursor)
        return run_branch(self._execution, cursor, lambda cursor: self._body(cursor, item))

    def _scope(self, indexes: Collection[int]) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        return frozenset(map(self._branch, indexes)), frozenset()

    def _members(self) -> frozenset[tuple[str, int]]:
        return frozenset(((self.branch, self.position),))

    def _drop(self, index: int) -> None:
        self._execution.give_up(self._branch(index))

    def _item_ended(self, failed: bool) -> None:
        super()._item_ended(failed)
        if self._progress is not None:
            self._progress.ended(failed)

    def _over(self) -> None:
        if self._progress is not None:
            self._progress.close()


class GatherCall(ItemsCall[T]):
    """``ctx.gather`` with a limit or a goal: its items are calls that were made before it."""

    __slots__ = ("_calls",)

    def __init__(
        self, execution: Execution, cursor: Cursor, calls: Sequence[DurableCall[Any]], many: Many, where: str
    ) -> None:
        self._calls = calls
        super().__init__(execution, cursor, GATHER, GATHER, len(calls), many, where)

    def give_up(self) -> None:
        """Stop all of its calls: it lost a race, or its time was up."""
        super().give_up()
        for call in self._calls:
            call.give_up()

    def _item(self, index: int) -> Awaitable[Any]:
        return as_coroutine(self._calls[index])

    def _scope(self, indexes: Collection[int]) -> tuple[frozenset[str], frozenset[tuple[str, int]]]:
        calls = frozenset((self._calls[index].branch, self._calls[index].position) for index in indexes)
        return frozenset(sub_branch(*address) for address in calls), calls

    def _members(self) -> frozenset[tuple[str, int]]:
        return self._scope(range(len(self._calls)))[1]

    def _drop(self, index: int) -> None:
        self._calls[index].give_up()


def check_items(calls: Iterable[Any]) -> None:
    """Only calls that leave a record can be stopped, or left for later, and replayed."""
    for call in calls:
        if not isinstance(call, DurableCall):
            raise ContextMisuse(
                "ctx.gather with limit, min_successful or max_failures takes calls of the context that leave a record, "
                f"not {call!r}. Await it within an async def of its own, and let ctx.branch run that"
            )


class MapProgress:
    """Says how far a map is, as the progress of its run: ``fetch: 1 204 of 5 000, 3 failed``. Not more often than once
    a second, and not at all if the map is quick or the code says its own."""

    def __init__(self, execution: Execution, name: str, total: int) -> None:
        self._execution = execution
        self._name = name
        self._total = total
        self._done = self._failed = 0
        self._timer: Timer | None = None
        self._told = False
        self._wait = _TELL_EVERY if execution.claimed.claim == 1 else _TELL_FIRST

    def ended(self, failed: bool) -> None:
        """An item has come to its end."""
        self._done, self._failed = self._done + 1, self._failed + failed
        if self._told and self._done == self._total:
            self._tell()
        elif self._timer is None:
            self._timer = self._execution.clock.alarm(self._wait, self._ring)

    def close(self) -> None:
        """The map is over, or was given up."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer, self._wait = None, _TELL_EVERY
        self._tell()

    def _tell(self) -> None:
        execution = self._execution
        if execution.has_said_progress or execution.closed is not None:
            return
        self._told = True
        failed = f", {_spaced(self._failed)} failed" if self._failed else ""
        detail = f"{self._name}: {_spaced(self._done)} of {_spaced(self._total)}{failed}"
        data = {"map": self._name, "done": self._done, "of": self._total, "failed": self._failed}
        payloads = execution.recorder.payloads
        execution.recorder.note(
            StepRunning(
                execution.run_id, execution.claim, "", RUN_ITSELF, execution.workflow.name, detail,
                payloads.encode_own(data), 0, payloads.format,
            )
        )  # fmt: skip


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


class Failed:
    """An error among results."""

    def __init__(self, error: Exception) -> None:
        self.error = error


async def gather(
    execution: Execution, cursor: Cursor, calls: tuple[Awaitable[Any], ...], return_errors: bool
) -> list[Any]:
    """``ctx.gather``: all of them, in the order they were given. All come to their end before an error is raised."""
    group = object()
    for call in calls:
        if isinstance(call, (ResultCall, RemoteCall, CallbackResultCall)):
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
