"""How fast old runs are removed beside work that matters more.

Removing may take its time: nobody waits for it. While anybody executes runs, it has one part in twenty of one
connection's time, and rests for the others. It may have more where nobody executes anything, and where that is not
enough: if runs go later than they may, the moments at which they became due have to pass by at least as fast as the
clock goes. Many runs that ended at once are no such reason: they may go within the time that all may be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Final, NamedTuple

from ..model.retention import Ended, Keep
from ..model.status import FAILED

CALM: Final = 0.05
"""The part of the time that removing takes while runs are executed."""
IDLE: Final = 0.2
"""The part that it takes while none is executed."""
MOST: Final = 0.4
"""The part that it takes at most, however far it is behind."""
OF_OPERATORS: Final = 0.5
"""The part that an operator's prune takes: somebody waits for it to end."""
AHEAD: Final = 1.25
"""How much more than what comes is to be removed while something is behind."""
PERIOD: Final = 30.0
"""Seconds between two judgements."""
LONGEST: Final = 60.0
"""Seconds of one rest at most."""


class Progress(NamedTuple):
    """How far removing has come."""

    at: float
    """When this was so, in seconds of the database's clock."""
    due: float
    """When what was removed then had become due."""

    @property
    def late(self) -> float:
        """How much later it went."""
        return self.at - self.due


def rest_after(took: float, share: float) -> float:
    """How long to rest after something that took so long, so that it takes this part of the time."""
    return min(took * (1 - share) / share, LONGEST)


def next_share(share: float, before: Progress, now: Progress) -> float:
    """As much as would have kept up with the clock, and some more to catch up. At most twice what it was, and at least
    half of it: one look may mislead."""
    seconds, passed = now.at - before.at, now.due - before.due
    wanted = AHEAD * share * seconds / passed if passed > 0 else MOST
    return min(max(wanted, share / 2, CALM), share * 2, MOST)


def due_of(runs: Sequence[Ended], keep: Keep) -> float:
    """When runs that went together had become due: the one in the middle, for a few may have been kept for others."""
    kept = {run.id: (keep.failed if run.status == FAILED else keep.others) or 0 for run in runs}
    return median_low([run.completed_at + kept[run.id] for run in runs]) / 1000


class RemovalPace:
    """The pace of one worker. How far removing has come is seen in the database, so that workers that take
    turns judge alike."""

    def __init__(self, may_be_late: float = 0.0) -> None:
        self._may_be_late = may_be_late
        """How many seconds later than they are due runs may go."""
        self.busy = True
        """Whether anybody executes runs, as it was last seen."""
        self._share = CALM
        self._before: Progress | None = None

    @property
    def share(self) -> float:
        """The part of the time to take just now."""
        return self._share if self.busy else max(self._share, IDLE)

    def came_to(self, now: Progress) -> None:
        """Some were removed: judge, if the last time was long enough ago."""
        if self._before is None or now.late <= self._may_be_late:
            self._share, self._before = max(self._share / 2, CALM), now
        elif now.at - self._before.at >= PERIOD:
            self._share, self._before = next_share(self._share, self._before, now), now

    def caught_up(self) -> None:
        """Nothing is due any more."""
        self._share, self._before = CALM, None
