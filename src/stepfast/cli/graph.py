"""``graph``: a declared graph as text, also with the state of one run; and drawings as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ..diagrams import Markup, graph_svg, lay_out, standalone, timeline_svg
from ..diagrams.graph_text import Drawn, draw, levels
from ..engine.dag import Dag
from ..engine.history import UNDO
from ..errors import ConfigurationError
from ..info import UNKNOWN, RunInfo, StepInfo
from ..model import status
from ..model.graph import APPROVAL, DagStep, Graph
from ..monitoring.explain import dag_steps, graph_of, steps_of, stored_graph_of
from ..monitoring.text import count, find_run, lasting, listed, outcome_of, retries_of, waited_for
from .app_loader import load_app
from .command import Session, option
from .output import say, write_heading, write_json, write_table

SvgOption = Annotated[str | None, option("--svg", metavar="FILE", help="As a drawing, to a file; - is stdout.")]


def write_svg(drawing: Markup, file: str) -> None:
    """Write a drawing with its colours inside."""
    text = standalone(drawing)
    if file == "-":
        print(text, end="")
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file!r} cannot be written: {error.strerror}") from None
    say(f"written to {file}")


async def write_timeline(session: Session, run: str, file: str, key: str | None = None, this: bool = False) -> None:
    """Draw the timeline of a run."""
    async with session.looking() as app:
        info = await (await find_run(app, run, key, this=this)).info()
        handle = app.get(info.id).this
        timeline = lay_out(info, await steps_of(app, info), await handle.activity(), await graph_of(app, info))
    if timeline.left_out:
        say(f"the last {timeline.left_out} rows are not drawn: there are too many")
    write_svg(timeline_svg(timeline), file)


_FEW = 3
"""Steps before one that are named."""
_MARKS = {
    status.COMPLETED: "●",
    status.RUNNING: "◐",
    status.COMPENSATING: "◐",
    status.FAILED: "✗",
    status.COMPENSATED: "✗",
    status.CANCELLED: "⊘",
    status.SKIPPED: "·",
}


async def graph(
    session: Session,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", show_default=False, help="The application, as in orders:app."),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", show_default=False, help="The dag; without it all are listed.")
    ] = None,
    run: Annotated[
        str | None, option("--run", help="That of a dag run, as it stands; needs only the database.")
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for documents.")] = False,
    svg: SvgOption = None,
) -> None:
    """Draw a declared graph: a line per step, with rails to what comes after it. Needs the code, and no database; or,
    for the graph of a run (--run and --svg), the database and no code."""
    forms = [word for word, given in (("--mermaid", mermaid), ("--svg", svg), ("--json", session.json)) if given]
    if len(forms) > 1:
        raise ConfigurationError(f"{' and '.join(forms)} are forms of the same; give one of them")
    if run is not None:
        await _draw_run(app, run, svg, session)
    elif app is None:
        raise ConfigurationError("name a graph: MODULE:APP and a dag, or --run RUN --svg FILE")
    else:
        _draw_declared(session, app, name, mermaid, svg)


async def _draw_run(app: str | None, run: str, svg: str | None, session: Session) -> None:
    """Draw the graph of a dag run, coloured by the states of its steps."""
    if app is not None:
        raise ConfigurationError("a run brings its graph along: give --run without MODULE:APP")
    if svg is None:
        raise ConfigurationError(f"--run goes with --svg FILE; `stepfast show {run}` draws its graph as text")
    async with session.looking() as opened:
        info = await (await find_run(opened, run)).info()
        (graph, why), steps = await stored_graph_of(opened, info), await steps_of(opened, info)
    if graph is None and any(step.kind == UNKNOWN for step in steps):
        raise ConfigurationError(f"the graph of run {info.id} {why}")
    if graph is None:
        raise ConfigurationError(
            f"run {info.id} of {info.workflow!r} has no graph, for that is no dag; "
            f"`stepfast show {info.id} --svg FILE` draws its timeline"
        )
    write_svg(graph_svg(graph, info, steps), svg)


def _draw_declared(session: Session, app: str, name: str | None, mermaid: bool, svg: str | None) -> None:
    dags = {dag.name: dag for dag in load_app(app).workflows.values() if isinstance(dag, Dag)}
    if name is None:
        if svg is not None or mermaid:
            raise ConfigurationError(f"name the dag to draw; {app} has {listed(sorted(dags))}")
        _write_names(session, dags, app)
        return
    if name not in dags:
        there = f"; it has {', '.join(sorted(dags))}" if dags else ", nor any other"
        raise ConfigurationError(f"{app} has no dag {name!r}{there}")
    found = dags[name].graph
    if mermaid:
        print(dags[name].to_mermaid())
    elif svg is not None:
        write_svg(graph_svg(found, name=name), svg)
    elif session.json:
        write_json({"name": name, "version": found.version, "steps": _steps(found)})
    else:
        write_declared(found)
        say(
            f"{name}, version {found.version}: "
            f"{count(len(found.dag_steps), 'step')} in {count(max(levels(found).values(), default=0), 'level')}"
        )


def _write_names(session: Session, dags: Mapping[str, Dag], app: str) -> None:
    if session.json:
        write_json([{"name": dag.name, "version": dag.graph.version, "steps": len(dag.steps)} for dag in dags.values()])
    elif dags:
        write_table(("dag", "steps", "version"), [(n, str(len(d.steps)), d.graph.version) for n, d in dags.items()])
    else:
        say(f"{app} has no dags")


def _steps(found: Graph) -> list[dict[str, Any]]:
    """Every field of every step, in an order in which they could be done."""
    where = levels(found)
    fields = [field.name for field in msgspec.structs.fields(DagStep)]
    return [
        {field: getattr(found.dag_steps[name], field) for field in fields} | {"level": where[name]}
        for name in found.order
    ]


# -- as it was declared -----------------------------------------------------------------------------------------------


def write_declared(found: Graph) -> None:
    """Write the steps, what each comes after, and its options."""
    drawn = draw(found)
    rows = [(*cells, _after(found, name), _said(found.dag_steps[name])) for name, cells in _first_cells(found, drawn)]
    write_table(("level", "step", "after", ""), rows)


def _first_cells(found: Graph, drawn: Drawn) -> list[tuple[str, tuple[str, str]]]:
    """Step → the first two cells of its line: a wide graph has levels in place of rails."""
    if drawn.rails is None:
        where = levels(found)
        return [(name, (str(where[name]), name)) for name in drawn.steps]
    return [(name, ("", f"{rail}  {name}")) for name, rail in zip(drawn.steps, drawn.rails, strict=True)]


def _after(found: Graph, name: str) -> str:
    dag_step = found.dag_steps[name]
    told = list(dag_step.after[:_FEW])
    if len(dag_step.after) > _FEW:
        told.append(f"{len(dag_step.after) - _FEW} more")
    parts = [", ".join(told)] if told else []
    if dag_step.at_least is not None:
        parts = [f"{'any' if dag_step.at_least == 1 else dag_step.at_least} of {' '.join(parts)}".rstrip()]
    parts += [f"a failed {before}" for before in found.dependencies(name) if before not in dag_step.after]
    return " or ".join(parts)


def _said(dag_step: DagStep) -> str:
    parts = ["an approval"] if dag_step.kind == APPROVAL else []
    parts += ["conditional"] if dag_step.conditional else []
    parts += [retries] if (retries := retries_of(dag_step)) else []
    if dag_step.timeout is not None:
        end = f", then {dag_step.on_timeout}" if dag_step.on_timeout else ""
        parts.append(f"{lasting(dag_step.timeout)} at most{end}")
    parts += [f"undone by {dag_step.undo}"] if dag_step.undo else []
    parts += [f"on {error} to {target}" for error, target in dag_step.catch.items()]
    return "; ".join(parts)


# -- as it stands --------------------------------------------------------------------------------------------------


def write_standing(found: Graph, steps: Sequence[StepInfo], run: RunInfo) -> None:
    """Write the graph of a run, with the state of each step."""
    of_dag = {step.name: step for step in dag_steps(steps)}
    undone = _undos(found, steps)
    marks = {name: _MARKS.get(step.status, "○") for name, step in of_dag.items()}
    rows = []
    for name, cells in _first_cells(found, draw(found, marks)):
        step = of_dag.get(name)
        if step is not None:
            rows.append((*cells, _state(step), _tries(step), _took(step, run), _undo(found, step, undone), _came(step)))
    write_heading("Steps")
    write_table(("level", "step", "status", "tries", "took", "undone by", "outcome"), rows)


def _undos(found: Graph, steps: Sequence[StepInfo]) -> dict[str, StepInfo]:
    """Step → its undo, whose position is that of the step in the graph."""
    undos = (step for step in steps if step.kind == UNDO)
    return {found.order[undo.position - 1]: undo for undo in undos if 0 < undo.position <= len(found.order)}


def _state(step: StepInfo) -> str:
    """Return its status, with what it waits for or why it ended, unless that is obvious."""
    if step.status == status.WAITING and step.detail is None:
        return f"{step.status} ({'retry' if step.error is not None else status.QUEUED})"
    if step.detail in (None, step.status, status.REASON_CODE):
        return step.status
    kind, _, target = step.detail.partition(":")
    more = f"caught by {target!r}" if kind == status.REASON_CAUGHT else waited_for(step.detail)
    return f"{step.status} ({more})"


def _tries(step: StepInfo) -> str:
    return str(step.attempts) if step.attempts and step.status != status.SKIPPED else ""


def _took(step: StepInfo, run: RunInfo) -> str:
    if step.started_at is None or step.status == status.SKIPPED:
        return ""
    queued = "" if step.queue_wait is None else f", {lasting(step.queue_wait)} of it queued"
    return lasting(((step.completed_at or run.read_at) - step.started_at).total_seconds()) + queued


def _undo(found: Graph, step: StepInfo, undone: Mapping[str, StepInfo]) -> str:
    """Return its undo, and the status of that."""
    name, undo = found.dag_steps[step.name].undo, undone.get(step.name)
    return name or "" if undo is None else f"{undo.name} ({undo.status})"


def _came(step: StepInfo) -> str:
    return outcome_of(step.error, step.output) if step.error is not None or step.status == status.COMPLETED else ""
