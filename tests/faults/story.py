"""The whole story of a run, for reading what went wrong: starts, claims, acts, records and faults in order of time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.checker import Violation, sort_by_run
from tests.faults.evidence import Evidence

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
    events = sorted(_events(evidence, run_id))
    begin = events[0][0] if events else 0
    rows = [str(row) for row in evidence.runs if row.id == run_id]
    return [f"  {(at - begin) / 1e6:9.4f}  {text}" for at, text in events] + [f"  at the end: {row}" for row in rows]


def _events(evidence: Evidence, run_id: str) -> Iterator[Line]:
    case = sort_by_run(evidence).get(run_id)
    if case is None:
        return
    for start in case.starts:
        yield start.at, f"start of {start.workflow} acknowledged (key {start.key})"
    for act in case.acts:
        yield (
            act.at,
            (
                f"act {act.nonce} of {act.name!r} at {act.position}, {act.does}: "
                f"claim {act.claim}, attempt {act.attempt}, process {act.pid}"
            ),
        )
    for step in case.steps:
        yield step.at, f"on record: {step.name!r} at {step.position}, {step.status} {step.output}, claim {step.claim}"
    for row in case.tries:
        yield row.at, f"on record: failed try {row.number} at {row.position}, attempt {row.attempt}, claim {row.claim}"
    for write in case.writes:
        yield write.at, f"written: {write.what} at {write.position}, claim {write.claim} (run at {write.run_claim})"
    for move in case.moves:
        due = "" if move.due is None else f", due in {(move.due - move.at) / 1e6:.3f} s"
        yield (
            move.at,
            (
                f"{move.old_status or 'born'} → {move.status}: claim {move.claim}, attempt {move.attempt}, losses "
                f"{move.losses}, worker {_name(evidence, move.worker)}{due}"
            ),
        )
    pids = {act.pid for act in case.acts} | {claim.pid for claim in case.claims.values()} | {0}
    for fault in evidence.faults:
        if fault.pid in pids:
            span = f" for {(fault.end - fault.begin) / 1e6:.2f} s" if fault.end > fault.begin else ""
            yield fault.begin, f"*** {f'process {fault.pid}' if fault.pid else 'the database'}: {fault.kind}{span}"


def _name(evidence: Evidence, worker: str | None) -> str:
    return "none" if worker is None else f"{worker[-6:]} (process {evidence.workers.get(worker)})"
