"""How long ended runs are kept, and which of them stay longer because something still needs them.

An ended run may go when its time is over, unless

* its parent is kept and may still go on: it would look for the run, in order to hear how it ended. Nothing can wake a
  parent that was undone, and one that completed is only ever rewound by hand: it learns that the run was removed;
* it went on as another run, which is still kept, and is the first of that chain: its id is the one that people know,
  and its key is the one that a start would find. A run in the middle of a chain is taken out of it: what stood before
  it then names what comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from . import status

DELETABLE = (status.COMPLETED, status.FAILED, status.CANCELLED, status.COMPENSATED)
"""The ends of runs. (A step of a dag run may be skipped, too, and goes with its run.)"""

_OVER = (status.COMPLETED, status.COMPENSATED)
"""Ends after which a run needs no other run any more."""


class Keep(NamedTuple):
    """For how many milliseconds runs are kept after their end; None: for ever."""

    others: int | None
    failed: int | None
    status: str | None = None
    """Only runs that ended so are meant; None: all."""

    @property
    def shortest(self) -> int | None:
        """What was created less than this long ago cannot have been kept long enough; None: nothing ever is."""
        return min((span for span in (self.others, self.failed) if span is not None), default=None)


class Ended(Struct, gc=False):
    """A run that has ended, and who may still need it."""

    id: str
    status: str
    reason: str | None
    completed_at: int
    claim: int
    parent_id: str | None
    parent_status: str | None
    """None: it has no parent, or its parent is gone."""
    before: str | None
    """The run that went on as this one, if it is kept."""
    continuation: str | None
    """The run that it went on as, if that is kept."""
    origin_id: str | None
    """The run that it continued, or was made from by a retry; kept or not."""
    dag: bool
    """Whether it is a dag run, with steps that have rows of their own."""
    hands_on: bool = False
    """Whether a worker has yet to hand its name on, or signals of starts. A page of runs does not say it."""
    links_gone: int | None = None
    """How many links between it and its continuation are gone already. A page of runs does not say it."""

    @property
    def fence(self) -> tuple[str, int, int]:
        """What tells whether it is still the same end: a retry raises the number of the claim."""
        return self.id, self.claim, self.completed_at

    @property
    def linked(self) -> bool:
        """Whether it is a link in the middle of a chain."""
        return self.before is not None and self.continuation is not None


def needed_by(run: Ended) -> str | None:
    """What still needs an ended run, as the rest of a sentence; None: nothing."""
    if run.parent_status is not None and run.parent_status not in _OVER:
        goes_on = "may be retried" if run.parent_status in status.TERMINAL else "goes on"
        return f"its parent {run.parent_id} is {run.parent_status} and {goes_on}"
    if run.hands_on:
        return "starts by its name wait for a worker, which hands them on"
    if run.continuation is not None and run.before is None:
        return f"it went on as run {run.continuation}, which is found by it"
    return None


def mended(chain_links: Iterable[Ended]) -> list[tuple[str, str, list[str]]]:
    """What is to be joined when links in the middle of chains are taken out: the run before, the run after, and which
    links go between them."""
    links = {run.id: run for run in chain_links}
    joined = []
    for run in links.values():
        if run.before in links:
            continue  # the one before it follows the chain
        gone, after = [run.id], str(run.continuation)
        while after in links:
            gone.append(after)
            after = str(links[after].continuation)
        joined.append((str(run.before), after, gone))
    return joined


class EndedPage(NamedTuple):
    """A look at some runs in the order of their ids: which of them ended long enough ago."""

    runs: list[Ended]
    last: str | None
    """The last run that was looked at; None: there were none."""
    seen: int
    oldest_ms: int
    """How long ago the first of those that were looked at was started, and the last of them."""
    newest_ms: int
    now_ms: int
    """The time of the database."""
    busy: bool
    """Whether any worker executes anything just now."""


class Removal(NamedTuple):
    """The rows that a removal of old runs has deleted."""

    runs: list[str]
    steps: list[str]
    """The rows of steps of those that were dag runs."""
    origins: list[str]
    """Which runs those that are gone had continued."""


class Try(NamedTuple):
    """A failed try of a step, of a wait, or of the run as a whole."""

    branch: str
    position: int
    attempt: int
    number: int
    name: str
    error: str
    arguments: str | None
    format: int
    started_at: int
    completed_at: int


class Weight(NamedTuple):
    """How much is stored of a run."""

    rows: int
    bytes: int


def portions(runs: Sequence[Ended], weights: dict[str, Weight], most: Weight) -> list[list[Ended]]:
    """The runs in their order, cut into portions of bounded weight; what is heavier by itself is a portion alone."""
    cut: list[list[Ended]] = []
    rows = size = 0
    for run in runs:
        weight = weights.get(run.id, Weight(0, 0))
        rows, size = rows + 1 + weight.rows, size + weight.bytes
        if not cut or rows > most.rows or size > most.bytes:
            cut.append([])
            rows, size = 1 + weight.rows, weight.bytes
        cut[-1].append(run)
    return cut
