"""The trail of an attempt: which positions its code took, which calls it gave up, which errors it was given, and what
a new attempt or an operator's retry does again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import RecordedError
from ..model import status
from ..model.records import StepRecord
from .cursor import addresses_above
from .failure import carried_by

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
    """The branch whose code has to go on: that of the call, or one around it, if that ended by an error."""
    taken: int
    """How many positions had been taken by then."""
    lost: Address | None = None
    """The address of the race that it lost: as long as that is on record, so is this."""


class Trail:
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
        """A call was ended by the code around it. Whether the code lives with that is not known before it goes on."""
        self.given_up += (GivenUp(address, address[0], len(self._taken)),)

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
        left = tuple(each for each in self.given_up if each.branch != branch)
        if failed and (above := addresses_above(branch)):
            moved = [each for each in self.given_up if each.branch == branch and not self._went_on(each)]
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

        An operator's retry also does again what the code was given and failed after without another call: whether it
        raised one of these errors, or one of its own. It has decided about all of them."""
        addresses = dict.fromkeys(each.address for each in self.given_up if not each.lost and not self._went_on(each))
        if error is not None:
            blame = _Blame(self._given, [*self._ended_by, ("", error)], self._left_open() if by_operator else None)
            addresses |= dict.fromkeys(blame.of(error, self._taken))
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
    """Which failures an error stands for. Made when an attempt has failed."""

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
