"""What must be true of remote steps when a storm is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.remote_workload import LATE, MAY_FAIL, RETRIES
from tests.judge.cases import Violation
from tests.judge.evidence import CHANGED, Evidence, Run

ENDED = ("completed", "failed", "cancelled", "compensated", "skipped")
OVER = frozenset({"settled", "withdrawn"})
_WISHES = {"cancel": "cancels", "pause": "pauses", "retry": "retries"}


@dataclass(frozen=True)
class Served:
    """One call of a handler elsewhere."""

    at: int
    run: str
    what: str
    maker: str
    does: str
    nonce: str
    pid: int
    of: str | None = None
    """What it undoes: the value that was given."""


@dataclass(frozen=True)
class RemoteRow:
    """A row of what the engine knows of a remote step."""

    run: str
    seq: int
    state: str
    attempt: int
    resent: int
    due_at: int | None


@dataclass
class RemoteScene:
    """Everything there is to know."""

    evidence: Evidence
    served: list[Served]
    rows: list[RemoteRow]
    outcomes: dict[tuple[str, str, int], tuple[str, str | None, str | None]]
    """Status, output and error of each record of a remote step, by run, branch and position."""
    undone: set[tuple[str, str, int]]
    """Those of them that say how to undo them."""
    dags: dict[str, str]
    """The dag run of each row that is a step of one."""
    left: list[str] = field(default_factory=list)
    """Steps of which something is left in the transport's tables."""

    def count(self) -> Counter[str]:
        """What the storm went over, for the table."""
        undos = sum(act.of is not None for act in self.served)
        makers = Counter(f"by {act.maker}" for act in self.served)
        wishes = Counter(_WISHES[wish.what] for wish in self.evidence.wishes if wish.granted and wish.what in _WISHES)
        rows, served = len(self.rows), len(self.served)
        again = sum(row.resent for row in self.rows)
        storm = {"storms": 1, "runs": len(self.evidence.runs), "remote steps": rows, "served": served}
        return Counter(storm) + Counter({"sent again": again, "undos": undos}) + makers + wishes


def check(scene: RemoteScene) -> list[Violation]:
    """Every broken promise."""
    return [*_runs(scene), *_records(scene), *_writes(scene), *_results(scene), *_undos(scene), *_leftovers(scene)]


def _runs(scene: RemoteScene) -> Iterator[Violation]:
    known = {run.id for run in scene.evidence.runs}
    for start in scene.evidence.starts:
        if start.run not in known:
            yield Violation("lost", start.run, "its start was acknowledged")
    for run in scene.evidence.runs:
        if run.status not in ENDED or run.held:
            yield Violation("not ended", run.id, f"{run.workflow} is {run.status}")
        if run.status == "failed" and not _may_fail(scene, run):
            yield Violation("failed", run.id, f"{run.workflow}: {run.error}")


def _may_fail(scene: RemoteScene, run: Run) -> bool:
    """Whether a run may have failed: its workflow says so, or it gives up with nothing that could be undone."""
    done = any(place[0] == run.id and outcome[0] == "completed" for place, outcome in scene.outcomes.items())
    return run.workflow.partition("/")[0] in MAY_FAIL or (run.workflow == "saga" and not done)


def _records(scene: RemoteScene) -> Iterator[Violation]:
    """An outcome is one that a handler really gave, for this run, and no two steps share one."""
    acts = {act.nonce: act for act in scene.served if act.of is None}
    used: dict[str, tuple[str, str, int]] = {}
    for place, (status, output, error) in scene.outcomes.items():
        run_id = scene.dags.get(place[0], place[0])
        if status == "completed":
            nonce = json.loads(output or "null")
        elif status == "failed":
            said = json.loads(error or "null")
            if said["type"] == "RemoteTimeout":
                continue
            nonce = said["message"]
        else:
            continue
        act = acts.get(nonce)
        if act is None or act.run != run_id or (act.does == "completed") != (status == "completed"):
            yield Violation("made up", run_id, f"{place[1:]} is {status} with {nonce!r}, of which the ledger has {act}")
        elif nonce in used:
            yield Violation("shared", run_id, f"{place} and {used[nonce]} have the outcome of one call")
        used[nonce] = place
    for row in scene.rows:
        if row.attempt > RETRIES + 1:
            yield Violation("too often", row.run, f"step {row.seq} had {row.attempt} attempts")


