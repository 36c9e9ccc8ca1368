"""What a run has left behind, as it can be compared with another: its end, its records, and those of its children."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..app import Stepfast
from ..engine.compensation import UNDO_BRANCH
from ..engine.outcomes import decode_error
from ..engine.timers import SLEEP
from ..info import ErrorInfo
from ..model.payload import Payloads
from ..model.records import StepRecord
from ..model.status import COMPLETED, WAITING
from ..run import Run

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


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run and all that it has started have left behind."""

    status: str
    result: Any
    error: str | None
    records: dict[Address, Mark] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """How the other runs ended, and which values were set."""


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


async def trace_of(app: Stepfast, run: Run[Any]) -> Trace:
    """Everything that can be compared of a run."""
    info = await run.info()
    made = Trace(info.status, info.output if info.status == COMPLETED else None, _said(info.error))
    await _add_run(app, run.id, "", made)
    others = [other.id for other in await app.runs(limit=_PAGE) if other.id != run.id]
    for number, other in enumerate(sorted(others), 1):
        name = f"run {number} beside it"
        seen = await app.get(other).info()
        made.others[name] = f"{seen.workflow}: {seen.status}, {seen.output!r}, {_said(seen.error)}"
        await _add_run(app, other, name, made)
    return made


async def _add_run(app: Stepfast, run_id: str, name: str, trace: Trace) -> None:
    store, payloads, after = await app.store(), app._payloads, ("", -1)
    for key, value in (await app.get(run_id).values()).items():
        trace.others[f"{name} value {key!r}".strip()] = repr(value)
    records: list[StepRecord] = []
    while page := await store.steps(run_id, after):
        records += page
        after = (page[-1].branch, page[-1].position)
    undone = [record for record in records if record.branch != UNDO_BRANCH]
    numbered = {record.seq: Address(name, record.branch, record.position, True) for record in undone}
    for record in sorted(records, key=lambda record: record.seq):
        address = Address(name, record.branch, record.position)
        if record.branch == UNDO_BRANCH:
            address = numbered.get(record.position, address)
        trace.records[address] = _mark(record, payloads)
    for step in await app.get(run_id).steps():
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
