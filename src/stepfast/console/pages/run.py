"""``/runs/{id}``: why it does not move, what it did, and what belongs to it."""

from __future__ import annotations

from collections import Counter
from functools import partial

from ...model.status import DAG_STEP
from ...model.tracebacks import own_code_only
from ...monitoring.explain import Veiled, explain, unread
from ...monitoring.search import family_of
from ...monitoring.text import run_shape
from ...reports import RunInfo, StepInfo
from ..answers import Page
from ..belongings import read_belongings
from ..confirming import offered
from ..drawings import graph, graph_of_run, timeline
from ..history import History, address_of, written
from ..outlook import outlook, prints_of
from ..redacting import Veil, aside
from ..veiling import veiled_history, veiled_run, veiled_runs, veiled_steps
from ..visit import Visit
from .steps import step_rows

_AGAIN = 1.0
_LATEST, _LATEST_HELD = 30.0, 5.0
"""Seconds after which the page is read again even if nothing has happened: while a worker has the run, times go on."""


async def run(visit: Visit) -> Page:
    """One run, and a page of its steps."""
    run_id, after = visit.look.get(visit.params["id"]).id, address_of(visit.query.get("after"))
    seen = await prints_of(visit, run_id) if after is None else None
    history = await visit.history(run_id, after)
    veil = visit.veil()
    values, signals = await read_belongings(visit, history.info, veil)
    history = await aside(veil, partial(veiled_history, history, veil))
    told = history.info
    family = await family_of(visit.look, told.id)
    below = [member.run for member in family.below]
    children = await aside(veil, lambda: veiled_runs(below, veil))
    why = await explain(visit.look, told, history.steps, history.tries, children, _veiled(veil))
    why = await aside(veil, partial(veil.text, why))
    declared = await graph_of_run(visit, history)
    mail = list(Counter(signal.name for signal in signals).items())
    shown = {
        "run": told,
        "why": why,
        "dag": history.dag,
        "rows": step_rows(visit, history),
        "family": family,
        "values": values,
        "signals": signals,
        "mail": unread(told, mail),
        "attempts": [call for call in history.tries if call.position is None and not call.branch],
        "traceback": "" if told.error is None else own_code_only(told.error.traceback or ""),
        "offered": offered(told) if visit.may_operate else [],
        "done": visit.query.get("done", ""),
        "next": _link(visit, history),
        "first": history.after is None,
        "graph": graph(visit, history, declared),
        "timeline": timeline(visit, history, declared),
    }
    started = [step.child for step in history.steps if step.child is not None and step.kind != DAG_STEP]
    shape = run_shape(told, why, history.steps, started, values, mail)
    if history.more is not None:
        shape["after"] = written(history.more)
    news = outlook(visit, seen, _LATEST if told.worker is None and declared is None else _LATEST_HELD, run_id)
    return Page("run.html", shown, shape, again=None if told.completed_at else _AGAIN, news=news)


def _link(visit: Visit, history: History) -> str | None:
    """The page of steps after this one."""
    return visit.url("runs", history.info.id, after=written(history.more)) if history.more is not None else None


def _veiled(veil: Veil) -> Veiled:
    """For other runs that the sentence is about: not all that they hold is at hand."""

    def told(info: RunInfo, steps: list[StepInfo]) -> tuple[RunInfo, list[StepInfo]]:
        anew = veil.anew()
        return veiled_run(info, anew, complete=False), veiled_steps(steps, anew, complete=False)

    return told
