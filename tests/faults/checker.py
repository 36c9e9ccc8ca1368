"""The checker: a pure function from evidence to violations.

Nothing is excused by habit. Each act must be the one whose value is on record, or belong to a claim that is known to
have been cut short (its process was killed or frozen, its attempt timed out), or be a try that is on record as failed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.faults.evidence import (
    CHANGED,
    DELETED,
    INSERTED,
    LATE,
    OUTAGE,
    RAISES,
    TASK,
    TRIED,
    Act,
    Evidence,
    Move,
    Run,
    Start,
    Step,
    Try,
    Write,
)

TERMINAL = ("completed", "failed", "cancelled", "compensated")
SLACK = 3_000
"""Microseconds by which two readings of one clock may be at odds: the database's times are whole milliseconds."""

COMPLETED, RELEASED, FAILED, LOST, GIVEN_BACK, STOLEN, OPEN = (
    "completed", "released", "failed", "lost", "given back", "stolen", "open"
)  # fmt: skip
"""How a claim ended. ``failed``: the attempt. ``stolen``: somebody else took the run while it was held."""


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
    claims: dict[int, Claim] = field(default_factory=dict)

    def outcomes(self, position: int) -> set[tuple[int, str | None]]:
        """(claim, value) of every outcome ever recorded here, those among them that a new attempt made anew."""
        kept = {(step.claim, step.output) for step in self.steps if step.position == position}
        gone = {(w.claim, w.value) for w in self.writes if w.what == DELETED and w.position == position}
        return kept | gone


def check(evidence: Evidence) -> list[Violation]:
    """Every violation; none, if all promises were kept."""
    cases = sort_by_run(evidence)
    found = [*_starts(evidence, cases), *_orphans(evidence, cases), *_results(evidence, cases)]
    for case in cases.values():
        if case.row is not None:
            for rule in (_end, _fence, _records, _acts, _order, _claims, _early, _output):
                found += rule(evidence, case)
    return found


def false_losses(evidence: Evidence) -> int:
    """Claims cut short although nothing was done to their process: legal on a machine under load, but told."""
    claims = (claim for case in sort_by_run(evidence).values() for claim in case.claims.values())
    return sum(claim.how in (LOST, GIVEN_BACK) and not claim.excused for claim in claims)


# -- piecing together ----------------------------------------------------------------------------------------------


def sort_by_run(evidence: Evidence) -> dict[str, Case]:
    """The evidence, run by run."""
    cases: dict[str, Case] = {}

    def case(run_id: str) -> Case:
        return cases.setdefault(run_id, Case(run_id))

    for row in evidence.runs:
        case(row.id).row = row
    for name in ("starts", "acts", "steps", "tries", "moves", "writes"):
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
        if held is not None and held.ended is None and (move.worker != move.old_worker or move.claim != move.old_claim):
            held.ended, held.how = move.at, _how(case, held, move)
        if move.worker is not None and move.claim > move.old_claim:
            pid = evidence.workers.get(move.worker)
            claims[move.claim] = Claim(move.claim, move.worker, pid, move.at, wakes=move.wakes)
    for claim in claims.values():
        claim.excused = any(_hits(evidence, claim))
    return claims


def _how(case: Case, claim: Claim, move: Move) -> str:
    if move.worker is not None:
        return STOLEN
    if move.status == "completed":
        return COMPLETED
    if move.losses > move.old_losses:
        return LOST
    if move.status in TERMINAL or move.attempt > move.old_attempt:
        return FAILED
    if move.status == "waiting" or move.wakes != claim.wakes:  # woken before it could wait: in line at once
        return RELEASED
    # A reaper counts anew from 1 if the dead worker had recorded something; who gives back counts from 0.
    return LOST if move.losses == 1 and _recorded_under(case, move.old_claim) else GIVEN_BACK


def _recorded_under(case: Case, claim: int) -> bool:
    return any(record.claim == claim for record in (*case.steps, *case.writes))


