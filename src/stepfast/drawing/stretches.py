"""What each step of a run did when: the rows of a timeline, before anything is placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from ..engine.children import RESULT
from ..engine.concurrency import FIRST
from ..engine.history import UNDO
from ..engine.timers import SLEEP
from ..model import status
from ..model.graph import APPROVAL, Graph
from ..model.status import DAG_STEP
from ..monitoring.text import lasting, shortened
from ..reports import Activity, ErrorInfo, RunInfo, StepInfo

RUN = "run"
"""The kind of the row that stands for the run as a whole."""
_WAITS = frozenset({SLEEP, "signal", RESULT, "call", FIRST, "wait_until"})
"""Kinds of calls in which nothing is done here."""
_LONGEST = 200
"""Characters of an error that are told to whoever points at it."""

Path = tuple[tuple[int, int], ...]
"""Where a step stands in the tree of branches: (position, item) for each branch around it, then its own position."""
NO_ITEM = -1


class Stretch(NamedTuple):
    """From when to when, in seconds; what it was, and how it came out."""

    start: float
    end: float
    state: str
    work: bool
    """Whether something was done; else it was waited for."""
    told: str
    undo: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One step, or many equal ones, with all that is drawn of it."""

    name: str
    kind: str
    state: str
    path: Path
    stretches: tuple[Stretch, ...]
    note: str
    told: tuple[str, ...]
    """Sentences for whoever points at it."""
    child: str | None = None
    undo: str | None = None
    """By what it was undone."""
    count: int = 1

    @property
    def depth(self) -> int:
        """In how many branches it stands."""
        return max(len(self.path) - 1, 0)


def rows_of(run: RunInfo, steps: Sequence[StepInfo], calls: Sequence[Activity], graph: Graph | None) -> list[Row]:
    """The run itself, then its steps in the order of its code, each branch after the call that began it."""
    tries = _by_address(calls)
    undos = {step.position: step for step in steps if step.kind == UNDO}
    rows = []
    for step in steps:
        if step.kind != UNDO:
            undo = undos.pop(step.number, None) if step.number is not None else None
            rows.append(_row(step, undo, tries, run, graph))
    rows += [_row(undo, None, tries, run, graph) for undo in undos.values()]
    return [run_row(run, tries), *sorted(rows, key=lambda row: row.path)]


def run_row(run: RunInfo, tries: Mapping[tuple[str, int | None], list[Activity]]) -> Row:
    """The run as a whole: how long it was in the queue, which attempts failed, and since when it is paused."""
    now = run.read_at
    stretches = [
        _stretch(run.created_at, run.started_at or run.completed_at or now, status.QUEUED, False, "in the queue")
    ]
    if run.started_at is not None:
        stretches += [_tried(call, "attempt") for call in tries.get(("", None), ())]
    if run.paused_at is not None:
        stretches.append(_stretch(run.paused_at, now, status.PAUSED, False, "paused by an operator"))
    end = run.completed_at or now
    took = lasting((end - (run.started_at or run.created_at)).total_seconds())
    more = [] if run.started_at is not None else ["not begun"]
    more += [f"{run.attempt} attempts"] if run.attempt > 1 else []
    return Row(
        run.workflow, RUN, run.status, (), tuple(stretches), " · ".join([took, *more, *_error_type(run.error)]),
        (f"run {run.id}: {run.status}", *_error(run.error)),
    )  # fmt: skip


# -- steps -------------------------------------------------------------------------------------------------------------


def path_of(step: StepInfo) -> Path:
    """Where a step stands in the tree of branches. What is in no branch of the code (an undo) comes last."""
    found: list[tuple[int, int]] = []
    for part in step.branch.split("/") if step.branch else ():
        position, _, item = part.partition(".")
        if not position.isdecimal() or not (item or "0").isdecimal():
            return ((2**62, step.position),)
        found.append((int(position), int(item) if item else NO_ITEM))
    return (*found, (step.position, NO_ITEM))


def _row(
    step: StepInfo, undo: StepInfo | None, tries: Mapping[tuple[str, int | None], list[Activity]], run: RunInfo,
    graph: Graph | None,
) -> Row:  # fmt: skip
    stretches = _stretches(step, tries, run, graph)
    if undo is not None:
        stretches += [_of_undo(stretch) for stretch in _stretches(undo, tries, run, graph)]
    told = [f"{step.kind if step.kind != DAG_STEP else 'step'} {step.name!r}: {step.status}", *_error(step.error)]
    told += [f"lost the race to {step.lost_to!r}"] if step.lost_to is not None else []
    told += [shortened(step.detail, _LONGEST)] if step.detail else []
    told += [f"undone by {undo.name!r}: {undo.status}"] if undo is not None else []
    state = status.QUEUED if step.started_at is None and step.status == status.WAITING else step.status
    return Row(
        step.name, step.kind, state, path_of(step), tuple(stretches), _note(step, undo, stretches), tuple(told),
        step.child if step.started_at is not None else None, None if undo is None else undo.name,
    )  # fmt: skip


