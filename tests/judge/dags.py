"""What must be true of dag runs when a storm is over, and the story of a run of which it is not.

Pure functions over what the ledger, the callers and the tables say. Joins are judged here anew, from the declared graph
alone: nothing of what the engine decided is taken for granted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stepfast.model.graph import APPROVAL, DagStep, Graph
from tests.judge import story
from tests.judge.cases import GIVEN_BACK, LOST, RELEASED, SLACK, TERMINAL, Case, Violation, load, sort_by_run
from tests.judge.evidence import CHANGED, DELETED, INSERTED, RETURNS, TRIED, Evidence, Move, Run, Write
from tests.judge.evidence import UNDO as UNDO_BRANCH

STEP, INNER, WHEN, UNDO = "step", "inner", "when", "undo"
"""What an act is: a call of a step's function, of a checkpoint inside it, of its condition, of its undo."""
BREAKS, STRAYS = "breaks", "strays"
"""What an act is about to do, beside returning and raising: fail for good; fail with an error that is caught."""

SETTLED = (*TERMINAL, "skipped")
_CAUGHT = "caught:"
_MOST = 3
"""Runs told in full."""


@dataclass(frozen=True)
class DagStepRow:
    """Which row is which step of which dag run."""

    id: str
    run: str
    name: str


@dataclass(frozen=True)
class GraphAct:
    """One call, as it wrote it down itself."""

    at: int
    run: str
    dag_step: str
    row: str
    """Whose claim it was made under: the step's; for an undo, the dag run's."""
    claim: int
    attempt: int
    pid: int
    nonce: str
    what: str = STEP
    does: str = RETURNS
    saw: dict[str, Any] = field(default_factory=dict)
    """``ctx.outputs``."""
    undoes: Any = None
    """For an undo: the output it was given."""


@dataclass
class Scene:
    """Everything there is to know about a storm over dags."""

    evidence: Evidence
    graphs: dict[str, Graph]
    dag_steps: list[DagStepRow]
    acts: list[GraphAct]
    answers: list[tuple[str, str, Any]] = field(default_factory=list)
    """Signals that somebody set out to send: (dag run, gate, value)."""

    @cached_property
    def cases(self) -> dict[str, Case]:
        return sort_by_run(self.evidence)

    @cached_property
    def runs(self) -> list[GraphCase]:
        """The dag runs."""
        dag_steps: defaultdict[str, dict[str, Case]] = defaultdict(dict)
        acts: defaultdict[str, list[GraphAct]] = defaultdict(list)
        answers: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for dag_step in self.dag_steps:
            dag_steps[dag_step.run][dag_step.name] = self.cases.get(dag_step.id, Case(dag_step.id))
        for act in self.acts:
            acts[act.run].append(act)
        for run_id, gate, value in self.answers:
            answers[run_id, gate].append(value)
        return [
            GraphCase(
                row, self.graphs[row.workflow], self.cases[row.id], dag_steps[row.id],
                sorted(acts[row.id], key=lambda act: act.at),
                {gate: answers[row.id, gate] for gate in self.graphs[row.workflow].dag_steps},
            )
            for row in self.evidence.runs
            if row.workflow in self.graphs
        ]  # fmt: skip

    def count(self) -> Counter[str]:
        """What the storm went over, for the table."""
        undoing = sum(claim.how == LOST for run in self.runs for claim in run.case.claims.values())
        doing = sum(
            claim.how == LOST
            for run in self.runs
            for dag_step in run.dag_steps.values()
            for claim in dag_step.claims.values()
        )
        return Counter(
            {
                "storms": 1, "dag runs": len(self.runs), "dag steps": len(self.dag_steps), "dag acts": len(self.acts),
                "dag undos": sum(len(run.undos) for run in self.runs), "lost doing": doing, "lost undoing": undoing,
                **{
                    many: sum(wish.what == what and wish.granted is True for wish in self.evidence.wishes)
                    for what, many in (("cancel", "cancels"), ("pause", "pauses"), ("retry", "retries"))
                },
            }
        )  # fmt: skip