def _writes(scene: RemoteScene) -> Iterator[Violation]:
    """A record is settled once, and by the claim that holds the run."""
    for write in scene.evidence.writes:
        if write.kind not in ("remote", "undo"):
            continue
        if write.what == CHANGED and write.old_status not in ("waiting", "running", "compensating", None):
            yield Violation("recorded twice", write.run, f"{write.place} was {write.old_status}, now {write.status}")
        if write.what != "step-" and write.run_claim != write.claim:
            yield Violation("not fenced", write.run, f"{write.place} by claim {write.claim} in {write.run_claim}")


def _results(scene: RemoteScene) -> Iterator[Violation]:
    """What a run returned, and what callers were told, is what handlers gave."""
    acts = {act.nonce: act for act in scene.served}
    seen = {each.run: each for each in scene.evidence.seen}
    for run in scene.evidence.runs:
        told = seen.get(run.id)
        if run.status == "completed" and run.id not in scene.dags:
            output: dict[str, str] = json.loads(run.output or "{}")
            if told is not None and (told.status != "completed" or json.loads(told.value or "null") != output):
                yield Violation("told otherwise", run.id, f"{told} but the row has {run.output}")
            for what, value in output.items():
                act = acts.get(value.removeprefix("failed "))
                if value != LATE and (act is None or (act.run, act.what) != (run.id, what)):
                    yield Violation("swapped", run.id, f"{what} is {value!r}, of which the ledger has {act}")
        elif told is not None and told.status != run.status and told.status == "completed":
            yield Violation("told otherwise", run.id, f"{told} but it is {run.status}")


def _undos(scene: RemoteScene) -> Iterator[Violation]:
    """What was completed is undone if its run was compensated, and only then; nothing else is."""
    status = {run.id: run.status for run in scene.evidence.runs}
    undone = {act.of for act in scene.served if act.of is not None}
    for place in scene.undone:
        owner, (ended, output, _) = scene.dags.get(place[0], place[0]), scene.outcomes[place]
        value = json.loads(output or "null")
        if ended == "completed" and status[owner] == "compensated" and value not in undone:
            yield Violation("not undone", owner, f"{place[1:]} gave {value!r}, and the run is compensated")
    completed = {json.loads(output or "null") for ended, output, _ in scene.outcomes.values() if ended == "completed"}
    for act in scene.served:
        if act.of is None:
            continue
        if status.get(act.run) != "compensated":
            yield Violation("undone", act.run, f"{act}, but the run is {status.get(act.run)}")
        if act.of not in completed:
            yield Violation("undone", act.run, f"{act}, which no record has")


def _leftovers(scene: RemoteScene) -> Iterator[Violation]:
    for step_id in scene.left:
        yield Violation("left on the transport", step_id.rpartition(":")[0], step_id)
    for row in scene.rows:
        if row.state not in OVER or row.due_at is not None:
            yield Violation("left open", row.run, str(row))


def tell(scene: RemoteScene, violations: list[Violation]) -> str:
    """Every violation, and what is known of the first few runs."""
    from tests.judge.story import tell_run

    lines: list[Any] = [f"{len(violations)} violations", *violations]
    for run_id in list(dict.fromkeys(violation.run for violation in violations))[:3]:
        lines += ["", f"The story of run {run_id}", *tell_run(scene.evidence, run_id)]
        lines += [row for row in scene.rows if row.run == run_id]
        lines += [act for act in scene.served if act.run == run_id]
        lines += [(place, outcome) for place, outcome in scene.outcomes.items() if place[0] == run_id]
    return "\n".join(map(str, lines))
