"""The trail of an attempt: which positions its code took, which calls it gave up, and what a new attempt makes anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import RecordedError
from ..model import status
from ..model.records import StepRecord
from .cursor import addresses_above

Address = tuple[str, int]
"""A branch, and a position in it."""


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

    def to_forget(self, error: RecordedError | None) -> list[Address]:
        """The records a new attempt makes anew: the failed one, and those that failed beside it where the code waited
        for several; and what was recorded after each was raised, in the branches that saw it. What other branches did
        meanwhile stays. So does what the code gave up by a timeout of its own, if it went on from there; if not, that
        ended the attempt, and is made anew. What lost a race goes the way of the race's record; and that goes with the
        failure that won it."""
        addresses = dict.fromkeys(each.address for each in self.given_up if not each.lost and not self._went_on(each))
        failed = [error] if error is not None else []
        for each in failed:
            addresses |= dict.fromkeys(self._made_after(each))
            failed += each.beside
        addresses |= dict.fromkeys(each.address for each in self.given_up if each.lost in addresses)
        for race, losers in self._races:
            if race in addresses:
                addresses |= dict.fromkeys(self._ended_with(losers))
        return list(addresses)

    def _ended_with(self, losers: frozenset[Address]) -> list[Address]:
        """The records of calls that lost a race, and of all within them, which have no outcome of their own."""
        return [
            address
            for address, record in self._records.items()
            if record.status in (status.CANCELLED, status.WAITING)
            and not losers.isdisjoint((*addresses_above(address[0]), address))
        ]

    def _made_after(self, error: RecordedError) -> list[Address]:
        seen = error.seen
        after = [
            address
            for address in self._taken
            if address != error.address
            and any(
                position >= seen[branch]
                for branch, position in (*addresses_above(address[0]), address)
                if branch in seen
            )
        ]
        return [error.address, *error.races, *after]
