"""Concurrency within one run: branches, maps, gathers and races.

Each branch counts its own positions, so that all replay alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..cancellation import seen
from ..errors import ContextMisuse, NonDeterminismError, Released
from ..model import status
from ..model.forks import addresses_above
from ..model.records import StepRecord
from ..model.stored import read_json
from ..settings import FORMAT
from .call import DurableCall, Race, UnplacedCall, as_given_up
from .callbacks import CallbackResultCall
from .children import ResultCall
from .function_spec import name_of
from .history import BRANCHES, GATHER, Cursor, branches_around, sub_branch
from .host import TURNS, current_cursor
from .outcomes import ending_record
from .remote_step import RemoteCall
from .signals import SignalCall
from .step import EXITS, being_cancelled, exited

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


class BranchGroup:
    """The place of ``ctx.branches``: the branches that begin there, each under a key of its own. The code of the branch
    that made it takes the place, so that it is the same on every replay, whichever task begins which branch first."""

    def __init__(self, execution: Execution, cursor: Cursor, where: str) -> None:
        self._execution = execution
        self._cursor = cursor
        self._position = execution.take_place(cursor, "branch", "branches", where)
        self._used: dict[str, int] = {}

    def name_for(self, key: str) -> str:
        """The name of the branch that a key begins; a key that is used again begins another one."""
        self._used[key] = number = self._used.get(key, 0) + 1
        item = key if _PLAIN_KEY.fullmatch(key) else f"~{hashlib.blake2b(key.encode(), digest_size=10).hexdigest()}"
        item = item if number == 1 else f"{item}~{number}"
        return sub_branch(self._cursor.branch, self._position, item)

    async def perform(self, branch: str, body: Body) -> Any:
        """Run the code of one branch to its end. Any task of the run may wait for it."""
        execution, cursor = self._execution, Cursor(branch, outer=self._cursor)
        try:
            (outcome,) = await finish_all(execution, self._cursor, [run_branch(execution, cursor, body)])
        except asyncio.CancelledError:
            execution.give_up(branch)
            raise
        if isinstance(outcome, BaseException):
            execution.was_given([outcome], self._cursor)
            raise outcome
        return outcome


_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Keys that are part of the name of their branch as they are; of others a digest is."""


async def run_branch(execution: Execution, cursor: Cursor, body: Body) -> Any:
    """The code of a branch, counted as at work whenever none of its calls is."""
    cursor.owner = asyncio.current_task()
    current_cursor.set(cursor)
    if execution.closed is not None:
        raise execution.closed
    execution.busy += 1
    failed, observers, ended = True, execution.recorder.observers, None
    if observers is not None and execution.replaying is None:
        ended = observers.enters_branch(execution, cursor.branch)
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
        if ended is not None:
            _tell_end(execution, ended, failed)
        cursor.owner = None
        execution.busy -= 1
        execution.check_rest_soon()


def _tell_end(execution: Execution, ended: Callable[[str, str | None], None], failed: bool) -> None:
    """Tell observers how a branch ended, while the error that ended it is being raised."""
    error = sys.exc_info()[1]
    if not failed:
        ended("completed", None)
    elif isinstance(error, Exception) and execution.closed is None:
        ended("failed", type(error).__name__)
    else:
        ended("cancelled" if execution.closed is None else "released", None)


class JoinGuard:
    """The calls that a branch waits for: all of them, or only so many. The one that ends the wait hands over before it
    is gone: until the branch continues, the run must not look as if it only waited."""

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
        """The branch continues, and is counted itself."""
        self._left = 0
        if self._handed_over:
            self._execution.busy -= 1
            self._execution.check_rest_soon()


def spawn(execution: Execution, work: Coroutine[Any, Any, T], party: JoinGuard) -> asyncio.Task[T]:
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
    party = JoinGuard(execution, len(works))
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


async def show_stopped(execution: Execution, cursor: Cursor, works: list[Coroutine[Any, Any, Any]]) -> None:
    """Let work that was stopped read what is recorded of it, and stop it again."""
    party = JoinGuard(execution, len(works))
    tasks = [spawn(execution, work, party) for work in works]
    execution.wait_for_others(cursor)
    try:
        await _stop_all(execution, tasks)
    finally:
        execution.go_on(cursor)
        party.over()


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


FIRST = "first"
"""The kind under which a race is recorded."""

Winners = dict[tuple[str, int], str]
"""(branch, position) of everything that ran in a race which is decided: who won it."""


