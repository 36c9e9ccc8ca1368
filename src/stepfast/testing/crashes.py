"""``crash_everywhere``: a run for every commit, in which the worker dies just before or just after it.

Each run begins with the same id, the same random values and the same time as one that nothing happened to, and must
come to the same end with the same records. Any difference comes from something that is not recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..app import Stepfast
from ..engine.compensation import UNDO_BRANCH
from ..engine.outcomes import decode_error
from ..engine.timers import SLEEP
from ..engine.workflow import Workflow
from ..info import ErrorInfo, all_steps
from ..model.payload import Payloads
from ..model.records import StepRecord
from ..model.status import COMPLETED, TERMINAL, WAITING
from ..run import Run
from .lab import Cut, Lab

Drive = Callable[[Lab, Run[Any]], Any]

_MOST_JUMPS = 1000
"""How often time is moved to what is due next, before a run counts as one that does not end."""
_MOST_JUMPS_AFTER = 10
"""The same for runs beside it that continue after its end, before they count as such."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was tried, and how every run ended."""

    commits: int
    """Commits of the run that nothing happened to."""
    crashes: int
    """Runs in which a worker died: one before and one after each commit."""
    records: int
    """Records that each of them left."""
    status: str
    """How each of them ended."""
    result: Any = None
    """With what, if it completed."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is run again and again."""

    app: Stepfast
    workflow: Workflow[Any, Any] | str
    input: Any
    drive: Drive | None
    replace: Mapping[Any, Callable[..., Any]]
    now: datetime
    patience: float

    async def play(self, cut: Cut) -> Trace:
        async with Lab._for_crash(self.app, self.now, self.patience, cut) as lab:
            for what, function in self.replace.items():
                lab.replace(what, function)
            run = await lab.start(self.workflow, self.input)
            if self.drive is not None:
                driven = self.drive(lab, run)
                if inspect.isawaitable(driven):
                    await driven
            await lab.settle()
            for _ in range(_MOST_JUMPS):
                if await run.status() in TERMINAL or await lab.advance_to_next() is None:
                    break
            at_rest = False
            for _ in range(_MOST_JUMPS_AFTER):
                open_runs = [info for info in await lab.app.runs(limit=_PAGE) if info.status not in TERMINAL]
                if at_rest := not open_runs or await lab.advance_to_next() is None:
                    break
            return await trace_of(lab.app, run, at_rest=at_rest)


async def crash_everywhere(
    app: Stepfast,
    workflow: Workflow[Any, Any] | str,
    input: Any = None,
    *,
    drive: Drive | None = None,
    replace: Mapping[Any, Callable[..., Any]] | None = None,
    now: datetime | None = None,
    patience: float = 30.0,
) -> CrashReport:
    """Run a workflow as often as it commits something, twice: each time its worker dies just before, or just after, one
    of the commits, and another takes over. Every run must end alike, with the same records; otherwise an
    AssertionError shows the first that differs, and the line of its call.

    ``drive(lab, run)`` is called once after each start: it sends signals, lets time pass. What is due afterwards comes
    by itself. ``replace`` maps steps to the functions that stand in for them: a step that gives something else each
    time makes every run different.
    """
    scene = _Scene(app, workflow, input, drive, replace or {}, now or datetime.now(UTC), patience)
    cut = Cut()
    whole = await scene.play(cut)
    crashes = 0
    for after in (False, True):
        number = 1
        while await _crash(scene, whole, Cut(number, after), cut.commits):
            number, crashes = number + 1, crashes + 1
    return CrashReport(cut.commits, crashes, len(whole.records), whole.status, whole.result)


async def _crash(scene: _Scene, whole: Trace, cut: Cut, commits: int) -> bool:
    """Run it with one crash; False if there was no such commit."""
    where = f"the worker died just {'after' if cut.after else 'before'} commit {cut.number} of {commits}"
    try:
        trace = await scene.play(cut)
    except Exception as error:
        error.add_note(f"({where})")
        raise
    if (difference := first_difference(whole, trace)) is not None:
        raise AssertionError(f"{where}, and the run went another way.\n{difference}")
    assert cut.number is not None
    return cut.commits >= cut.number


_PAGE = 1000
_LONGEST = 300
"""Characters of a value that are shown."""


class Address(NamedTuple):
    """The run, by its number among all of the lab; the branch, and the position in it."""

    run: str
    branch: str
    position: int
    undo: bool = False
    """Whether it is the undo of what is recorded there. Undos are stored by the number of the record they undo, which
    depends on what was recorded first."""

    def __str__(self) -> str:
        what = f"{'the undo of ' if self.undo else ''}record {self.position}"
        return what + (f" of branch {self.branch!r}" if self.branch else "") + (f" of {self.run}" if self.run else "")


@dataclass(slots=True)
class Trace:
    """What a run and all that it has started have left behind."""

    status: str
    result: Any
    error: str | None
    records: dict[Address, Mark] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """How the other runs ended, and which values were set."""
    beside: list[str] = field(default_factory=list)
    """What the other runs are called."""
    at_rest: bool = True
    """Whether all of them had ended, or waited for something that never comes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One record, without what may well be different: times, and how often a function was called."""

    what: str
    """Its kind and name."""
    status: str
    output: str | None
    error: str | None
    arguments: str | None
    line: str | None = field(compare=False, default=None)

    def __str__(self) -> str:
        parts = [f"{self.what}, {self.status}"]
        for name, value in (("called with", self.arguments), ("gave", self.output), ("raised", self.error)):
            if value is not None:
                parts.append(f"{name} {value[:_LONGEST]}")
        return ", ".join(parts) + (f" (at {self.line})" if self.line else "")


