"""The history of a run: recorded outcomes matched by position, what a claim has recorded, and what an attempt has
done.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..documents import cite
from ..errors import NonDeterminismError, RecordedError
from ..model import status
from ..model.forks import Makers, addresses_above, is_own
from ..model.records import StepDone, StepRecord, Tally
from ..model.status import CANCELLED
from .host import CHANCE, TURNS
from .outcomes import carried_by

if TYPE_CHECKING:
    from .call import DurableCall
    from .execution import Execution


class Cursor:
    """The state of a branch's code: the position that its next call takes, and who may make it."""

    __slots__ = ("branch", "calls", "draws", "outer", "owner", "position")

    def __init__(
        self, branch: str = "", owner: asyncio.Task[Any] | int | None = None, outer: Cursor | None = None
    ) -> None:
        self.branch = branch
        self.outer = outer
        """The cursor of the branch in which this one began."""
        self.owner = owner
        """The task (or thread, for a plain def) that may call the context."""
        self.position = 0
        """The position that the next call takes."""
        self.draws = 0
        """What the code has drawn of ``ctx.random()`` and ``ctx.uuid()``."""
        self.calls = 0
        """Calls of this branch that are under way; with none, its code itself is at work."""


def sub_branch(branch: str, position: int, item: int | str | None = None) -> str:
    """The name of the branch that begins at a position; ``item`` where one call begins many."""
    name = str(position) if item is None else f"{position}.{item}"
    return f"{branch}/{name}" if branch else name


def branches_around(branch: str) -> list[str]:
    """The branch itself, that of which it is an item, and those in which they began, out to the main branch."""
    around = [branch[:at] for at, sign in enumerate(branch) if sign in "/."]
    return ["", *around, branch] if branch else [""]


PATCH = "patch"
STEP, UNDO = "step", "undo"
_ASIDE = (PATCH, UNDO)
"""Kinds of records that are no calls of the code at a position."""


PAGE = cite("how-to/live-with-code-changes")
CAUSES = (
    "Either the code was changed while this run was under way: put the old order back, let only new runs go the new "
    "way by ctx.patched(…), or give the new code a new name. Or time, chance or something outside decides which calls "
    f"it makes: use ctx.now(), ctx.random() or a step for that. {PAGE} shows how"
)
"""How the message of a divergence ends: what may be the cause, and what to do."""

BRANCHES = ("branch", "map")
"""Kinds of calls that leave no record themselves; the calls within do."""

GATHER = "gather"
"""The kind of a gather that has a limit or a goal."""

_EMPTY: dict[tuple[str, int], StepRecord] = {}
"""Shared by all runs that have no records, and never written to."""


