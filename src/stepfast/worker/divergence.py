"""Runs that the code here does not fit, while other workers know their workflow: given back, a bounded number of times.

A worker cannot know whether the code of another differs in what matters: a helper in another module may have changed,
or what is read outside of steps. So it is tried. How often a run was given back is kept with the run, and counts since
its last record: whoever records something has code that fits.
"""

from __future__ import annotations

import msgspec

from ..model.names import CHECKS
from ..model.records import ValueSet

_EACH = 20
"""Times for each worker that would take it: who takes it is chance, and one of them may have the code."""
_AT_MOST = 100

GIVEN_BACK = f"{CHECKS}given back"
"""Where the count is kept: among the values of the run, under a key that people do not see."""


class GivenBack(msgspec.Struct):
    """What is kept."""

    seq: int
    """The number of the newest record by then."""
    times: int


def given_back_at_most(workers: int) -> int:
    """How often a run is given back to so many others before its divergence is final."""
    return min(_EACH * workers, _AT_MOST)


def times_given_back(kept: str | None, seq: int) -> int:
    """How often a run was given back since its newest record."""
    if kept is None:
        return 0
    last = msgspec.json.decode(kept, type=GivenBack)
    return last.times if last.seq == seq else 0


def given_back_again(run_id: str, claim: int, seq: int, before: int) -> ValueSet:
    """The journal entry that counts once more."""
    return ValueSet(run_id, claim, GIVEN_BACK, msgspec.json.encode(GivenBack(seq, before + 1)).decode())
