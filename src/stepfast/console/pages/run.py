"""``/runs/{id}``: why it does not move, what it did, and what belongs to it."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ...engine.workflow import DAG_STEP
from ...model.names import OWN_KEYS
from ...reports import RunInfo
from ...telling.explaining import explain
from ...telling.shapes import run_shape
from ...telling.tracebacks import own_code_only
from ...telling.why import unread
from ...watching.families import family_of
from ...watching.onlooker import glance_of
from ..answers import Page
from ..confirming import offered
from ..drawings import graph, graph_of_run, timeline
from ..history import BRIEF, History, address_of, written
from ..redacting import Veil
from ..veiling import veiled_history, veiled_runs
from ..visit import Visit
from .steps import step_rows

_AGAIN = 2.0
_LETTERS = 20


class Letter(NamedTuple):
    """A signal that the run has not taken."""

    name: str
    sent_at: int
    value: Any
    large: bool


async def run(visit: Visit) -> Page:
    """One run, and a page of its steps."""
    history = await visit.history(visit.params["id"], address_of(visit.query.get("after")))
    veil = visit.veil()
    values = await _values(visit, history.info.id, veil)
    letters = await _letters(visit, history.info, veil)
    history = veiled_history(history, veil)
    told = history.info
    family = await family_of(visit.look, told.id)
    children = veiled_runs([member.run for member in family.below], veil)
    why = veil.text(await explain(visit.look, told, history.steps, history.tries, children))
    declared = await graph_of_run(visit, history)
    mail = list(Counter(letter.name for letter in letters).items())
    shown = {
        "run": told,
        "why": why,
        "dag": history.dag,
        "rows": step_rows(visit, history),
        "family": family,
        "values": values,
        "letters": letters,
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
    return Page("run.html", shown, shape, again=None if told.completed_at else _AGAIN)


async def _values(visit: Visit, run_id: str, veil: Veil) -> dict[str, Any]:
    """What the run has set for others to read."""
    return {
        key: veil.value(visit.look._payloads.plain(text, format_, f"the value of {key!r}"), f"values.{key}")
        for key, text, format_ in await (await glance_of(visit.look)).values(run_id)
        if not key.startswith(OWN_KEYS)
    }


async def _letters(visit: Visit, info: RunInfo, veil: Veil) -> list[Letter]:
    """What lies in its mailbox, the oldest first."""
    if info.completed_at is not None:
        return []
    found = []
    for letter in await (await glance_of(visit.look)).letters(info.id, _LETTERS, BRIEF):
        value = visit.look._payloads.plain(letter.value, letter.format, "a signal")
        shown = veil.value(value, f"signals.{letter.name}")
        found.append(Letter(letter.name, letter.sent_at, shown, letter.value is None and letter.size is not None))
    return found


def _link(visit: Visit, history: History) -> str | None:
    """The page of steps after this one."""
    return visit.url("runs", history.info.id, after=written(history.more)) if history.more is not None else None