def winners_of(records: Sequence[StepRecord]) -> Winners:
    """The record of a race says who won, and its arguments which positions ran in it."""
    found: Winners = {}
    for record in records:
        if record.kind == FIRST and record.status == status.COMPLETED and record.arguments is not None:
            addresses = read_json(record.arguments, dict[str, int], {})
            winner = read_json(record.output, str, "")
            found |= {(record.branch, address): winner for address in addresses.values()}
    return found


def lost_to(record: StepRecord, standing: str, winners: Winners) -> str | None:
    """Who won the race in which a call, or the branch that it belongs to, was given up."""
    if standing != status.CANCELLED or not winners:
        return None
    addresses = [(record.branch, record.position), *reversed(addresses_above(record.branch))]
    return next((winners[address] for address in addresses if address in winners), None)


class FirstCall(DurableCall[tuple[str, Any]]):
    """``ctx.first``: a race, whose winner is recorded. What lost is given up."""

    __slots__ = ("_runners",)
    _is_held = False  # it does nothing itself, and what is recorded may be of its runners

    def __init__(
        self, execution: Execution, cursor: Cursor, runners: dict[str, DurableCall[Any]], where: str,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self._runners = runners
        super().__init__(execution, cursor, FIRST, name or FIRST, where)

    def give_up(self) -> None:
        """Stop all runners of this race: it lost another one around it."""
        super().give_up()
        self._give_up_all_but("")

    async def _replay(self, record: StepRecord) -> tuple[str, Any]:
        if record.status == status.CANCELLED:
            await self._show(self._runners.values())
            self._give_up_all_but("")
            await super()._replay(record)
        self._execution.ledger.saw(self.branch, record.completed_at)
        winner = msgspec.json.decode(record.output or "null")
        if winner not in self._runners:
            raise ContextMisuse(
                f"the recorded winner of ctx.first is {winner!r}, but the code now has {', '.join(self._runners)}: "
                "keep the name of a winner that is recorded"
            )
        await self._show(call for name, call in self._runners.items() if name != winner)
        return await self._was_won_by(winner)

    async def _perform(self) -> tuple[str, Any]:
        if self._execution.replaying:
            await self._show(self._runners.values())
            raise self._execution.replaying.ends_at(self)
        return await super()._perform()

    async def _show(self, calls: Iterable[DurableCall[Any]]) -> None:
        """A replay that does nothing new is to meet all that is recorded: also of those who lost, or have not won
        yet."""
        execution = self._execution
        if execution.replaying:
            beyond = execution.replaying.beyond
            known = [call for call in calls if call.has_outcome or call.kind in (*BRANCHES, GATHER, FIRST)]
            try:
                await finish_all(execution, self._cursor, [as_coroutine(call) for call in known])
            except NonDeterminismError:
                if self._record is None:
                    raise
                execution.diverged = execution.closed = None  # what lost is not compared: it is not called again
            execution.replaying.beyond = beyond

    async def _go(self) -> tuple[str, Any]:
        finished = {name: call._record for name, call in self._runners.items() if call.has_outcome and call._record}
        recorded = [name for name, record in finished.items() if record.status != status.CANCELLED]
        if recorded:  # the race was over when the worker died, only who won was not recorded yet
            # Mail is only taken by who has won, even if another has recorded something just before.
            takes_none = {
                name: not isinstance(self._runners[name], (SignalCall, ResultCall, RemoteCall, CallbackResultCall))
                for name in recorded
            }
            winner = min(recorded, key=lambda name: (takes_none[name], finished[name].seq))
            self._close_losers(winner)
            await self._record_winner(winner)
            return await self._was_won_by(winner)
        race, party = Race(self), JoinGuard(self._execution, 1)
        tasks = {name: self._send_off(call, race, party) for name, call in self._runners.items()}
        by_call = {call: tasks[name] for name, call in self._runners.items()}
        await self._watch(by_call, race, party)
        winner = next(name for name, call in self._runners.items() if call is race.winner)
        if isinstance(error := tasks[winner].exception(), Released):
            raise error
        self._give_up_all_but(winner)
        if self._execution.has_given_up:
            self._execution.trail.lost_race((self.branch, self.position), self._losers(winner))
        await self._record_winner(winner)
        if error is not None:
            self._won_by_failing(error)
        return winner, tasks[winner].result()

    async def _was_won_by(self, winner: str) -> tuple[str, Any]:
        """The race was over before this claim: who lost is not called again, and who won tells what it came to."""
        self._give_up_all_but(winner)
        self._execution.trail.replayed_race((self.branch, self.position), self._losers(winner))
        try:
            return winner, await self._runners[winner]
        except Exception as error:
            self._won_by_failing(error)
            raise

    def _losers(self, winner: str) -> frozenset[tuple[str, int]]:
        return frozenset((call.branch, call.position) for name, call in self._runners.items() if name != winner)

    def _won_by_failing(self, error: BaseException) -> None:
        """A failure decides a race as any outcome does. But if it ends the attempt, the next one makes the failed
        record again, and with it what came of it: the race is run again."""
        self._execution.was_given([error], self._cursor)
        found = ending_record(error)
        if found is not None:
            found.races += ((self.branch, self.position),)

    def _close_losers(self, winner: str) -> None:
        """What the others had begun to wait for when the worker died is given up, with the record of who has won."""
        execution = self._execution
        lost = [call for name, call in self._runners.items() if name != winner]
        within = {sub_branch(call.branch, call.position) for call in lost if not call.has_outcome}
        addresses = {(call.branch, call.position) for call in lost}
        for address, record in execution.history.records.items():
            if record.status == status.WAITING and (
                address in addresses or within.intersection(branches_around(address[0]))
            ):
                execution.seq += 1
                now = execution.database_now()
                execution.note_record(as_given_up(record, execution.run_id, execution.claim, execution.seq, now))

    def _send_off(self, call: DurableCall[Any], race: Race, party: JoinGuard) -> asyncio.Task[Any]:
        call.race = race

        async def run() -> Any:
            try:
                return await as_coroutine(call)
            finally:
                race.won_by(call)

        return spawn(self._execution, run(), party)

    async def _watch(self, tasks: dict[DurableCall[Any], asyncio.Task[Any]], race: Race, party: JoinGuard) -> None:
        """Until one has won and is done, and the others have stopped. The winner continues, even if another is done
        before it: it may be recording what it took."""
        execution = self._execution
        execution.busy -= 1
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks.values():
                task.add_done_callback(seen)
            if race.winner is None:  # the race around this one is lost: the winner there stops us
                await asyncio.get_running_loop().create_future()
            first = race.winner
            await self._stop(task for call, task in tasks.items() if call is not first and not task.done())
            if first is not None and execution.closed is None:
                await asyncio.wait((tasks[first],))
        except asyncio.CancelledError:
            await self._stop(tasks.values())
            if execution.closed is None:
                raise
        finally:
            execution.busy += 1
            party.over()
        if execution.closed is not None:
            raise execution.closed

    async def _stop(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in (stopped := list(tasks)):
            task.cancel()
            task.add_done_callback(seen)
        if stopped and self._execution.closed is None:
            await asyncio.wait(stopped)

    async def _record_winner(self, name: str) -> None:
        winner = msgspec.json.encode(name).decode()
        runners = msgspec.json.encode({name: call.position for name, call in self._runners.items()}).decode()
        await self._execution.record(self._entry(status.COMPLETED, winner, arguments=runners, format_=FORMAT))

    def _give_up_all_but(self, winner: str) -> None:
        for name, call in self._runners.items():
            if name != winner:
                call.give_up()


def check_runners(unnamed: tuple[Any, ...], runners: dict[str, Any]) -> None:
    """A race needs runners, and only calls of the context can be given up and replayed."""
    if unnamed:
        raise ContextMisuse("ctx.first takes its calls by name, as in ctx.first(paid=ctx.wait_signal('paid'), …)")
    if not runners:
        raise ContextMisuse("ctx.first needs at least one call, by name: ctx.first(paid=ctx.wait_signal('paid'), …)")
    for name, call in runners.items():
        if isinstance(call, UnplacedCall):
            raise ContextMisuse(
                f"ctx.first takes calls that leave a record; {name} is {call.name}, which leaves none. Await it within "
                "an async def of its own, and let ctx.branch run that"
            )
        if not isinstance(call, DurableCall):
            raise ContextMisuse(f"ctx.first takes calls of the context; {name} is a {type(call).__name__}")
    names: dict[DurableCall[Any], str] = {}
    for name, call in runners.items():
        if names.setdefault(call, name) != name:
            raise ContextMisuse(f"ctx.first was given {call} twice, as {names[call]} and {name}; make a call for each")
