"""Runs that the code here does not fit, while other workers know their workflow: given back, a bounded number of times.

A worker cannot know whether the code of another differs in what matters: a helper in another module may have changed,
or what is read outside of steps. So it is tried. How often a run was given back is kept with the run, and counts since
its last record: whoever records something has code that fits.
"""

from __future__ import annotations

import msgspec

from ..engine.execution import Execution
from ..engine.observers import ids_of
from ..model.names import CHECKS
from ..model.records import ValueSet
from .errands import Errands
from .journal import Journal
from .kit import Kit

_EACH = 20
"""Times for each worker that would take it: who takes it is chance, and one of them may have the code."""
_AT_MOST = 100

GIVEN_BACK = f"{CHECKS}given back"
"""Where the count is kept: among the values of the run, under a key that people do not see."""


class GivenBack(msgspec.Struct):
    """How often a run was given back, and at which record."""

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


class Divergence:
    """Decides who goes on with a run that our code does not fit."""

    def __init__(self, kit: Kit, errands: Errands, journal: Journal) -> None:
        self._logger = kit.logger
        self._errands = errands
        self._journal = journal

    async def is_left_to_others(self, execution: Execution) -> bool:
        """Whether it is left to other workers: as long as one lives with the code that recorded last; else for some
        tries, if there are any that would take it, for they may have other code."""
        claimed, workflow = execution.claimed, execution.workflow
        last, peers = claimed.last_version, await self._errands.peers(workflow.name)
        if last not in (None, workflow.version) and any(p.workflows[workflow.name] == last for p in peers):
            told = "run %s (%s): recorded by other code that still runs; given back to it"
            self._logger.warning(told, claimed.id, workflow.name, extra=ids_of(execution))
            return True
        serving = [peer for peer in peers if peer.queues is None or claimed.queue in peer.queues]
        before = await self._given_back(execution) if serving else 0
        if before >= given_back_at_most(len(serving)):
            return False
        self._journal.note(given_back_again(claimed.id, claimed.claim, execution.history.last_seq, before))
        self._logger.warning(
            "run %s (%s): it does not fit the code here, but others know the workflow; given back to them (%d times)",
            claimed.id, workflow.name, before + 1, extra=ids_of(execution),
        )  # fmt: skip
        return True

    async def _given_back(self, execution: Execution) -> int:
        """How often it was given back like this since its newest record."""
        kept = await self._errands.value(execution.run_id, GIVEN_BACK)
        return times_given_back(kept, execution.history.last_seq)