class History:
    """What is recorded of one run, and what of it the code has asked for in this attempt."""

    __slots__ = (
        "_begun", "_known_until", "_latest", "_left_out", "_makers", "_patches", "_reached", "aside", "last_seq",
        "records", "untaken",
    )  # fmt: skip

    def __init__(self, records: list[StepRecord]) -> None:
        self.records = {(record.branch, record.position): record for record in records} if records else _EMPTY
        self.untaken = {at: each for at, each in self.records.items() if each.kind not in _ASIDE} if records else _EMPTY
        """Calls that the code has not made again yet: until this is empty, it is being replayed."""
        self.aside = _EMPTY
        """Patches, and undos that have not been called again yet."""
        if len(self.untaken) != len(self.records):
            self.aside = {at: each for at, each in self.records.items() if each.kind in _ASIDE}
        self._begun: set[tuple[str, int]] | None = None
        self._left_out: set[str] | frozenset[str] = frozenset()
        self._reached: dict[str, int] | None = None
        self._latest: dict[str, int] | None = None
        self._known_until: int | None = None
        self._patches: dict[str, int] | None = None
        self._makers: Makers | None = None
        self.last_seq = max(record.seq for record in records) if records else 0

    def take(self, branch: str, position: int, kind: str, name: str, line: str) -> StepRecord | None:
        """The record at a position, if there is one; an error if it is of something else."""
        untaken = self.aside if kind == UNDO else self.untaken
        record = untaken.pop((branch, position), None)
        if record is None:
            self._check_no_branch(branch, position, kind, f"{kind} {name!r} (at {line})")
            return None
        if self.is_left_out(branch):
            return None
        if record.kind != kind or (record.name != name and kind != UNDO):  # an undo is known by what it undoes
            untaken[branch, position] = record
            raise NonDeterminismError(
                f"{recorded_as(record)}, but the code now calls {kind} {name!r} (at {line}). {CAUSES}"
            )
        return record

    def _check_no_branch(self, branch: str, position: int, kind: str, called: str) -> None:
        """Where a branch began before, a branch has to begin."""
        if kind in BRANCHES or kind in _ASIDE or self.is_left_out(branch):
            return
        if self._begun is None:
            self._begun = {address for outer, _ in self.records for address in addresses_above(outer)}
        if (branch, position) in self._begun:
            of = f" of branch {branch!r}" if branch else ""
            raise NonDeterminismError(
                f"position {position}{of} is recorded as a branch (something within it is recorded), but the code now "
                f"calls {called}. {CAUSES}"
            )

    def next_of(self, branch: str, position: int) -> StepRecord | None:
        """The oldest record at a position of a branch or after it, or in a branch that began there, which the code has
        not asked for."""
        found = [
            record
            for address, record in self.untaken.items()
            if any(name == branch and at >= position for name, at in (*addresses_above(address[0]), address))
        ]
        return min(found, key=lambda record: record.seq) if found else None

    @property
    def replayed(self) -> int:
        """How many records the code has asked for."""
        return len(self.records) - len(self.untaken) - len(self.aside)

    def leave_out(self, branch: str) -> None:
        """What is recorded of a branch does not count: it lost a race. Only noted, for a run may have thousands."""
        if isinstance(self._left_out, frozenset):
            self._left_out = set()
        self._left_out.add(branch)

    def is_left_out(self, branch: str) -> bool:
        """Whether it, or a branch around it, was left out."""
        return bool(self._left_out) and any(outer in self._left_out for outer in branches_around(branch))

    def ends_with(self, record: StepRecord) -> bool:
        """Whether the code of a branch came no further than this record, made when it was stopped."""
        if self._latest is None:
            self._latest = _latest(self.records.values())
        return self._latest.get(record.branch, 0) <= record.seq

    def goes_on(self, branch: str, position: int) -> bool:
        """Whether something is recorded of this branch at the position or after it: the code has been here before."""
        if self._reached is None:
            self._reached = _furthest(self.records)
        return self._reached.get(branch, -1) >= position

    @property
    def known_until(self) -> int:
        """The latest time at which something was recorded. The clock of the database has been there, though it may be
        behind now."""
        if self._known_until is None:
            self._known_until = max((record.completed_at for record in self.records.values()), default=0)
        return self._known_until

    def made_by(self, branch: str, position: int) -> int | None:
        """In a fork: how far up the line of forks the run is that made the first record at a position of a branch or
        after it; None: this run makes it."""
        if self._makers is None:
            self._makers = Makers((at[0], at[1], record.undo) for at, record in self.records.items())
        return self._makers.at(branch, position)

    def patched_from(self, patch: str) -> int | None:
        """The first position at which a branch is recorded to have gone the new way at a change."""
        if self._patches is None:
            self._patches = _earliest(address for address, record in self.records.items() if record.kind == PATCH)
        return self._patches.get(patch)

    def check_all_taken(self) -> None:
        """At the end of the code, every record must have been asked for."""
        record = self.first_left() if self.untaken else None
        if record is not None:
            raise NonDeterminismError(
                f"{recorded_as(record)}, but the code returned without calling it (end of the function). {CAUSES}"
            )

    def first_left(self) -> StepRecord | None:
        """The oldest record that the code has not asked for."""
        left = [record for record in self.untaken.values() if not self.is_left_out(record.branch)]
        return min(left, key=lambda record: record.seq) if left else None


