"""The parts of the page of a run: the table of its steps, values, signals, and diagrams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from ..diagrams import graph_svg, lay_out, timeline_svg
from ..engine.history import UNDO
from ..info import Activity, RunInfo, StepInfo
from ..model import status
from ..model.cron import clock
from ..model.graph import Graph
from ..model.names import OWN_KEYS
from ..model.status import DAG_STEP
from ..monitoring.changes import glance_of
from ..monitoring.explain import dag_steps, graph_of
from ..monitoring.text import ago, due_at, lasting, waited_for
from .history import BRIEF, Address, History
from .redaction import Redactor, aside, redacted_history
from .request import ConsoleRequest

_MOST_SIGNALS = 20


class ShownSignal(NamedTuple):
    """A signal that the run has not received."""

    name: str
    sent_at: int
    value: Any
    large: bool


class RunExtras(NamedTuple):
    """The values and signals of a run, redacted."""

    values: dict[str, Any]
    signals: list[ShownSignal]


async def read_extras(request: ConsoleRequest, info: RunInfo, redactor: Redactor) -> RunExtras:
    """Read the values and signals of a run."""
    return RunExtras(await _values(request, info.id, redactor), await _signals(request, info, redactor))


async def redacted_by_all(request: ConsoleRequest, history: History) -> History:
    """Redact a run with its steps as its own page does."""
    redactor = request.redactor()
    if redactor.hides:
        await read_extras(request, history.info, redactor)
    return await aside(redactor, lambda: redacted_history(history, redactor))


async def _values(request: ConsoleRequest, run_id: str, redactor: Redactor) -> dict[str, Any]:
    found = await (await glance_of(request.reader)).values(run_id)

    def shown() -> dict[str, Any]:
        return {
            key: redactor.value(request.reader._payloads.plain(text, format_, f"the value of {key!r}"), f"values.{key}")
            for key, text, format_ in found
            if not key.startswith(OWN_KEYS)
        }

    return await aside(redactor, shown)


async def _signals(request: ConsoleRequest, info: RunInfo, redactor: Redactor) -> list[ShownSignal]:
    """The signals in its mailbox, the oldest first."""
    if info.completed_at is not None:
        return []
    found = []
    for signal in await (await glance_of(request.reader)).unread_signals(info.id, _MOST_SIGNALS, BRIEF):
        value = request.reader._payloads.plain(signal.value, signal.format, "a signal")
        shown = redactor.value(value, f"signals.{signal.name}")
        found.append(ShownSignal(signal.name, signal.sent_at, shown, signal.value is None and signal.size is not None))
    return found


async def graph_of_run(request: ConsoleRequest, history: History) -> Graph | None:
    """Return the graph of a dag run; None for other runs."""
    return await graph_of(request.reader, history.info) if dag_steps(history.steps) else None


def timeline(request: ConsoleRequest, history: History, graph: Graph | None) -> Markup:
    """Draw the timeline of a run."""
    laid_out = lay_out(history.info, history.steps, history.tries, graph, part=not history.whole)
    return Markup(timeline_svg(laid_out, lambda child: request.url("runs", child)))


def graph(request: ConsoleRequest, history: History, declared: Graph | None) -> Markup | None:
    """Draw the graph of a dag run, coloured by the states of its steps; None for other runs."""
    if declared is None:
        return None
    return Markup(graph_svg(declared, history.info, history.steps, lambda step: request.url("runs", step)))


class StepRow(NamedTuple):
    """A row of the table of steps."""

    step: StepInfo
    state: str
    took: str
    outcome: str
    undo: StepInfo | None
    """Its undo, if that has begun."""
    tries: Sequence[Activity]
    """Tries of the step that failed."""
    output: str | None
    """The address of its output; None without an output."""
    arguments: str | None
    traceback: str | None
    inside: str | None
    """The address of the run that it started."""


def step_rows(request: ConsoleRequest, history: History) -> list[StepRow]:
    """Make the rows. An undo is shown with its step, unless that is on another page."""
    undos = {step.position: step for step in history.steps if step.kind == UNDO}
    numbers = {step.number for step in history.steps if step.kind != UNDO}
    tries: dict[Address, list[Activity]] = {}
    for call in history.tries:
        if call.position is not None:
            tries.setdefault((call.branch, call.position), []).append(call)
    return [
        _row(request, history, step, undos, tries)
        for step in history.steps
        if step.kind != UNDO or step.position not in numbers
    ]


def _row(
    request: ConsoleRequest,
    history: History,
    step: StepInfo,
    undos: Mapping[int, StepInfo],
    tries: Mapping[Address, Sequence[Activity]],
) -> StepRow:
    address = (step.branch, step.position)
    failed = _inside(step, history.tries) if step.kind == DAG_STEP else tries.get(address, ())
    return StepRow(
        step, _state(step), _took(history.info, step, failed), _outcome(history.info, step),
        None if step.number is None or step.kind == UNDO else undos.get(step.number),
        failed,
        _payload(request, history, step, "output"),
        _payload(request, history, step, "arguments"),
        _payload(request, history, step, "error"),
        None if step.child is None else request.url("runs", step.child),
    )  # fmt: skip


def _inside(step: StepInfo, tries: Sequence[Activity]) -> list[Activity]:
    """The failed tries of a step of a dag: its name is their branch."""
    return [call for call in tries if call.branch.partition("/")[0] == step.name]


def _payload(request: ConsoleRequest, history: History, step: StepInfo, what: str) -> str | None:
    """The address of a payload of a step. The payloads of a step of a dag are those of its own run."""
    if what == "error":
        if step.error is None or not step.error.traceback:
            return None
    elif step.kind == DAG_STEP:
        if what != "output" or step.output is None:
            return None
    else:
        sizes = history.sizes.get((step.branch, step.position))
        is_payload = step.completed_at is not None and step.kind not in ("sleep", "start")
        if sizes is None or getattr(sizes, what) is None or not is_payload:
            return None
    if step.kind == DAG_STEP and step.child is not None:
        return request.url("runs", step.child, "payload", what=what)
    of_step = {"output": "step"}.get(what, what)
    return request.url("runs", history.info.id, "payload", what=of_step, branch=step.branch, position=step.position)


def _state(step: StepInfo) -> str:
    if step.kind == DAG_STEP and step.detail not in (None, step.status, status.REASON_CODE):
        kind, _, target = step.detail.partition(":")
        return f"caught by {target}" if kind == status.REASON_CAUGHT else waited_for(step.detail)
    return ""


def _took(run: RunInfo, step: StepInfo, failed: Sequence[Activity]) -> str:
    """The time from its first try to its end, and that of the last try, if there were several."""
    if step.started_at is None or step.status == status.SKIPPED:
        return ""
    end = step.completed_at or run.read_at
    last = lasting((end - step.started_at).total_seconds())
    said = [lasting((end - min([step.started_at, *(each.started_at for each in failed)])).total_seconds())]
    said += [f"the last try {last}"] if step.attempts > 1 and last != said[0] else []
    said += [] if step.queue_wait is None else [f"{lasting(step.queue_wait)} of it queued"]
    return ", ".join(said)


def _outcome(run: RunInfo, step: StepInfo) -> str:
    """The outcome in a few words; payloads are loaded when they are opened."""
    if step.lost_to is not None:
        return f"lost the race to {step.lost_to!r}"
    is_open = step.status == status.WAITING and step.error is None
    due = due_at(step) if is_open or step.kind == "sleep" else None
    if due is not None:
        return f"until {clock(due)} ({ago(due, run.read_at)})"
    return (step.detail or "") if is_open or step.status == status.RUNNING else ""