def _of_undo(stretch: Stretch) -> Stretch:
    """A stretch as part of an undo."""
    return stretch._replace(undo=True, told=f"undo, {stretch.told}")


def _stretches(
    step: StepInfo, tries: Mapping[tuple[str, int | None], list[Activity]], run: RunInfo, graph: Graph | None
) -> list[Stretch]:
    if step.started_at is None or step.status == status.SKIPPED:
        return []
    of_dag = step.kind == DAG_STEP
    failed = [
        _tried(call, "try") for call in tries.get((step.name, None) if of_dag else (step.branch, step.position), ())
    ]
    if failed and (step.status == status.FAILED or step.error is not None):
        last = failed[-1].end
        waits = [Stretch(last, max(last, run.read_at.timestamp()), status.WAITING, False, "until its next try")]
        return failed + (waits if step.status == status.WAITING else [])
    start = step.started_at.timestamp()
    start = max(start, failed[-1].end) if failed else start
    end = max((step.completed_at or _until(run)).timestamp(), start)
    return failed + _last(step, start, end, _is_wait(step, graph))


def _last(step: StepInfo, start: float, end: float, waits: bool) -> list[Stretch]:
    """The try that the outcome comes from, after what it was queued for elsewhere."""
    if step.queue_wait:
        begun = min(start + step.queue_wait, end)
        queued = Stretch(start, begun, status.QUEUED, False, f"queued for a remote worker, {lasting(begun - start)}")
        return [queued, Stretch(begun, end, step.status, True, f"{step.status}, {lasting(end - begun)}")]
    return [Stretch(start, end, step.status, not waits, f"{step.status}, {lasting(end - start)}")]


def _is_wait(step: StepInfo, graph: Graph | None) -> bool:
    if step.kind == DAG_STEP and graph is not None and step.name in graph.dag_steps:
        return graph.dag_steps[step.name].kind == APPROVAL or step.status == status.WAITING
    return step.kind in _WAITS or step.status == status.WAITING


def _note(step: StepInfo, undo: StepInfo | None, stretches: Iterable[Stretch]) -> str:
    """What stands beside the bars: how long it took, how often it was tried, what error it met."""
    own = [stretch for stretch in stretches if not stretch.undo]
    if not own:
        return step.status if step.status == status.SKIPPED else "not begun"
    parts = [lasting(own[-1].end - own[0].start)]
    parts += [f"{step.attempts} tries"] if step.attempts > 1 else []
    parts += _error_type(step.error)
    parts += [f"lost to {step.lost_to}"] if step.lost_to is not None else []
    parts += [f"undone by {undo.name}"] if undo is not None and undo.status == status.COMPENSATED else []
    parts += [f"undo {undo.name}: {undo.status}"] if undo is not None and undo.status != status.COMPENSATED else []
    return " · ".join(parts)


# -- tries -------------------------------------------------------------------------------------------------------------


def _by_address(calls: Iterable[Activity]) -> dict[tuple[str, int | None], list[Activity]]:
    """The failed tries of each step, oldest first. What succeeded is known from the step itself."""
    found: dict[tuple[str, int | None], list[Activity]] = {}
    for call in sorted(calls, key=lambda call: call.started_at):
        if call.status == status.FAILED:
            found.setdefault((call.branch, call.position), []).append(call)
    return found


def _tried(call: Activity, what: str) -> Stretch:
    told = ": ".join(
        [f"{what} {call.attempt} failed after {lasting(call.duration.total_seconds())}", *_error(call.error)]
    )
    return _stretch(call.started_at, call.started_at + call.duration, status.FAILED, True, told)


def _stretch(start: datetime, end: datetime, state: str, work: bool, told: str) -> Stretch:
    return Stretch(start.timestamp(), max(end, start).timestamp(), state, work, told)


def _until(run: RunInfo) -> datetime:
    """Until when what is open is drawn."""
    return run.completed_at or run.read_at


def _error(error: ErrorInfo | None) -> list[str]:
    return [] if error is None else [shortened(f"{error.type}: {error.message}", _LONGEST)]


def _error_type(error: ErrorInfo | None) -> list[str]:
    return [] if error is None else [error.type.rpartition(".")[2]]


def with_stretches(row: Row, stretches: Iterable[Stretch], count: int, note: str) -> Row:
    """A row that stands for many."""
    return replace(row, stretches=tuple(stretches), count=count, note=note, child=None)