def _furthest(addresses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Per branch the last position that something is recorded of: a call, or a branch that began there."""
    furthest: dict[str, int] = {}
    for branch, position in addresses:
        for outer, at in (*addresses_above(branch), (branch, position)):
            if at > furthest.get(outer, -1):
                furthest[outer] = at
    return furthest


def _earliest(addresses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Per branch the first position."""
    earliest: dict[str, int] = {}
    for branch, position in addresses:
        earliest[branch] = min(position, earliest.get(branch, position))
    return earliest


def _latest(records: Iterable[StepRecord]) -> dict[str, int]:
    """Per branch the number of the newest call made in it, or in a branch within, that was not stopped."""
    latest: dict[str, int] = {}
    for record in records:
        if record.kind not in _ASIDE and record.status != CANCELLED:
            for outer in branches_around(record.branch):
                latest[outer] = max(record.seq, latest.get(outer, 0))
    return latest


def recorded_as(record: StepRecord) -> str:
    """How the message of a divergence begins: what is recorded, and where it was called."""
    of = f" of branch {record.branch!r}" if record.branch else ""
    line = record.line or "an unknown line"
    return f"position {record.position}{of} is recorded as {record.kind} {record.name!r} (called at {line})"


_ELSEWHERE = 5.0
"""Seconds that the code is given where a call is awaited by a task of the user's: the code of its branch may await
something else."""


class Holds:
    """The calls of one run that are held."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._held: dict[asyncio.Future[None], DurableCall[Any]] = {}
        self._elsewhere = False
        """Whether one of them is awaited by a task that is not known here."""
        self._moves = 0
        """Counts what has moved, so that it is known whether nothing has since."""
        self._over = False
        """Whether the replay is over, as far as it goes."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def holds(self, cursor: Cursor) -> bool:
        """Whether a call of this branch must wait."""
        if not self._over:
            self._over = self._execution.history.first_left() is None
            return not self._over
        return behind(self._execution, cursor) is not None

    async def wait(self, call: DurableCall[Any], cursor: Cursor) -> None:
        """Until the code has asked for what is recorded."""
        execution = self._execution
        while self.holds(cursor):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held[future] = call
            self._elsewhere |= not execution.knows_task(cursor)
            self._moves += 1
            execution.busy -= 1
            self.check_rest_soon()
            try:
                await future
            finally:
                del self._held[future]
                execution.busy += 1
                self._moves += 1

    def moved(self) -> None:
        """The code has made a call: perhaps the last one that was waited for."""
        self._moves += 1
        for future, call in self._held.items():
            if not future.done() and self._goes(call):
                future.set_result(None)

    def _goes(self, call: DurableCall[Any]) -> bool:
        """Whether a held call may continue; checked at every call of the code, so it reads no record."""
        if not self._over:
            return not self._execution.history.untaken
        return behind(self._execution, call.cursor) is None

    def check_rest_soon(self) -> None:
        """See whether the code is at rest, when it has had a chance to continue."""
        if self._held and not self._execution.busy:
            self._execution.clock.after(CHANCE, self._check_rest, TURNS, self._moves)

    def _check_rest(self, turns: int, moves: int) -> None:
        if moves != self._moves or self._execution.busy or self._execution.closed is not None or not self._held:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._check_rest, turns - 1, moves)
        else:
            self._rest(moves)

    def _rest(self, moves: int) -> None:
        """The code has come to rest: nothing of it moves any more."""
        ahead = [(call, cursor) for call in self._held.values() if (cursor := behind(self._execution, call.cursor))]
        if ahead and self._elsewhere:
            self._execution.clock.after(_ELSEWHERE, self._diverge, *ahead[0], moves)
        elif ahead:
            self._diverge(*ahead[0], moves)
        else:
            self._over = True
            self.moved()

    def _diverge(self, call: DurableCall[Any], cursor: Cursor, moves: int) -> None:
        execution = self._execution
        record = execution.history.next_of(cursor.branch, cursor.position)
        if moves != self._moves or execution.closed is not None or record is None:
            return
        error = NonDeterminismError(
            f"{recorded_as(record)}, but before it the code now calls {call.kind} {call.name!r} (at {call.line}), of "
            f"which nothing is recorded. It was not begun. {CAUSES}"
        )
        execution.diverge(error)

    def close(self) -> None:
        """The run leaves: release the calls that are held back."""
        for future in list(self._held):
            if not future.done():
                future.cancel()