def _hits(evidence: Evidence, claim: Claim) -> Iterator[bool]:
    """A kill, or a pause of at least half a lease: the last heartbeat before it may be a third of a lease old."""
    for fault in evidence.faults:
        meant = fault.pid == claim.pid or (fault.pid == 0 and fault.kind == OUTAGE)
        long = fault.end - fault.begin >= evidence.lease * 500_000 or fault.kind not in ("frozen", OUTAGE)
        yield meant and long and fault.end >= claim.began and (claim.ended is None or fault.begin <= claim.ended)


# -- starts, results, orphans --------------------------------------------------------------------------------------


def _starts(evidence: Evidence, cases: dict[str, Case]) -> Iterator[Violation]:
    """A start that returned is never lost; one key, one run."""
    by_key: dict[tuple[str, str], set[str]] = defaultdict(set)
    for start in evidence.starts:
        row = cases[start.run].row
        if row is None:
            yield Violation("lost start", start.run, f"{start.workflow} was acknowledged, and is not in the table")
        elif (row.workflow, row.key) != (start.workflow, start.key):
            yield Violation("wrong run", start.run, f"started as {start}, stored as {row}")
        if start.key is not None:
            by_key[start.workflow, start.key].add(start.run)
    for row in evidence.runs:
        if row.key is not None:
            by_key[row.workflow, row.key].add(row.id)
    for (workflow, key), ids in by_key.items():
        if len(ids) > 1:
            yield Violation("key twice", min(ids), f"key {key!r} of {workflow} stands for {sorted(ids)}")


def _orphans(evidence: Evidence, cases: dict[str, Case]) -> Iterator[Violation]:
    """No row belongs to a run that is not there."""
    rows = [*(("steps", step.run) for step in evidence.steps), *(("tries", row.run) for row in evidence.tries)]
    for (table, run_id), count in Counter([*rows, *evidence.others]).items():
        if run_id not in cases or cases[run_id].row is None:
            yield Violation("orphan", run_id, f"{count} rows in {table} without a run")


def _results(evidence: Evidence, cases: dict[str, Case]) -> Iterator[Violation]:
    """What callers were told is what is stored; and everybody was told."""
    told = {seen.run for seen in evidence.seen}
    for run_id in {start.run for start in evidence.starts} - told:
        yield Violation("no result", run_id, "its caller never heard how it ended")
    for seen in evidence.seen:
        row = cases[seen.run].row if seen.run in cases else None
        if row is None:
            continue
        if seen.status != row.status:
            yield Violation("wrong result", seen.run, f"told as {seen.status}, stored as {row.status}")
        elif seen.status == "completed" and _load(seen.value) != _load(row.output):
            yield Violation("wrong result", seen.run, f"told as {seen.value}, stored as {row.output}")


# -- the row -------------------------------------------------------------------------------------------------------


