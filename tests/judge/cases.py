"""The evidence run by run, and the claims of each run pieced together from the changes of its row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.judge.evidence import (
    CHANGED,
    DELETED,
    INSERTED,
    OUTAGE,
    STOPPED,
    TASK,
    TRIED,
    UNDO,
    Act,
    Evidence,
    Letter,
    Move,
    Place,
    Row,
    Run,
    Start,
    Step,
    Try,
    Wish,
    Write,
)

TERMINAL = ("completed", "failed", "cancelled", "compensated")
SLACK = 3_000
"""Microseconds by which two readings of one clock may be at odds: the database's times are whole milliseconds."""

OPEN_RECORD = "waiting"
"""The status of a record that is not the outcome yet. A sleep has no other."""

COMPLETED, RELEASED, FAILED, LOST, GIVEN_BACK, STOLEN, OPEN = (
    "completed", "released", "failed", "lost", "given back", "stolen", "open"
)  # fmt: skip
"""How a claim ended. ``released``: in good order, with everything recorded: it waits, is held, or was cancelled.
``failed``: the attempt. ``stolen``: somebody else took the run while it was held."""


@dataclass(frozen=True)
class Violation:
    """One broken promise."""

    kind: str
    run: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: run {self.run}: {self.text}"


@dataclass
class Claim:
    """One claim of a run, pieced together from the changes of its row."""

    number: int
    worker: str | None
    pid: int | None
    began: int
    ended: int | None = None
    how: str = OPEN
    wakes: int = 0
    ends: int = 0
    asked: bool = False
    """Whether an operator asked something of its owner."""
    excused: bool = False
    """Whether a fault hit its process, or the database, for long enough to cost the lease."""

    @property
    def cut_short(self) -> bool:
        """Whether acts of it may be without a record."""
        return self.how in (LOST, GIVEN_BACK, FAILED)


@dataclass
class Case:
    """Everything about one run."""

    id: str
    row: Run | None = None
    starts: list[Start] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    claims: dict[int, Claim] = field(default_factory=dict)

    def outcomes(self, place: Place) -> set[tuple[int, str | None]]:
        """(claim, value) of every outcome ever recorded here, those among them that a new attempt made anew."""
        kept = {(s.claim, s.output) for s in self.steps if s.place == place and s.status != OPEN_RECORD}
        gone = {
            (w.claim, w.value)
            for w in self.writes
            if w.what == DELETED and w.place == place and w.status != OPEN_RECORD
        }
        return kept | gone

    def recorded_at(self) -> dict[Place, int]:
        """When each place first had an outcome; a sleep, when it was decided."""
        found: dict[Place, int] = {}
        records: list[Step | Write] = [*self.steps, *(w for w in self.writes if w.what in (INSERTED, CHANGED))]
        for record in records:
            if record.status != OPEN_RECORD or record.kind == "sleep":
                found[record.place] = min(record.at, found.get(record.place, record.at))
        return found


# -- piecing together ----------------------------------------------------------------------------------------------


def sort_by_run(evidence: Evidence) -> dict[str, Case]:
    """The evidence, run by run."""
    cases: dict[str, Case] = {}

    def case(run_id: str) -> Case:
        return cases.setdefault(run_id, Case(run_id))

    for row in evidence.runs:
        case(row.id).row = row
    for name in ("starts", "acts", "steps", "tries", "moves", "writes", "rows", "wishes", "letters"):
        for item in getattr(evidence, name):
            getattr(case(item.run), name).append(item)
    for one in cases.values():
        one.acts.sort(key=lambda act: act.at)
        one.claims = _piece_claims(evidence, one)
    return cases


def _piece_claims(evidence: Evidence, case: Case) -> dict[int, Claim]:
    claims: dict[int, Claim] = {}
    for move in case.moves:
        held = claims.get(move.old_claim)
        if held is not None and held.ended is None and move.asked is not None:
            held.asked = True
        if held is not None and held.ended is None and (move.worker != move.old_worker or move.claim != move.old_claim):
            held.ended = move.at
            held.how = _how(evidence, case, held, move)
            held.excused = bool(_hits(evidence, held))
        if move.worker is not None and move.claim > move.old_claim:
            pid = evidence.workers.get(move.worker)
            claims[move.claim] = Claim(move.claim, move.worker, pid, move.at, wakes=move.wakes, ends=move.ends)
    return claims


def _how(evidence: Evidence, case: Case, claim: Claim, move: Move) -> str:
    if move.worker is not None:
        return STOLEN
    if move.status == "completed":
        return COMPLETED
    # A reaper makes a run ready, and counts anew from 1 if the dead worker had recorded something. Who leaves in good
    # order counts from 0, or waits or ends with the count that it had, if all it recorded is that it waits.
    ready = move.status in ("queued", "compensating")
    again = ready and move.losses == 1 and _recorded_under(case, claim.number)
    if move.losses > move.old_losses or again:
        return LOST
    if move.attempt > move.old_attempt or any((row.position, row.claim) == (TASK, claim.number) for row in case.tries):
        return FAILED
    if move.status in TERMINAL:
        return FAILED if move.status == "failed" and move.old_status != "compensating" else RELEASED
    if move.status == "paused" and STOPPED in _hits(evidence, claim):
        return GIVEN_BACK  # in the middle of what it did: the pause that was asked for begins at once
    if move.status in ("waiting", "paused") or move.due is not None:
        return RELEASED
    if move.status == "compensating":
        # The undoing begins; or an undo that failed was to be called again later, and is due by now. A stop may cut off
        # other undos of a dag beside that one.
        begins = move.old_status != "compensating"
        failed = any((row.branch, row.claim) == (UNDO, claim.number) for row in case.tries)
        return RELEASED if begins or (failed and STOPPED not in _hits(evidence, claim)) else GIVEN_BACK
    # Woken before it could wait, or resumed before it was held: ready at once.
    woken = claim.asked or (move.wakes, move.ends) != (claim.wakes, claim.ends)
    return RELEASED if woken and not _hits(evidence, claim) else GIVEN_BACK


def _recorded_under(case: Case, claim: int) -> bool:
    records: list[Step | Write] = [*case.steps, *(w for w in case.writes if w.what != TRIED)]
    return any(record.claim == claim and record.status != OPEN_RECORD for record in records)


def _hits(evidence: Evidence, claim: Claim) -> set[str]:
    """The kinds of faults that may have cut a claim short: a kill, a stop, or a pause of at least half a lease, for the
    last heartbeat before it may be a third of a lease old."""
    found = set[str]()
    for fault in evidence.faults:
        meant = fault.pid == claim.pid or (fault.pid == 0 and fault.kind == OUTAGE)
        long = fault.end - fault.begin >= evidence.lease * 500_000 or fault.kind not in ("frozen", OUTAGE)
        if meant and long and fault.end >= claim.began and (claim.ended is None or fault.begin <= claim.ended):
            found.add(fault.kind)
    return found


def load(text: str | None) -> Any:
    """A payload."""
    return json.loads(text) if text is not None else None