def behind(execution: Execution, cursor: Cursor) -> Cursor | None:
    """The position of a branch, or the innermost one around it, of which more is recorded than its code has called."""
    history, each = execution.history, cursor
    if history.is_left_out(cursor.branch):
        return None
    while not history.goes_on(each.branch, each.position):
        if each.outer is None:
            return None
        each = each.outer
    return each


Address = tuple[str, int]
"""A branch, and a position in it."""


class Given(NamedTuple):
    """Errors that the code of a branch was given at once: the first of them raised, or all of them as results."""

    branch: str
    position: int
    """The position that the next call of the branch took: what it did from there on, it did knowing of them."""
    taken: int
    """How many positions had been taken by then."""
    errors: tuple[BaseException, ...]
    raised: bool


class GivenUp(NamedTuple):
    """A call that was ended by the code around it."""

    address: Address
    branch: str
    """The branch whose code has to continue: that of the call, or one around it, if that ended by an error."""
    taken: int
    """How many positions had been taken by then."""
    lost: Address | None = None
    """The address of the race that it lost: as long as that is on record, so is this."""


class Ended(NamedTuple):
    """A map or gather with a goal: its record goes with any failure of its items, then what was stopped continues."""

    address: Address
    members: frozenset[Address]
    """What is recorded at one of these, or in a branch that began there, is of an item."""
    again: Sequence[Address] = ()
    """What was given up when items were stopped, and what these called after."""
    branches: frozenset[str] = frozenset()
    calls: frozenset[Address] = frozenset()
    """The branches of items that are being stopped, and calls that are items themselves."""
    taken: int = 0
    """How many positions had been taken before they were."""

    def stops(self, address: Address) -> bool:
        """Whether it is of an item that is being stopped."""
        return address in self.calls or not self.branches.isdisjoint(branches_around(address[0]))

    def has(self, address: Address) -> bool:
        """Whether it is of any item."""
        return not self.members.isdisjoint((*addresses_above(address[0]), address))