@dataclass
class GraphCase:
    """Everything about one dag run."""

    row: Run
    graph: Graph
    case: Case
    dag_steps: dict[str, Case]
    acts: list[GraphAct]
    answers: dict[str, list[Any]]

    def status(self, name: str) -> str:
        row = self.dag_steps[name].row if name in self.dag_steps else None
        return "" if row is None else row.status

    def output(self, name: str) -> Any:
        row = self.dag_steps[name].row
        assert row is not None
        return load(row.output)

    def caught_by(self, name: str) -> str | None:
        """Where the error of a step led, if it was caught."""
        row = self.dag_steps[name].row if name in self.dag_steps else None
        reason = row.reason or "" if row is not None else ""
        return reason.removeprefix(_CAUGHT) if reason.startswith(_CAUGHT) else None

    @cached_property
    def fate(self) -> dict[str, Any]:
        return {"breaks": [], "strays": [], "unwanted": [], "stuck": [], **(load(self.row.input) or {})}

    @cached_property
    def completed(self) -> list[str]:
        return [name for name in self.graph.dag_steps if self.status(name) == "completed"]

    @cached_property
    def failed(self) -> list[str]:
        """Steps that fail their run."""
        return [name for name in self.graph.dag_steps if self.status(name) == "failed" and self.caught_by(name) is None]

    @cached_property
    def undoable(self) -> list[str]:
        return [name for name in self.completed if self.graph.dag_steps[name].undo is not None]

    @cached_property
    def settled_at(self) -> dict[str, int]:
        """When the end of each step was written; the last one, if a retry has opened it again."""
        return {name: ends[-1].at for name, case in self.dag_steps.items() if (ends := ends_of(case))}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The positions of undo records."""
        return {name: number for number, name in enumerate(self.graph.order, 1)}

    @cached_property
    def undos(self) -> dict[str, list[Write]]:
        """Every outcome of an undo that was ever written."""
        names = {number: name for name, number in self.numbers.items()}
        found: dict[str, list[Write]] = {}
        for write in self.case.writes:
            outcome = write.what in (INSERTED, CHANGED) and write.status in ("completed", "failed")
            if write.branch == UNDO_BRANCH and outcome:
                found.setdefault(names.get(write.position, f"number {write.position}"), []).append(write)
        return found

    @cached_property
    def undo_failed(self) -> list[str]:
        return [name for name, writes in self.undos.items() if any(write.status == "failed" for write in writes)]

    @cached_property
    def wished(self) -> bool:
        """Whether somebody wanted it cancelled, and was not refused."""
        return any(wish.what == "cancel" and wish.granted is not False for wish in self.case.wishes)

    @cached_property
    def retries(self) -> int:
        """How often somebody let it go on after its end, and was not refused."""
        return sum(wish.what == "retry" and wish.granted is not False for wish in self.case.wishes)

    @cached_property
    def held(self) -> list[tuple[int, int]]:
        """When it was paused: from, until."""
        found, since = list[tuple[int, int]](), None
        for move in self.case.moves:
            if since is not None and move.status != "paused":
                found.append((since, move.at))
            since = None if move.status != "paused" else move.at if since is None else since
        return found

    def of(self, name: str, *what: str) -> list[GraphAct]:
        return [act for act in self.acts if act.dag_step == name and act.what in what]

    def stale(self, act: GraphAct) -> bool:
        """Made by a process that was alive but had lost its lease: a machine under load may starve one. Nothing of it
        may count, but nobody can keep it from beginning."""
        case = self.case if act.row == self.row.id else self.dag_steps.get(act.dag_step)
        claim = case.claims.get(act.claim) if case is not None else None
        return claim is not None and claim.how == LOST and claim.ended is not None and act.at > claim.ended

    def dependencies(self, name: str) -> dict[str, bool]:
        """What a step waits for, and whether by its ``after`` (or as the place where errors lead)."""
        found = dict.fromkeys(self.graph.dag_steps[name].after, True)
        for other in self.graph.dag_steps.values():
            if name in other.catch.values():
                found.setdefault(other.name, False)
        return found

    def met(self, name: str, before: Callable[[str], bool] = lambda _: True) -> list[str]:
        """The dependencies of a step that count for it, among those settled before a time."""
        found = []
        for other, by_after in self.dependencies(name).items():
            to = self.caught_by(other)
            counts = to == name if to is not None else by_after and self.status(other) == "completed"
            if counts and before(other):
                found.append(other)
        return found

    def later(self, name: str) -> set[str]:
        """All steps that come after one, directly or not."""
        found: set[str] = set()
        look = [name]
        while look:
            here = look.pop()
            for other in self.graph.dag_steps:
                if other not in found and here in self.dependencies(other):
                    found.add(other)
                    look.append(other)
        return found


def ends_of(case: Case) -> list[Move]:
    """The moves by which a run or a step came to its end: one, and one more for each retry."""
    return [move for move in case.moves if move.status in SETTLED and move.old_status not in SETTLED]


Found = Iterator[tuple[str, str]]


def check(scene: Scene) -> list[Violation]:
    """Every broken promise."""
    found = list(_starts(scene))
    for run in scene.runs:
        for rule in RULES:
            found += [Violation(kind, run.row.id, text) for kind, text in rule(run)]
    return found + list(_told(scene))


def _starts(scene: Scene) -> Iterator[Violation]:
    there = {row.id for row in scene.evidence.runs}
    for start in scene.evidence.starts:
        if start.run not in there:
            yield Violation("lost", start.run, f"the start of {start.workflow} was acknowledged, and there is no run")
    for run_id in scene.evidence.unwanted:
        if run_id in there:
            yield Violation("unwanted", run_id, "its start was rolled back")
    for act in scene.acts:
        if act.run not in there:
            yield Violation("unwanted", act.run, f"{act.what} of {act.dag_step} for a run that does not exist")


def _told(scene: Scene) -> Iterator[Violation]:
    """What callers were told of the end."""
    runs = {run.row.id: run for run in scene.runs}
    told = {seen.run for seen in scene.evidence.seen}
    for start in scene.evidence.starts:
        if start.run in runs and start.run not in told:
            yield Violation("hung", start.run, "nobody was told how it ended")
    for seen in scene.evidence.seen:
        row = runs[seen.run].row if seen.run in runs else None
        if row is None or runs[seen.run].retries:
            continue  # a caller may have heard of an earlier end
        if (seen.status == "completed") != (row.status == "completed"):
            yield Violation("wrong result", seen.run, f"a caller heard {seen.status}; it is {row.status}")
        elif seen.status not in ("completed", "failed", "cancelled"):
            yield Violation("wrong result", seen.run, f"a caller heard {seen.status}")
        elif seen.status == "completed" and load(seen.value) != load(row.output):
            yield Violation("wrong result", seen.run, f"a caller heard {seen.value}; on record is {row.output}")


# -- ends ----------------------------------------------------------------------------------------------------------


def it_ends(run: GraphCase) -> Found:
    """The run and each of its steps come to one end, and nothing of them is left in its queue."""
    if set(run.dag_steps) != set(run.graph.dag_steps):
        yield "missing", f"it has the steps {sorted(run.dag_steps)}"
    if run.row.status not in TERMINAL:
        yield "hung", f"it is {run.row.status}"
    if run.row.held:
        yield "left behind", "it still stands in its queue, has a timer or a worker"
    for name, case in run.dag_steps.items():
        if case.row is None or case.row.status not in SETTLED:
            yield "hung", f"step {name} is {case.row and case.row.status}"
        elif case.row.held:
            yield "left behind", f"step {name} still stands in its queue, has a timer or a worker"
    for name, case in {"": run.case, **run.dag_steps}.items():
        ends = ends_of(case)
        if len(ends) > 1 + run.retries:
            yield "twice", f"{name or 'the run'} ended {len(ends)} times: {[move.status for move in ends]}"
        final = ("completed", "compensated") if run.retries else SETTLED
        if any(move.old_status in final and move.status != move.old_status for move in case.moves):
            yield "twice", f"{name or 'the run'} changed after its end"


def outcomes_are_true(run: GraphCase) -> Found:
    """What is on record was produced by an act, of the claim that recorded it."""
    for name, case in run.dag_steps.items():
        if case.row is None:
            continue
        dag_step = run.graph.dag_steps[name]
        acts = {act.nonce: act for act in run.of(name, STEP)}
        last = next((move.old_claim for move in reversed(ends_of(case))), None)
        if case.row.status == "completed" and dag_step.kind == APPROVAL:
            allowed = [*run.answers[name], *([True] if dag_step.on_timeout == "approve" else [])]
            if load(case.row.output) not in allowed:
                yield "made up", f"gate {name} gave {case.row.output}; nobody said so"
        elif case.row.status == "completed":
            act = acts.get(load(case.row.output))
            if act is None or act.does != RETURNS:
                yield "made up", f"step {name} gave {case.row.output}; no act did"
            elif act.claim != last:
                yield "made up", f"step {name} was completed by claim {last} with what claim {act.claim} produced"
        elif case.row.status == "failed" and dag_step.kind == APPROVAL:
            if False not in run.answers[name]:
                yield "made up", f"gate {name} failed; nobody refused"
        elif case.row.status == "failed":
            raised = [act for nonce, act in acts.items() if nonce in (case.row.error or "") and act.claim == last]
            if not any(act.does in (BREAKS, STRAYS) for act in raised):
                yield "made up", f"step {name} failed with {case.row.error}; no act of claim {last} did"
            if (run.caught_by(name) is not None) != any(act.does == STRAYS and dag_step.catch for act in raised):
                yield "made up", f"step {name} failed, which was {'' if run.caught_by(name) else 'not '}caught"


def the_result_is_the_outputs(run: GraphCase) -> Found:
    if run.row.status == "completed":
        wanted = {name: run.output(name) for name in run.completed}
        if load(run.row.output) != wanted:
            yield "wrong result", f"{run.row.output} is recorded; the steps gave {json.dumps(wanted)}"


def it_ends_as_it_must(run: GraphCase) -> Found:
    """By what its steps did, what operators wished, and what its undos did."""
    status, reason = run.row.status, run.row.reason
    if status == "completed":
        if run.failed:
            yield "wrong end", f"it is completed, and {run.failed} failed"
        yield from _as_declared(run)
        return
    if not run.failed and not run.wished:
        yield "wrong end", f"it is {status} ({reason}); no step failed, and nobody cancelled it"
    if run.undo_failed:
        missing = [name for name in run.undo_failed if repr(name) not in json.dumps(load(run.row.error))]
        if status != "failed" or missing:
            yield "wrong end", f"undos of {run.undo_failed} failed; it is {status} with {run.row.error}"
    elif run.undoable:
        if status != "compensated":
            yield "wrong end", f"{run.undoable} were undone; it is {status} ({reason})"
    elif status not in (["failed"] if run.failed else []) + (["cancelled"] if run.wished else []):
        yield "wrong end", f"nothing was to be undone; it is {status} ({reason})"


def _as_declared(run: GraphCase) -> Found:
    """In a run that was completed, each step stands as its dependencies and its fate want it."""
    for name, dag_step in run.graph.dag_steps.items():
        caught = name in run.fate["strays"] and bool(dag_step.catch)
        if not _begins(run, name, dag_step, run.met(name)):
            allowed = {"skipped"}
        elif dag_step.kind == APPROVAL:
            allowed = {"completed", "skipped" if dag_step.on_timeout == "skip" else "completed"}
        elif dag_step.conditional and name in run.fate["unwanted"]:
            allowed = {"skipped"}
        else:
            allowed = {"failed" if caught else "completed"}
        if run.status(name) not in allowed:
            yield "wrong end", f"step {name} is {run.status(name)}; it was to be {' or '.join(sorted(allowed))}"


def _begins(run: GraphCase, name: str, dag_step: DagStep, met: list[str]) -> bool:
    if not run.dependencies(name):
        return True
    return len(met) >= (1 if dag_step.at_least is None else dag_step.at_least)


# -- order ---------------------------------------------------------------------------------------------------------


def steps_wait_for_others(run: GraphCase) -> Found:
    """A step begins when what it needs is on record, and sees just that, however often it begins."""
    seen: dict[str, GraphAct] = {}
    for act in run.acts:
        if act.what not in (STEP, WHEN) or run.stale(act):
            continue
        dag_step, by = run.graph.dag_steps[act.dag_step], act.at + SLACK
        met = run.met(act.dag_step, lambda other: run.settled_at.get(other, by + 1) <= by)  # noqa: B023
        late = [d for d in run.dependencies(act.dag_step) if run.settled_at.get(d, by + 1) > by]
        if dag_step.at_least is None and late:
            yield "too early", f"{act.what} {act.dag_step} ({act.nonce}) began before {late} had ended"
        if not _begins(run, act.dag_step, dag_step, met):
            yield "too early", f"{act.what} {act.dag_step} ({act.nonce}) began when only {met} counted"
        for name, value in act.saw.items():
            if run.status(name) != "completed" or run.output(name) != value:
                yield "wrong output", f"{act.what} {act.dag_step} ({act.nonce}) saw {value!r} of {name}"
        outputs = [d for d in run.dependencies(act.dag_step) if d in act.saw]
        caught = [d for d in met if run.caught_by(d) is not None]
        short = len(outputs) + len(caught) < dag_step.at_least if dag_step.at_least is not None else (
            {d for d in met if d not in caught} - set(outputs)
        )  # fmt: skip
        if short:
            yield "wrong output", f"{act.what} {act.dag_step} ({act.nonce}) saw only {sorted(act.saw)}"
        first = seen.setdefault(act.dag_step, act)
        if first.saw != act.saw:
            yield "wrong output", f"{act.dag_step} saw {sorted(first.saw)} ({first.nonce}), then {sorted(act.saw)}"


def nothing_begins_while_it_is_paused(run: GraphCase) -> Found:
    """What a worker has in hand finishes; what is taken after the pause, and before the resume, was not to be."""
    for act in run.acts:
        case = run.dag_steps.get(act.dag_step) if act.what in (STEP, WHEN) else None
        claim = case.claims.get(act.claim) if case is not None else None
        if claim is not None and any(since + SLACK < claim.began < until - SLACK for since, until in run.held):
            yield "begun while paused", f"{act.what} {act.dag_step} ({act.nonce}) under claim {act.claim}"


def no_step_after_an_undo(run: GraphCase) -> Found:
    """The undoing begins when every step has come to its end, and none begins any more."""
    acts = [act for act in run.acts if not run.stale(act)]
    undos = [act for act in acts if act.what == UNDO]
    if not undos:
        return
    first = undos[0]
    for act in acts:
        if act.what != UNDO and act.at > first.at:
            yield (
                "too late",
                f"{act.what} {act.dag_step} ({act.nonce}) began after undo {first.dag_step} ({first.nonce})",
            )
    for name in run.graph.dag_steps:
        if run.settled_at.get(name, first.at + SLACK + 1) > first.at + SLACK:
            yield "too early", f"undo {first.dag_step} ({first.nonce}) began before step {name} had ended"


def undos_run_in_reverse(run: GraphCase) -> Found:
    """An undo begins when those of all completed steps after its own are on record."""
    for act in run.acts:
        if act.what == UNDO and not run.stale(act):
            for name in run.later(act.dag_step) & set(run.undoable):
                at = min((write.at for write in run.undos.get(name, [])), default=None)
                if at is None or at > act.at + SLACK:
                    yield "too early", f"undo {act.dag_step} ({act.nonce}) began before that of {name} was on record"


# -- once only -----------------------------------------------------------------------------------------------------


def acts_are_accounted_for(run: GraphCase) -> Found:
    """A step is called once, and once more for each claim that was lost, failed, or waited."""
    for name, case in run.dag_steps.items():
        steps = run.of(name, STEP)
        for what in (STEP, INNER, WHEN):
            most = Counter(act.claim for act in run.of(name, what)).most_common(1)
            if most and most[0][1] > 1:
                yield "twice", f"{what} {name} was called {most[0][1]} times under claim {most[0][0]}"
        for act in steps:
            if act.claim not in case.claims or case.claims[act.claim].pid != act.pid:
                yield "stolen", f"{name} ({act.nonce}) acted under claim {act.claim}, which process {act.pid} never had"
        excused = sum(claim.cut_short or claim.how == RELEASED for claim in case.claims.values())
        if len(steps) > 1 + excused:
            yield "too often", f"{name} was called {len(steps)} times; {excused} claims were lost, failed or waited"
        if run.status(name) == "skipped" and steps:
            yield "too often", f"{name} was skipped, and was called {len(steps)} times"
        yield from _checkpoints(run, name, case)


def _checkpoints(run: GraphCase, name: str, case: Case) -> Found:
    """What a step recorded itself was produced by an act, and is not made again."""
    acts = {act.nonce: act for act in run.of(name, INNER)}
    for record in case.steps:
        if record.kind == "step" and record.status == "completed":
            act = acts.get(load(record.output))
            if act is None or act.claim != record.claim:
                yield "made up", f"a checkpoint of {name} gave {record.output}; no act of claim {record.claim} did"
            again = [act.nonce for act in acts.values() if act.claim > record.claim]
            if again:
                yield "twice", f"a checkpoint of {name} was called again, though on record: {again}"
    places = Counter(write.place for write in case.writes if write.what == INSERTED)
    asked_again = run.retries if run.graph.dag_steps[name].kind == APPROVAL else 0
    if any(count > 1 + asked_again for count in places.values()):
        yield "twice", f"a checkpoint of {name} was recorded twice"


def undos_are_accounted_for(run: GraphCase) -> Found:
    """Each completed step that can be undone has one outcome of its undo, if the run failed; no other has any."""
    wanted = set() if run.row.status == "completed" else set(run.undoable)
    for name in wanted - set(run.undos):
        yield "not undone", f"step {name} was completed"
    for name, writes in run.undos.items():
        if name not in wanted:
            yield "wrongly undone", f"step {name} is {run.status(name)}; its undo is on record"
        elif len(writes) > 1:
            yield "twice", f"the undo of {name} was recorded {len(writes)} times"
    if any(write.what == DELETED for write in run.case.writes):
        yield "twice", "the record of an undo was taken back"
    cut = sum(claim.how in (LOST, GIVEN_BACK) for claim in run.case.claims.values())
    for name in dict.fromkeys(act.dag_step for act in run.acts if act.what == UNDO):
        acts = run.of(name, UNDO)
        if name not in wanted:
            yield "wrongly undone", f"step {name} is {run.status(name)}; its undo was called"
            continue
        place = (UNDO_BRANCH, run.numbers[name])
        failures = sum(write.what == TRIED and write.place == place for write in run.case.writes)
        if len(acts) > 1 + cut + failures:
            yield "too often", f"undo {name} was called {len(acts)} times: {cut} claims lost, {failures} tries failed"
        for write in run.undos.get(name, []):
            does = {act.does for act in acts if act.claim == write.claim}
            if (RETURNS if write.status == "completed" else BREAKS) not in does:
                yield "made up", f"undo {name} is on record as {write.status}; its acts of that claim {sorted(does)}"
            again = [act.nonce for act in acts if act.claim > write.claim]
            if again:
                yield "twice", f"undo {name} was called again, though on record: {again}"
        for act in acts:
            if run.output(name) != act.undoes:
                yield "wrong output", f"undo {name} ({act.nonce}) was given {act.undoes!r}"


RULES: tuple[Callable[[GraphCase], Found], ...] = (
    it_ends, outcomes_are_true, the_result_is_the_outputs, it_ends_as_it_must, steps_wait_for_others,
    nothing_begins_while_it_is_paused, no_step_after_an_undo, undos_run_in_reverse, acts_are_accounted_for,
    undos_are_accounted_for,
)  # fmt: skip


# -- the story -----------------------------------------------------------------------------------------------------


def tell(scene: Scene, violations: list[Violation]) -> str:
    """Every violation, and the stories of the first few runs."""
    lines = [f"{len(violations)} violations", *map(str, violations)]
    for run_id in list(dict.fromkeys(violation.run for violation in violations))[:_MOST]:
        lines += ["", f"The story of dag run {run_id}", *tell_run(scene, run_id)]
    return "\n".join(lines)


def tell_run(scene: Scene, run_id: str) -> list[str]:
    """The run, its steps and its undos, in order of time."""
    names = {run_id: "run", **{dag_step.id: dag_step.name for dag_step in scene.dag_steps if dag_step.run == run_id}}
    acts = [act for act in scene.acts if act.run == run_id]
    events = [
        (at, f"{name:>8}: {text}")
        for row, name in names.items()
        for at, text in story.events_of(scene.evidence, row)
        if not text.startswith("***")
    ]
    for act in acts:
        by = f"claim {act.claim}, attempt {act.attempt}, process {act.pid}"
        events.append((act.at, f"{act.dag_step:>8}: {act.what.upper()} {act.nonce} {act.does}: {by}, saw {act.saw}"))
    claims = [claim for row in names for claim in scene.cases.get(row, Case(row)).claims.values()]
    pids = {act.pid for act in acts} | {claim.pid for claim in claims}
    events += [
        (fault.begin, f"*** process {fault.pid}: {fault.kind}") for fault in scene.evidence.faults if fault.pid in pids
    ]
    events = sorted(dict.fromkeys(events))
    begin = next((at for at, _ in events if at), 0)
    rows = [f"  at the end: {names[row.id]}: {row}" for row in scene.evidence.runs if row.id in names]
    said = [f"  answer to {gate}: {value!r}" for run, gate, value in scene.answers if run == run_id]
    return [f"  {(at - begin) / 1e6 if at else 0:9.4f}  {text}" for at, text in events] + said + rows