def _end(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Every run ends, once, and for a reason; nothing runnable is left behind."""
    row = case.row
    assert row is not None
    if row.status not in TERMINAL:
        yield Violation("left behind", case.id, f"{row.workflow} is still {row.status}")
        return
    if row.held:
        yield Violation("left behind", case.id, f"{row.status}, but with a worker, a place in line or a timer")
    ends = [move for move in case.moves if move.status in TERMINAL and move.old_status != move.status]
    if case.moves and len(ends) != 1:
        yield Violation("ended twice", case.id, f"it ended {len(ends)} times")
    for move in case.moves:
        if move.old_status in TERMINAL:
            yield Violation("ended twice", case.id, f"changed from {move.old_status} to {move.status} after its end")
    if row.status != "completed" and row.workflow not in evidence.may_fail:
        yield Violation("failed", case.id, f"{row.workflow} ended {row.status} ({row.reason}), but should complete")


def _claims(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Nobody takes a run that is held. In trouble shorter than the lease, nobody loses one either."""
    for claim in case.claims.values():
        if claim.how == STOLEN:
            yield Violation("claimed twice", case.id, f"claim {claim.number} was held by {claim.worker} and taken away")
        if claim.how in (LOST, GIVEN_BACK) and evidence.strict and not claim.excused:
            yield Violation("lost without cause", case.id, f"claim {claim.number} of process {claim.pid}: {claim.how}")


def _early(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """What is due at a time is not handed out before it."""
    due, wakes = None, 0
    for move in case.moves:
        granted = move.worker is not None and move.claim > move.old_claim
        if granted and due is not None and move.wakes == wakes and move.at < due - SLACK:
            yield Violation(
                "too early", case.id, f"claim {move.claim} came {(due - move.at) / 1e6:.3f} s before its time"
            )
        if granted:
            due = None
        elif move.worker is None and move.old_status != move.status:
            due = move.due if move.due is not None else due
            wakes = move.wakes


# -- records -------------------------------------------------------------------------------------------------------


def _fence(_: Evidence, case: Case) -> Iterator[Violation]:
    """No write is accepted after a newer claim, and none is ever changed."""
    for write in case.writes:
        if write.what == CHANGED:
            yield Violation("record changed", case.id, f"position {write.position}, recorded under claim {write.claim}")
        if write.what in (INSERTED, TRIED) and write.claim != write.run_claim:
            what = "an outcome" if write.what == INSERTED else "a failed try"
            yield Violation(
                "late write", case.id,
                f"position {write.position}: {what} of claim {write.claim} was accepted during claim {write.run_claim}",
            )  # fmt: skip
    newest = 0
    for step in sorted(case.steps, key=lambda step: step.seq):
        if step.claim < newest:
            text = f"position {step.position}: claim {step.claim} recorded after claim {newest} (number {step.seq})"
            yield Violation("late write", case.id, text)
        newest = max(newest, step.claim)
    for seq, count in Counter(step.seq for step in case.steps).items():
        if count > 1:
            yield Violation("late write", case.id, f"{count} outcomes have the number {seq}: two owners wrote")


def _records(_: Evidence, case: Case) -> Iterator[Violation]:
    """At most one outcome per step, produced by an act of the very claim that recorded it."""
    for (branch, position), count in Counter((step.branch, step.position) for step in case.steps).items():
        if count > 1:
            yield Violation("recorded twice", case.id, f"{count} outcomes at {branch}{position}")
    for step in case.steps:
        acts = [act for act in case.acts if act.position == step.position and act.claim == step.claim]
        if step.status == "completed" and _load(step.output) not in [act.nonce for act in acts]:
            text = f"position {step.position}: {step.output} (claim {step.claim}) is not what any of its acts made"
            yield Violation("made up", case.id, text)
        if step.status == "failed" and not any(act.does in (RAISES, LATE) for act in acts):
            yield Violation("made up", case.id, f"position {step.position} is recorded as failed, but no act failed")
    for row in case.tries:
        failing = [
            a for a in case.acts if (a.position, a.claim) == (row.position, row.claim) and a.does in (RAISES, LATE)
        ]
        if row.position >= 0 and not failing:
            yield Violation("made up", case.id, f"position {row.position}: a failed try on record, but no act failed")


# -- acts ----------------------------------------------------------------------------------------------------------


def _acts(_: Evidence, case: Case) -> Iterator[Violation]:
    """Every outcome has an act; every act has a record, or a reason for having none."""
    by_place: dict[int, list[Act]] = defaultdict(list)
    for act in case.acts:
        by_place[act.position].append(act)
    for step in case.steps:
        if step.position not in by_place:
            yield Violation("no act", case.id, f"position {step.position} has an outcome, and nobody acted")
    for position, acts in by_place.items():
        yield from _not_too_many(case, position, acts)
        yield from _not_again(case, position, acts)
        for number in sorted({act.claim for act in acts}):
            yield from _each_accounted_for(case, position, number, [act for act in acts if act.claim == number])


def _not_too_many(case: Case, position: int, acts: list[Act]) -> Iterator[Violation]:
    """At least one act per step, at most 1 + losses + failures."""
    losses = sum(claim.how in (LOST, GIVEN_BACK) for claim in case.claims.values())
    failures = sum(row.position in (position, TASK) for row in case.tries)
    if len(acts) > 1 + losses + failures:
        text = f"position {position}: {len(acts)} acts with {losses} losses and {failures} failures"
        yield Violation("too many acts", case.id, text)


def _not_again(case: Case, position: int, acts: Iterable[Act]) -> Iterator[Violation]:
    """What an earlier claim has recorded is never called again."""
    for step in case.steps:
        if step.position == position:
            for act in acts:
                if act.claim > step.claim:
                    text = f"position {position}: recorded under claim {step.claim}, called again under {act.claim}"
                    yield Violation("called again", case.id, text)


def _each_accounted_for(case: Case, position: int, number: int, acts: list[Act]) -> Iterator[Violation]:
    """The acts of one step under one claim."""
    claim = case.claims.get(number)
    if case.moves and claim is None:
        yield Violation("no claim", case.id, f"position {position}: an act under claim {number}, which was never given")
        return
    for act in acts:
        if claim is not None and claim.pid is not None and act.pid != claim.pid:
            text = f"position {position}: process {act.pid} acted under claim {number} of process {claim.pid}"
            yield Violation("no claim", case.id, text)
    kept = _kept_values(case, position, number)
    failed = sum((row.position, row.claim) == (position, number) for row in case.tries)
    failed += sum(value is None and of == number for of, value in case.outcomes(position))
    failing = [act for act in acts if act.does in (RAISES, LATE) and act.nonce not in kept]
    others = [act for act in acts if act not in failing and act.nonce not in kept]
    unexplained = len(others) + max(0, len(failing) - failed)
    allowed = 1 if claim is None or claim.cut_short else 0
    if unexplained > allowed:
        how = "unknown" if claim is None else claim.how
        text = f"position {position}: {unexplained} acts of claim {number} ({how}) without a record or a reason"
        yield Violation("unaccounted act", case.id, text)


def _kept_values(case: Case, position: int, number: int) -> set[str]:
    """The values on record that acts of this claim made."""
    row = case.row
    assert row is not None
    if position == TASK:
        return {_load(row.output)} if row.status == "completed" and row.claim == number else set()
    return {_load(value) for claim, value in case.outcomes(position) if claim == number and value is not None}


def _order(_: Evidence, case: Case) -> Iterator[Violation]:
    """Each step is on record before the next one begins."""
    recorded: dict[int, int] = {}
    gone = {write.position for write in case.writes if write.what == DELETED}
    for at, position in [
        *((step.at, step.position) for step in case.steps),
        *((write.at, write.position) for write in case.writes if write.what == INSERTED),
    ]:
        recorded[position] = min(at, recorded.get(position, at))
    for act in case.acts:
        for position in range(act.needs):
            if position in gone and position not in recorded:
                continue
            if position not in recorded or recorded[position] > act.at + SLACK:
                text = f"position {act.position} was begun (claim {act.claim}) before position {position} was on record"
                yield Violation("too soon", case.id, text)


def _output(_: Evidence, case: Case) -> Iterator[Violation]:
    """A run's output is what its records say: the code saw exactly them."""
    row = case.row
    assert row is not None
    if row.status != "completed":
        return
    if any(act.position == TASK for act in case.acts):
        made = [act.nonce for act in case.acts if act.claim == row.claim]
        if _load(row.output) not in made:
            yield Violation("wrong output", case.id, f"{row.output} was not made by its last claim ({row.claim})")
        return
    recorded = [_load(step.output) for step in sorted(case.steps, key=lambda step: step.position)]
    if _load(row.output) != recorded:
        yield Violation("wrong output", case.id, f"the code saw {row.output}, on record is {json.dumps(recorded)}")


def _load(text: str | None) -> str:
    return json.loads(text) if text is not None else None  # type: ignore[return-value]