class AttemptHistory:
    """Made when a call is given up, or an attempt fails: most have no need of it."""

    def __init__(self, taken: Sequence[Address], records: Mapping[Address, StepRecord]) -> None:
        self._taken = taken
        """The positions taken so far, which the execution adds to."""
        self._records = records
        """What was recorded before this claim."""
        self._races: tuple[tuple[Address, frozenset[Address]], ...] = ()
        """Races that were over before this claim, and who lost them."""
        self.given_up: tuple[GivenUp, ...] = ()
        """Calls that the code's own timeout, or a group of tasks, has ended."""
        self._given: list[Given] = []
        """The errors that branches were given, in that order."""
        self._ended_by: list[tuple[str, BaseException]] = []
        """Branches that failed, and the error of each."""
        self._ends: dict[Address, Ended] = {}
        """Maps and gathers with a goal that have come to their end, the inner ones first."""
        self._child_calls: set[Address] = set()
        """Calls about children, made since the first error was given: made again they start no child twice."""

    def was_given(self, branch: str, position: int, errors: Iterable[BaseException], raised: bool) -> None:
        """The code of a branch is given errors of steps, children or branches."""
        self._given.append(Given(branch, position, len(self._taken), tuple(errors), raised))

    def failed(self, branch: str, error: BaseException) -> None:
        """The code of a branch ends by an error."""
        self._ended_by.append((branch, error))

    def calls_child(self, address: Address) -> None:
        """The code starts a child, or waits for one."""
        self._child_calls.add(address)

    def let_go(self) -> None:
        """Drop the errors: they hold frames of the code, and these hold the attempt."""
        self._given, self._ended_by = [], []

    def gave_up(self, address: Address) -> None:
        """A call was ended by the code around it. Whether the code handles that is not known before it continues."""
        ended = next((each.address for each in self._ends.values() if each.stops(address)), None)
        self.given_up += (GivenUp(address, address[0], len(self._taken), ended),)

    def ends(self, ended: Ended) -> None:
        """A map or gather is about to stop what is under way of it, or is over."""
        self._ends.pop(ended.address, None)
        self._ends[ended.address] = ended._replace(taken=len(self._taken))

    def stopped_by(self, address: Address) -> list[Address]:
        """What was given up when a map or gather stopped its items, and what these called after."""
        ended = self._ends.get(address)
        if ended is None:
            return []
        given_up = [each.address for each in self.given_up if each.lost == address]
        return sorted({*given_up, *filter(ended.stops, self._taken[ended.taken :])})

    def lost_race(self, race: Address, losers: frozenset[Address]) -> None:
        """A race is decided: what ended the calls that lost it, and all within them, is its verdict."""
        self.given_up = tuple(
            each._replace(lost=race)
            if not losers.isdisjoint((*addresses_above(each.address[0]), each.address))
            else each
            for each in self.given_up
        )

    def replayed_race(self, race: Address, losers: frozenset[Address]) -> None:
        """A race was over before this claim: the calls that lost it are not made again, so that only their records tell
        what it ended."""
        self._races += ((race, losers),)

    def branch_ended(self, branch: str, failed: bool) -> None:
        """What was given up within a branch that returned is done with; if it raised, the branch around it has to live
        with it."""
        left = tuple(each for each in self.given_up if each.branch != branch or each.lost in self._ends)
        if failed and (above := addresses_above(branch)):
            ended = [each for each in self.given_up if each.branch == branch and each.lost not in self._ends]
            moved = [each for each in ended if not self._went_on(each)]
            left += tuple(each._replace(branch=above[-1][0], taken=len(self._taken)) for each in moved)
        self.given_up = left

    def _went_on(self, given_up: GivenUp) -> bool:
        """Whether its branch has called anything since."""
        return any(branch == given_up.branch for branch, _ in self._taken[given_up.taken :])

    def to_forget(self, error: BaseException | None, by_operator: bool = False) -> list[Address]:
        """The records that are made again after an attempt has ended by this error: the failures it carries, those
        that failed beside them where the code waited for several, and what was recorded after each was given to the
        code, in the branches that were. What other branches did stays. So does what the code gave up by a timeout of
        its own, if it called something since; if not, that ended the attempt, and is made again. What lost a race goes
        the way of the race's record; and that goes with the failure that won it.

        An operator's retry also does again what the code was given and failed after without another call, but
        about children: whether it raised one of these errors, or one of its own. It has decided about all of them."""
        addresses = dict.fromkeys(each.address for each in self.given_up if not each.lost and not self._went_on(each))
        if error is not None:
            blame = _Blame(self._given, [*self._ended_by, ("", error)], self._left_open() if by_operator else None)
            addresses |= dict.fromkeys(blame.of(error, self._taken))
        for end in self._ends.values():
            if end.address in addresses or any(map(end.has, addresses)):
                addresses |= dict.fromkeys((end.address, *end.again))
        addresses |= dict.fromkeys(each.address for each in self.given_up if each.lost in addresses)
        for race, losers in self._races:
            if race in addresses:
                addresses |= dict.fromkeys(self._ended_with(losers))
        return list(addresses)

    def _left_open(self) -> dict[str, list[Given]]:
        """For each branch what it was given and has made no call since, except about children."""
        last = {address[0]: at for at, address in enumerate(self._taken) if address not in self._child_calls}
        left: dict[str, list[Given]] = defaultdict(list)
        for given in self._given:
            if given.taken > last.get(given.branch, -1):
                left[given.branch].append(given)
        return left

    def _ended_with(self, losers: frozenset[Address]) -> list[Address]:
        """The records of calls that lost a race, and of all within them, which have no outcome of their own."""
        return [
            address
            for address, record in self._records.items()
            if record.status in (status.CANCELLED, status.WAITING)
            and not losers.isdisjoint((*addresses_above(address[0]), address))
        ]


