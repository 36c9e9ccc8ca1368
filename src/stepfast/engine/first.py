"""``ctx.first``: a race between calls. Who has won is recorded; who lost is given up, with all that belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..cancellation import seen
from ..errors import ContextMisuse, NonDeterminismError, Released
from ..model import status
from ..model.records import StepRecord
from ..settings import FORMAT
from .branches import BranchCall, MapCall, Party, as_coroutine, finish_all, spawn
from .children import ResultCall
from .cursor import Cursor, branches_around, sub_branch
from .durable_call import DurableCall, Race, as_given_up
from .failure import ending_record
from .races import FIRST
from .remote_call import RemoteCall
from .signals import SignalCall
from .unplaced import UnplacedCall

if TYPE_CHECKING:
    from .execution import Execution


class FirstCall(DurableCall[tuple[str, Any]]):
    """``ctx.first``: a race, whose winner is recorded. What lost is given up."""

    __slots__ = ("_runners",)
    _is_held = False  # it does nothing itself, and what is recorded may be of its runners

    def __init__(self, execution: Execution, cursor: Cursor, runners: dict[str, DurableCall[Any]], where: str) -> None:
        self._runners = runners
        super().__init__(execution, cursor, FIRST, FIRST, where)

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
            known = [call for call in calls if call.has_outcome or isinstance(call, (BranchCall, MapCall, FirstCall))]
            try:
                await finish_all(execution, self._cursor, [as_coroutine(call) for call in known])
            except NonDeterminismError:
                if self._record is None:
                    raise
                execution.diverged = execution.closed = None  # what lost is compared by nobody: it is not called again
            execution.replaying.beyond = beyond

    async def _go(self) -> tuple[str, Any]:
        finished = {name: call._record for name, call in self._runners.items() if call.has_outcome and call._record}
        recorded = [name for name, record in finished.items() if record.status != status.CANCELLED]
        if recorded:  # the race was over when the worker died, only who won was not recorded yet
            # Mail is only taken by who has won, even if another has recorded something just before.
            takes_none = {
                name: not isinstance(self._runners[name], (SignalCall, ResultCall, RemoteCall)) for name in recorded
            }
            winner = min(recorded, key=lambda name: (takes_none[name], finished[name].seq))
            self._close_losers(winner)
            await self._record_winner(winner)
            return await self._was_won_by(winner)
        race, party = Race(self), Party(self._execution, 1)
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
        record anew, and with it what came of it: the race is run again."""
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

    def _send_off(self, call: DurableCall[Any], race: Race, party: Party) -> asyncio.Task[Any]:
        call.race = race

        async def run() -> Any:
            try:
                return await as_coroutine(call)
            finally:
                race.won_by(call)

        return spawn(self._execution, run(), party)

    async def _watch(self, tasks: dict[DurableCall[Any], asyncio.Task[Any]], race: Race, party: Party) -> None:
        """Until one has won and is done, and the others have stopped. One that has won goes on, even if another is done
        before it: it may be recording what it took."""
        execution = self._execution
        execution.busy -= 1
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks.values():
                task.add_done_callback(seen)
            if race.winner is None:  # the race around this one is lost: whoever won there stops us
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