async def trace_of(app: Stepfast, run: Run[Any], *, at_rest: bool = True) -> Trace:
    """Everything that can be compared of a run. If not all is at rest, how far runs beside it have come depends on when
    the worker died: those that have not ended are not compared."""
    info = await run.info()
    made = Trace(info.status, info.output if info.status == COMPLETED else None, _said(info.error))
    await _add_run(app, run.id, "", made)
    others = [other.id for other in await app.runs(limit=_PAGE) if other.id != run.id]
    made.at_rest = at_rest
    for other in sorted(others):
        name = f"run {other} beside it"
        seen = await app.get(other).this.info()
        if not at_rest and seen.status not in TERMINAL:
            continue
        made.beside.append(name)
        made.others[name] = f"{seen.workflow}: {seen.status}, {seen.output!r}, {_said(seen.error)}"
        await _add_run(app, other, name, made)
    return made


async def _add_run(app: Stepfast, run_id: str, name: str, trace: Trace) -> None:
    store, payloads = await app.store(), app._payloads
    for key, value in (await app.get(run_id).this.values()).items():
        trace.others[f"{name} value {key!r}".strip()] = repr(value)
    for stream in await store.stream_sizes(run_id):
        for source, count in (await store.stream_counts(run_id, stream)).items():
            trace.others[f"{name} stream {stream!r} from branch {source!r}".strip()] = f"{count} items"
    records = await all_steps(store, run_id)
    undone = [record for record in records if record.branch != UNDO_BRANCH]
    numbered = {record.seq: Address(name, record.branch, record.position, True) for record in undone}
    for record in sorted(records, key=lambda record: record.seq):
        address = Address(name, record.branch, record.position)
        if record.branch == UNDO_BRANCH:
            address = numbered.get(record.position, address)
        trace.records[address] = _mark(record, payloads)
    for step in await app.get(run_id).this.steps():
        if step.kind == "dag_step" and step.child is not None:
            trace.others[f"{name} dag step {step.name}".strip()] = (
                f"{step.status}, {step.output!r}, {_said(step.error)}"
            )
            await _add_run(app, step.child, f"{name} dag step {step.name}".strip(), trace)


def _mark(record: StepRecord, payloads: Payloads) -> Mark:
    """What a call that still waits has noted names the claim that opened it: another one after a crash. Of a sleep it
    is how long it was to be."""

    def plain(text: str | None) -> str | None:
        return None if text is None else str(payloads.plain(text, record.format, record.name))

    output = None if record.status == WAITING and record.kind != SLEEP else plain(record.output)
    error = None if record.error is None else _said_in(payloads, record)
    return Mark(f"{record.kind} {record.name!r}", record.status, output, error, plain(record.arguments), record.line)


def _said_in(payloads: Payloads, record: StepRecord) -> str:
    error = decode_error(record.error, record.format, payloads)
    return f"{error.get('type')}: {error.get('message')}"


def _said(error: ErrorInfo | None) -> str | None:
    return None if error is None else f"{error.type}: {error.message}"


def first_difference(whole: Trace, cut: Trace) -> str | None:
    """The first record that differs, or else how the runs ended; None, if they are alike."""
    if not (whole.at_rest and cut.at_rest):
        both = {name for name in whole.beside if name in cut.beside}
        whole, cut = _only(whole, both), _only(cut, both)
    for address in (*whole.records, *(address for address in cut.records if address not in whole.records)):
        before, now = whole.records.get(address), cut.records.get(address)
        if before != now:
            return _told(str(address), before, now, cut)
    for name in (*whole.others, *(name for name in cut.others if name not in whole.others)):
        if whole.others.get(name) != cut.others.get(name):
            return _told(name, whole.others.get(name), cut.others.get(name), cut)
    ends = [(trace.status, repr(trace.result), trace.error) for trace in (whole, cut)]
    if ends[0] != ends[1]:
        shown = [", ".join(part for part in end if part not in (None, "None")) for end in ends]
        return _told("the end of the run", shown[0], shown[1], cut)
    return None


def _only(trace: Trace, beside: set[str]) -> Trace:
    """Without what is told of runs beside it that are not among these."""
    gone = tuple(name for name in trace.beside if name not in beside)
    return replace(
        trace,
        records={address: mark for address, mark in trace.records.items() if not address.run.startswith(gone)},
        others={name: what for name, what in trace.others.items() if not name.startswith(gone)},
    )


def _told(what: str, before: object, now: object, cut: Trace) -> str:
    failed = f"\n  the run:         {cut.status}, {cut.error}" if cut.error is not None else ""
    return (
        f"The first difference is {what}:\n"
        f"  without a crash: {before or 'nothing'}\n"
        f"  with it:         {now or 'nothing'}{failed}\n"
        "Code outside of steps must do the same each time it is called: take time and chance from ctx.now(), "
        "ctx.random() and ctx.uuid(), and read the world in a step. A step whose result is another each time is "
        "replaced for this (replace={charge: fake_charge})."
    )