class _Blame:
    """Which recorded failures an error contains. Made when an attempt has failed."""

    def __init__(
        self,
        given: Iterable[Given],
        ended_by: Iterable[tuple[str, BaseException]],
        left_open: Mapping[str, Sequence[Given]] | None,
    ) -> None:
        self._left_open = left_open
        """What branches failed after, for an operator's retry; None for an attempt that follows by itself."""
        self._given: dict[int, list[Given]] = defaultdict(list)
        """By the errors that were given."""
        self._branches: dict[int, list[str]] = defaultdict(list)
        """By the errors that ended them."""
        for each in given:
            for error in each.errors:
                self._given[id(error)].append(each)
        for branch, error in ended_by:
            self._branches[id(error)].append(branch)

    def of(self, error: BaseException, taken: Iterable[Address]) -> list[Address]:
        """The addresses of the failures, of the races that they won, and of what came after in the branches that were
        given them."""
        errors = self._behind(error, beside=True)
        records = _recorded(errors)
        seen = [where for record in records for where in record.seen.items()]
        for each in errors:
            if (given := self._given.get(id(each))) and _recorded(self._behind(each)):
                seen += [(one.branch, one.position) for one in given]
        cuts: dict[str, int] = {}
        for branch, position in seen:
            cuts[branch] = min(position, cuts.get(branch, position))
        after = [
            address
            for address in taken
            if any(
                position >= cuts[branch]
                for branch, position in (*addresses_above(address[0]), address)
                if branch in cuts
            )
        ]
        return [*(record.address for record in records), *(race for each in records for race in each.races), *after]

    def _behind(self, error: BaseException, beside: bool = False) -> list[BaseException]:
        """The error, those that it carries, and those that the branches it came out of had failed after; if wanted,
        also those that were given to the code beside one of them."""
        found: dict[int, BaseException] = {}
        opened: set[int] = set()
        todo = [error]
        while todo:
            each = todo.pop()
            if id(each) in found:
                continue
            found[id(each)] = each
            todo += carried_by(each)
            left_open = self._left_open or {}
            more = [given for branch in self._branches.get(id(each), ()) for given in left_open.get(branch, ())]
            if beside:
                more += [given for given in self._given.get(id(each), ()) if self._are_one(given, each)]
            for given in more:
                if id(given) not in opened:
                    opened.add(id(given))
                    todo += given.errors
        return list(found.values())

    def _are_one(self, given: Given, error: BaseException) -> bool:
        """Whether errors that were given together are done again together: one was raised, and the code has not seen
        the others; or an operator wants it."""
        return self._left_open is not None or (given.raised and given.errors[0] is error)


def _recorded(errors: Iterable[BaseException]) -> list[RecordedError]:
    """The errors that have a record; the code may have made others of these classes by itself."""
    return [error for error in errors if isinstance(error, RecordedError) and hasattr(error, "seen")]


BRANCH_FIELD: Final = 2
POSITION_FIELD: Final = 3
UNDO_FIELD: Final = 15
"""Fields of ``StepDone``, which Python finds sooner by their number."""


