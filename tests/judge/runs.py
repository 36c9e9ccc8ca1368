"""The checker: a pure function from evidence to violations.

Nothing is excused by habit. Each act must be the one whose value is on record, or belong to a claim that is known to
have been cut short (its process was killed or frozen, its attempt timed out), or be a try that is on record as failed.
What is beyond steps (waiting, children, undoing, operators) is in rules.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from tests.judge import rules
from tests.judge.cases import (
    GIVEN_BACK,
    LOST,
    OPEN_RECORD,
    RELEASED,
    SLACK,
    STOLEN,
    TERMINAL,
    Case,
    Violation,
    load,
    sort_by_run,
)
from tests.judge.evidence import (
    ASKS,
    CHANGED,
    DELETED,
    INSERTED,
    LATE,
    RAISES,
    TASK,
    TRIED,
    UNDO,
    Act,
    Evidence,
    Move,
    Place,
    Step,
    Write,
)

BY_ACT = frozenset({"step", "transaction", "undo", "wait_until"})
"""Kinds of records whose value is made by an act."""
SEEN = frozenset({"step", "transaction", "wait_until", "signal", "result", "call"})
"""Kinds of records that the code is given a value of."""


def check(evidence: Evidence) -> list[Violation]:
    """Every violation; none, if all promises were kept."""
    cases = sort_by_run(evidence)
    found = [*_starts(evidence, cases), *_orphans(evidence, cases), *_results(evidence, cases)]
    for whole in rules.OF_ALL:
        found += whole(evidence, cases)
    for case in cases.values():
        if case.row is not None:
            for rule in (_end, _fence, _records, _acts, _order, _claims, _early, _output, *rules.OF_ONE):
                found += rule(evidence, case)
    return found


def false_losses(evidence: Evidence) -> int:
    """Claims cut short although nothing was done to their process: legal on a machine under load, but told."""
    claims = (claim for case in sort_by_run(evidence).values() for claim in case.claims.values())
    return sum(claim.how in (LOST, GIVEN_BACK) and not claim.excused for claim in claims)


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
    for run_id in evidence.unwanted:
        if run_id in cases and cases[run_id].row is not None:
            yield Violation("unwanted", run_id, "its start was rolled back, and it is in the table")
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
        row = rules.last_of_chain(cases, seen.run)
        if row is None:
            continue
        status = "cancelled" if row.reason == "cancelled" else "failed" if row.status == "compensated" else row.status
        if seen.status != status:
            yield Violation("wrong result", seen.run, f"told as {seen.status}, stored as {row.status} ({row.reason})")
        elif seen.status == "completed" and load(seen.value) != load(row.output):
            yield Violation("wrong result", seen.run, f"told as {seen.value}, stored as {row.output}")


# -- the row -------------------------------------------------------------------------------------------------------


def _after_its_end(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """What has ended changes no more; but one that can be retried keeps the signals that are sent to it, and its row
    counts them."""
    counted = 0
    for before, move in pairwise(case.moves):
        if move.old_status not in TERMINAL:
            continue
        if _only_mail(before, move):
            counted += move.wakes - before.wakes
        else:
            yield Violation("ended twice", case.id, f"changed from {move.old_status} to {move.status} after its end")
    sent = {signal.nonce for signal in evidence.signals if counted and signal.run in _chain_of(evidence, case)}
    if counted > len(sent):
        text = f"{counted} signals were counted after its end, and {len(sent)} were sent in all"
        yield Violation("ended twice", case.id, text)


def _only_mail(before: Move, move: Move) -> bool:
    """Whether the row only counts signals, and nothing else of it has changed."""
    old = (move.old_status, move.old_claim, move.old_attempt, move.old_losses, move.old_worker, None, None, before.ends)
    new = (move.status, move.claim, move.attempt, move.losses, move.worker, move.due, move.asked, move.ends)
    return old == new and move.worker is None and move.wakes > before.wakes and move.status in ("failed", "cancelled")


def _chain_of(evidence: Evidence, case: Case) -> set[str]:
    """The run and those that it continues: what is sent to them is handed on."""
    origins = {row.id: row.origin for row in evidence.runs}
    found = set[str]()
    run_id: str | None = case.id
    while run_id is not None and run_id not in found:
        found.add(run_id)
        run_id = origins.get(run_id)
    return found


def _end(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Every run ends, once, and for a reason; nothing runnable is left behind."""
    row = case.row
    assert row is not None
    if row.status not in TERMINAL:
        yield Violation("left behind", case.id, f"{row.workflow} is still {row.status}")
        return
    if row.held:
        yield Violation("left behind", case.id, f"{row.status}, but with a worker, a place in its queue or a timer")
    ends = [move for move in case.moves if move.status in TERMINAL and move.old_status != move.status]
    if case.moves and len(ends) != 1:
        yield Violation("ended twice", case.id, f"it ended {len(ends)} times")
    yield from _after_its_end(evidence, case)
    if not _may_end_so(evidence, case):
        yield Violation("failed", case.id, f"{row.workflow} ended {row.status} ({row.reason}), but should not")


