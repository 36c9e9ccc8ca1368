"""``/runs/{id}``: why it does not move, what it did, and what belongs to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...engine.workflow import DAG_STEP
from ...model import status
from ...model.names import OWN_KEYS
from ...model.records import RUN_ITSELF
from ...reports import Activity, RunInfo, activity_info
from ...telling.explaining import explain, infos_of
from ...telling.shapes import run_shape
from ...telling.tracebacks import own_code_only
from ...telling.why import unread, waits_for
from ..answers import Page
from ..confirming import offered
from ..drawings import graph, graph_of_run, timeline, tries_of
from ..history import History, address_of, read_history, written
from ..redacting import Veil
from ..veiling import veiled_calls, veiled_run, veiled_steps
from ..visit import Visit
from .steps import step_rows

_AGAIN = 2.0
_CHILDREN = 20
"""So many children are looked up; the ids of all are among the steps."""
_ANCESTORS = 10
_ATTEMPTS = 50


async def run(visit: Visit) -> Page:
    """One run, and a page of its steps."""
    app, after = visit.app, address_of(visit.query.get("after"))
    history = await read_history(app, visit.params["id"], after)
    info, store = history.info, await app.store()
    calls = await app.get(info.id).activity() if waits_for(info, status.WAITING_RETRY) else []
    started = [step.child for step in history.steps if step.child is not None and step.kind != DAG_STEP]
    children = await infos_of(app, started[-_CHILDREN:])
    reason = await explain(app, info, history.steps, calls, children)
    veil = visit.veil()
    veil.value(info.input, "input")
    values = await _values(visit, info.id, veil)
    steps = veiled_steps(history.steps, veil)
    mail = await store.unread(info.id) if info.completed_at is None else []
    told, why = veiled_run(info, veil), veil.text(reason)
    declared = await graph_of_run(visit, history)
    tries = veiled_calls(await tries_of(visit, history), veil)
    shown = {
        "run": told,
        "why": why,
        "graph": graph(visit, told, steps, declared),
        "timeline": timeline(visit, history, told, steps, tries, declared),
        "steps": step_rows(visit, info, steps),
        "children": children,
        "more_children": len(started) - len(children),
        "ancestors": await _ancestors(visit, info),
        "values": values,
        "mail": unread(info, mail),
        "attempts": veiled_calls(await _attempts(visit, info), veil),
        "traceback": _traceback(info, veil),
        "offered": offered(info) if visit.may_operate else [],
        "done": visit.query.get("done", ""),
        "next": _link(visit, history),
        "first": after is None,
    }
    shape = run_shape(told, why, steps, started, values, mail)
    if history.more is not None:
        shape["after"] = written(history.more)
    return Page("run.html", shown, shape, again=None if info.completed_at else _AGAIN)


async def _values(visit: Visit, run_id: str, veil: Veil) -> dict[str, Any]:
    """What the run has set for others to read."""
    found = await (await visit.app.store()).values(run_id)
    payloads = visit.app._payloads
    return {
        key: veil.value(payloads.plain(text, format_, f"the value of {key!r}"), f"values.{key}")
        for key, text, format_ in found
        if not key.startswith(OWN_KEYS)
    }


async def _attempts(visit: Visit, info: RunInfo) -> list[Activity]:
    """The attempts that have ended: those that failed, and the last one."""
    rows = await (await visit.app.store()).activity(info.id, limit=_ATTEMPTS)
    return [activity_info(info.id, row, visit.app._payloads) for row in rows if row.position == RUN_ITSELF]


async def _ancestors(visit: Visit, info: RunInfo) -> list[RunInfo]:
    """Its parent, and the parent's, up to the first of all; the first of all comes first."""
    found: list[RunInfo] = []
    above = info.parent
    while above is not None and len(found) < _ANCESTORS:
        parents = await infos_of(visit.app, [above])
        if not parents:
            break
        found.insert(0, parents[0])
        above = parents[0].parent
    return found


def _traceback(info: RunInfo, veil: Veil) -> str:
    shown = veiled_run(replace(info, left_out=()), veil).error
    return own_code_only(shown.traceback) if shown is not None and shown.traceback else ""


def _link(visit: Visit, history: History) -> str | None:
    """The page of steps after this one."""
    return visit.url("runs", history.info.id, after=written(history.more)) if history.more is not None else None