class Ledger:
    """Records of this claim are kept while they are few; from then on only their number is."""

    __slots__ = ("_history", "_kept", "_left_open", "_most", "_tally", "fresh", "newest", "recorded", "undo_recorded")

    def __init__(self, history: History, most: int) -> None:
        self._history = history
        self._most = most
        self._kept: dict[Address, tuple[StepDone, int]] | None = {}
        """New records that are committed, as they are stored: one per address; and when they were."""
        self._tally: Tally | None = None
        """How much is stored, where the records themselves are not kept."""
        self._left_open: Sequence[tuple[StepDone, int]] = ()
        """Open records that go out with the release of the run."""
        self.fresh: Sequence[Address] = ()
        """Where this claim has made a record before the code had asked for all that was recorded: if it diverges, they
        do not stay."""
        self.newest: dict[str, int] = {}
        """The database time of each branch's newest record that the code has seen."""
        self.recorded = False
        """Whether this claim has made a new record."""
        self.undo_recorded = False
        """Whether this claim has recorded a step that can be undone; the code may not have its result yet."""

    def add(self, entry: StepDone, now: int) -> None:
        """A record of this run is committed."""
        self.recorded = True
        if entry[UNDO_FIELD] is not None:
            self.undo_recorded = True
        branch = entry[BRANCH_FIELD]
        if now > self.newest.get(branch, 0):
            self.newest[branch] = now
        address = (branch, entry[POSITION_FIELD])
        if self._history.untaken:
            self.made_early(address)
        kept = self._kept
        if kept is None:
            assert self._tally is not None
            self._tally.add(entry.branch, entry.position, entry.status)
            return
        if address not in kept or _replaces(entry, kept[address][0]):
            kept[address] = (entry, now)
        if len(kept) > self._most:
            self.keep_only_count()

    def saw(self, branch: str, recorded_at: int) -> None:
        """The code sees a record: ``ctx.now()`` moves on, never back, in any order of reading parallel records."""
        if recorded_at > self.newest.get(branch, 0):
            self.newest[branch] = recorded_at

    def has_undos(self) -> bool:
        """Whether something that was done can be undone."""
        return self.undo_recorded or any(
            is_own(record.undo) and record.status == status.COMPLETED for record in self._history.records.values()
        )

    def last_step(self) -> str | None:
        """The name of the step that was recorded last, before this claim."""
        last = max(self._history.records.values(), key=lambda record: record.seq, default=None)
        return None if last is None else last.name

    def made_early(self, address: Address) -> None:
        """A record was made while others had not been asked for. What was open before is decided by it, and stays."""
        if address not in self._history.records:
            self.fresh = fresh = self.fresh if isinstance(self.fresh, list) else []
            fresh.append(address)

    def leave(self, entries: Sequence[tuple[StepDone, int]]) -> None:
        """The run is released, and these go out with it: they will be there when it comes back."""
        self._left_open = entries

    def keep_only_count(self) -> None:
        """The records of this claim are too many to be kept, or not all known here: only their number is."""
        if self._kept is not None:
            self._tally = self._counted()
            self._kept = None

    def _counted(self) -> Tally:
        tally = Tally()
        for record in self._history.records.values():
            tally.add(record.branch, record.position, record.status)
        for entry, _ in (self._kept or {}).values():
            tally.add(entry.branch, entry.position, entry.status)
        return tally

    def believed(self) -> int:
        """How much is stored of this run, if nothing that was acknowledged has vanished."""
        return (self._tally or self._counted()).number

    def whole_history(self) -> list[StepRecord] | None:
        """All records as they would be read back, one per address, if they are few enough to be kept."""
        if self._kept is None:
            return None
        records = dict(self._history.records)
        for entry, now in chain(self._kept.values(), self._left_open):
            address = (entry.branch, entry.position)
            if address not in records or _replaces(entry, records[address]):
                records[address] = as_record(entry, now)
        return list(records.values())


def _replaces(new: StepDone, old: StepDone | StepRecord) -> bool:
    """Whether an entry takes the place of a record at its address: as in the database, only an outcome does, and only
    that of a record which its call had begun."""
    return old.status == status.WAITING and new.status != status.WAITING


def as_record(entry: StepDone, now: int) -> StepRecord:
    """An entry as it will be read back."""
    return StepRecord(
        entry.branch,
        entry.position,
        entry.seq,
        entry.name,
        entry.kind,
        entry.status,
        entry.output,
        entry.error,
        entry.arguments,
        entry.attempts,
        now - entry.duration_ms,
        now,
        entry.line,
        entry.format,
        entry.undo,
    )