def _may_end_so(evidence: Evidence, case: Case) -> bool:
    """What may become of a run that nobody cancelled (what of one that was, the rules of wishes say)."""
    row = case.row
    assert row is not None
    if row.reason == "undo_failed":
        return row.status == "failed" and row.workflow in evidence.may_fail_to_undo
    return (
        row.status == "completed"
        or row.reason == "cancelled"
        or (row.workflow in (evidence.may_fail if row.status == "failed" else evidence.may_undo))
    )


def _claims(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Nobody takes a run that is held. In trouble shorter than the lease, nobody loses one either."""
    for claim in case.claims.values():
        if claim.how == STOLEN:
            yield Violation("claimed twice", case.id, f"claim {claim.number} was held by {claim.worker} and taken away")
        if claim.how in (LOST, GIVEN_BACK) and evidence.strict and not claim.excused:
            yield Violation("lost without cause", case.id, f"claim {claim.number} of process {claim.pid}: {claim.how}")


def _early(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """What is due at a time is not handed out before it, unless something happened to it meanwhile."""
    due, seen = None, (0, 0)
    for move in case.moves:
        granted = move.worker is not None and move.claim > move.old_claim
        news = (move.wakes, move.ends)
        if granted and due is not None and news == seen and move.at < due - SLACK:
            yield Violation(
                "too early", case.id, f"claim {move.claim} came {(due - move.at) / 1e6:.3f} s before its time"
            )
        if granted:
            due = None
        elif move.worker is None and move.old_status != move.status:
            due = move.due if move.due is not None or news != seen else due
            seen = news


# -- records -------------------------------------------------------------------------------------------------------


def _fence(_: Evidence, case: Case) -> Iterator[Violation]:
    """No write is accepted after a newer claim, and none is ever changed."""
    for write in case.writes:
        if write.what == CHANGED and not (write.old_status == OPEN_RECORD != write.status):
            yield Violation("record changed", case.id, f"{_at(write.place)}, recorded under claim {write.claim}")
        if write.what in (INSERTED, CHANGED, TRIED) and write.claim != write.run_claim:
            what = "a failed try" if write.what == TRIED else "an outcome"
            yield Violation(
                "late write", case.id,
                f"{_at(write.place)}: {what} of claim {write.claim} was accepted during claim {write.run_claim}",
            )  # fmt: skip
    newest = 0
    for step in sorted(case.steps, key=lambda step: step.seq):
        if step.claim < newest:
            text = f"{_at(step.place)}: claim {step.claim} recorded after claim {newest} (number {step.seq})"
            yield Violation("late write", case.id, text)
        newest = max(newest, step.claim)
    for seq, count in Counter(step.seq for step in case.steps).items():
        if count > 1:
            yield Violation("late write", case.id, f"{count} outcomes have the number {seq}: two owners wrote")


def _records(_: Evidence, case: Case) -> Iterator[Violation]:
    """At most one outcome per step, produced by an act of the very claim that recorded it."""
    for place, count in Counter(step.place for step in case.steps).items():
        if count > 1:
            yield Violation("recorded twice", case.id, f"{count} outcomes at {_at(place)}")
    for step in case.steps:
        if step.kind in BY_ACT and step.status in ("completed", "failed"):
            yield from _made(case, step)
    records: list[Step | Write] = [*case.steps, *(write for write in case.writes if write.what != TRIED)]
    in_vain = {(r.place, r.claim) for r in records if r.kind not in BY_ACT and r.status == "failed"}
    for row in case.tries:
        if row.position < 0 or row.timed_out or row.waited_out or (row.place, row.claim) in in_vain:
            continue  # an attempt; or a wait that failed, which is among the tries too, in the claim that recorded it
        if not any(act.does in (RAISES, LATE) for act in _acts_of(case, row.place, row.claim)):
            yield Violation("made up", case.id, f"{_at(row.place)}: a failed try on record, but no act failed")


def _made(case: Case, step: Step) -> Iterator[Violation]:
    acts = _acts_of(case, step.place, step.claim)
    if step.status == "completed" and load(step.output) not in [act.nonce for act in acts]:
        text = f"{_at(step.place)}: {step.output} (claim {step.claim}) is not what any of its acts made"
        yield Violation("made up", case.id, text)
    if step.status == "failed" and step.kind != "wait_until" and not any(act.does in (RAISES, LATE) for act in acts):
        yield Violation("made up", case.id, f"{_at(step.place)} is recorded as failed, but no act failed")


def _acts_of(case: Case, place: Place, claim: int) -> list[Act]:
    return [act for act in case.acts if act.place == place and act.claim == claim]


# -- acts ----------------------------------------------------------------------------------------------------------


def _acts(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Every outcome has an act; every act has a record, or a reason for having none."""
    by_place: dict[Place, list[Act]] = defaultdict(list)
    for act in case.acts:
        by_place[act.place].append(act)
    for step in case.steps:
        if step.place not in by_place and step.kind in BY_ACT and step.status == "completed":
            yield Violation("no act", case.id, f"{_at(step.place)} has an outcome, and nobody acted")
    transactions = {step.place for step in case.steps if step.kind == "transaction"} if evidence.cut else set()
    for place, acts in by_place.items():
        yield from _not_again(case, place, acts)
        yield from _by_its_owner(case, place, acts)
        counted = [act for act in acts if act.does != ASKS]
        if place in transactions:
            continue  # whatever was rolled back was called again; the rows tell whether it counts
        yield from _not_too_many(case, place, counted)
        for number in sorted({act.claim for act in counted}):
            yield from _each_accounted_for(case, place, number, [act for act in counted if act.claim == number])


def _not_too_many(case: Case, place: Place, acts: list[Act]) -> Iterator[Violation]:
    """At least one act per step, at most 1 + losses + failures."""
    losses = sum(claim.how in (LOST, GIVEN_BACK) for claim in case.claims.values())
    failures = sum(row.place == place or row.position == TASK for row in case.tries)
    if len(acts) > 1 + losses + failures:
        text = f"{_at(place)}: {len(acts)} acts with {losses} losses and {failures} failures"
        yield Violation("too many acts", case.id, text)


def _not_again(case: Case, place: Place, acts: Iterable[Act]) -> Iterator[Violation]:
    """What an earlier claim has recorded is never called again."""
    for step in case.steps:
        if step.place == place and step.status != OPEN_RECORD:
            for act in acts:
                if act.claim > step.claim:
                    text = f"{_at(place)}: recorded under claim {step.claim}, called again under {act.claim}"
                    yield Violation("called again", case.id, text)


def _by_its_owner(case: Case, place: Place, acts: Iterable[Act]) -> Iterator[Violation]:
    """Under a claim that was given, by the process it was given to, and not after it left in good order."""
    for act in acts if case.moves else ():
        claim = case.claims.get(act.claim)
        if claim is None:
            text = f"{_at(place)}: an act under claim {act.claim}, which was never given"
            yield Violation("no claim", case.id, text)
        elif claim.pid is not None and act.pid != claim.pid:
            text = f"{_at(place)}: process {act.pid} acted under claim {act.claim} of process {claim.pid}"
            yield Violation("no claim", case.id, text)
        elif claim.how == RELEASED and claim.ended is not None and act.at > claim.ended + SLACK:
            late = (act.at - claim.ended) / 1e6
            yield Violation("no claim", case.id, f"{_at(place)}: acted {late:.3f} s after claim {act.claim} had left")


def _each_accounted_for(case: Case, place: Place, number: int, acts: list[Act]) -> Iterator[Violation]:
    """The acts of one step under one claim."""
    claim = case.claims.get(number)
    kept = _kept_values(case, place, number)
    failed = sum((row.place, row.claim) == (place, number) for row in case.tries)
    failed += sum(value is None and of == number for of, value in case.outcomes(place))
    failing = [act for act in acts if act.does in (RAISES, LATE) and act.nonce not in kept]
    others = [act for act in acts if act not in failing and act.nonce not in kept]
    late = sum((row.place, row.claim, row.timed_out) == (place, number, True) for row in case.tries)
    given_up = min(len(others), late, max(0, failed - len(failing)))  # a machine under load is slow to call it
    unexplained = len(others) - given_up + max(0, len(failing) - failed)
    allowed = 1 if claim is None or claim.cut_short or _given_up(case, place, number) else 0
    if unexplained > allowed:
        how = "unknown" if claim is None else claim.how
        text = f"{_at(place)}: {unexplained} acts of claim {number} ({how}) without a record or a reason"
        yield Violation("unaccounted act", case.id, text)


def _given_up(case: Case, place: Place, number: int) -> bool:
    """Whether the code itself gave the step up in the middle: it lost a race. That is on record too."""
    return any((s.place, s.claim, s.status) == (place, number, "cancelled") for s in case.steps)


def _kept_values(case: Case, place: Place, number: int) -> set[Any]:
    """The values on record that acts of this claim made."""
    row = case.row
    assert row is not None
    if place[1] == TASK:
        return {load(row.output)} if row.status == "completed" and row.claim == number else set()
    return {load(value) for claim, value in case.outcomes(place) if claim == number and value is not None}


def _order(evidence: Evidence, case: Case) -> Iterator[Violation]:
    """Each step is on record before the next one begins."""
    recorded = case.recorded_at()
    gone = {write.place for write in case.writes if write.what == DELETED}
    for act in case.acts:
        for position in range(act.needs):
            place = (act.branch, position)
            if (place in gone or (case.id, place) in evidence.branched) and place not in recorded:
                continue
            if place not in recorded or recorded[place] > act.at + SLACK:
                text = f"{_at(act.place)} was begun (claim {act.claim}) before {_at(place)} was on record"
                yield Violation("too soon", case.id, text)


def _output(_: Evidence, case: Case) -> Iterator[Violation]:
    """A run's output is what its records say: the code saw exactly them."""
    row = case.row
    assert row is not None
    if row.status != "completed" or row.reason == "continued":
        return
    output = load(row.output)
    if any(act.position == TASK for act in case.acts):
        made = [act.nonce for act in case.acts if act.claim == row.claim]
        if output not in made:
            yield Violation("wrong output", case.id, f"{row.output} was not made by its last claim ({row.claim})")
    elif isinstance(output, dict):
        yield from _seen(case, output)
    else:
        recorded = [load(step.output) for step in sorted(case.steps, key=lambda step: step.position)]
        if output != recorded:
            yield Violation("wrong output", case.id, f"the code saw {row.output}, on record is {json.dumps(recorded)}")


def _seen(case: Case, output: dict[str, Any]) -> Iterator[Violation]:
    """The code tells what it saw at which place, and which places lost a race: those may have records nobody saw, but
    nothing may have been taken for them."""
    seen, lost = output["seen"], output.get("lost", [])
    for step in case.steps:
        key = _key(step.place)
        if step.kind not in SEEN or step.branch == UNDO or step.status not in ("completed", "failed"):
            continue
        value = load(step.output) if step.status == "completed" else "failed"
        if key in seen:
            if seen.pop(key) != value:
                yield Violation("wrong output", case.id, f"the code saw something else at {key} than {value}")
        elif not _under(step.place, lost) or step.kind in ("signal", "result", "call"):
            yield Violation("wrong output", case.id, f"the code never saw {step.kind} {value} at {key}")
    for key, value in seen.items():
        yield Violation("wrong output", case.id, f"the code saw {value} at {key}, of which there is no record")


def _under(place: Place, lost: Iterable[str]) -> bool:
    """Whether a place is one of these, or in a branch that began at one of them."""
    return _key(place) in lost or any(f"{place[0]}/".startswith((f"{b}/", f"{b}.")) for b in map(_began, lost))


def _began(key: str) -> str:
    """The branch that begins at a place."""
    branch, _, position = key.rpartition(":")
    return f"{branch}/{position}" if branch else position


def _key(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def _at(place: Place) -> str:
    branch, position = place
    return f"position {position} of {branch!r}" if branch else f"position {position}"
