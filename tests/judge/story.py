"""The whole story of a run, for reading what went wrong: starts, claims, acts, records and faults in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.judge.cases import Violation, sort_by_run
from tests.judge.evidence import Evidence

Line = tuple[int, str]
_MOST = 5
"""Runs told in full; the others only by their violations."""


def tell(evidence: Evidence, violations: list[Violation]) -> str:
    """Every violation, and the stories of the first few runs."""
    lines = [f"{len(violations)} violations", *map(str, violations)]
    for run_id in list(dict.fromkeys(violation.run for violation in violations))[:_MOST]:
        lines += ["", f"The story of run {run_id}", *tell_run(evidence, run_id)]
    return "\n".join(lines)


def tell_run(evidence: Evidence, run_id: str) -> list[str]:
    """One run; times in seconds since its first event."""
    events = sorted(events_of(evidence, run_id))
    begin = next((at for at, _ in events if at), 0)
    rows = [str(row) for row in evidence.runs if row.id == run_id]
    return [f"  {(at - begin) / 1e6 if at else 0:9.4f}  {text}" for at, text in events] + [
        f"  at the end: {row}" for row in rows
    ]


def events_of(evidence: Evidence, run_id: str) -> Iterator[Line]:
    case = sort_by_run(evidence).get(run_id)
    if case is None:
        return
    for start in case.starts:
        yield start.at, f"start of {start.workflow} acknowledged (key {start.key})"
    for act in case.acts:
        of = "" if act.undoes is None else f", undoes {act.undoes}"
        yield (
            act.at,
            (
                f"act {act.nonce} of {act.name!r} at {_at(act)}, {act.does}{of}: "
                f"claim {act.claim}, attempt {act.attempt}, process {act.pid}"
            ),
        )
    for step in case.steps:
        what = step.kind if step.kind != "step" else ""
        yield (
            step.at,
            (
                f"on record: {what} {step.name!r} at {_at(step)}, {step.status} {step.output}, claim {step.claim}, "
                f"number {step.seq}"
            ),
        )
    for row in case.tries:
        yield row.at, f"on record: failed try {row.number} at {_at(row)}, attempt {row.attempt}, claim {row.claim}"
    for write in case.writes:
        yield (
            write.at,
            f"written: {write.what} {write.status} at {_at(write)}, claim {write.claim} (run at {write.run_claim})",
        )
    for move in case.moves:
        due = "" if move.due is None else f", due in {(move.due - move.at) / 1e6:.3f} s"
        asked = "" if move.asked is None else f", asked: {move.asked}"
        yield (
            move.at,
            (
                f"{move.old_status or 'born'} → {move.status}: claim {move.claim}, attempt {move.attempt}, losses "
                f"{move.losses}, wakes {move.wakes}, ends {move.ends}, worker {_name(evidence, move.worker)}"
                f"{due}{asked}"
            ),
        )
    for signal in evidence.signals:
        if signal.run == run_id:
            yield signal.at, f"signal {signal.nonce!r} sent as {signal.name!r}"
            if signal.acknowledged is not None:
                yield signal.acknowledged, f"signal {signal.nonce!r} acknowledged"
    for wish in case.wishes:
        said = {True: "granted", False: "refused", None: "no answer"}[wish.granted]
        yield wish.at, f"an operator wants {wish.what}: {said}"
    for written in case.rows:
        yield 0, f"row {written.nonce!r} at {written.branch}:{written.position}"
    for letter in case.letters:
        yield 0, f"left in the box: {letter.kind} {letter.name!r} {letter.value}"
    pids = {act.pid for act in case.acts} | {claim.pid for claim in case.claims.values()} | {0}
    for fault in evidence.faults:
        if fault.pid in pids:
            span = f" for {(fault.end - fault.begin) / 1e6:.2f} s" if fault.end > fault.begin else ""
            yield fault.begin, f"*** {f'process {fault.pid}' if fault.pid else 'the database'}: {fault.kind}{span}"


def _name(evidence: Evidence, worker: str | None) -> str:
    return "none" if worker is None else f"{worker[-6:]} (process {evidence.workers.get(worker)})"


def _at(item: Any) -> str:
    return f"{item.branch}:{item.position}" if item.branch else str(item.position)
