"""``/runs/{id}``: why the run does not move, what it did, its payloads, and the actions on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ...errors import RunNotFound
from ...info import RunInfo, StepInfo
from ...model import status
from ...model.rows import RunRow
from ...model.status import DAG_STEP
from ...model.tracebacks import own_code_only
from ...monitoring.changes import glance_of
from ...monitoring.explain import Veiled, explain, unread
from ...monitoring.search import family_of
from ...monitoring.text import run_shape
from ...run import Run
from .. import json_numbers
from ..confirm import SIGNAL, WISHES, offered, what_happens
from ..history import History, address_of, number, written
from ..redaction import Veil, aside, veiled_history, veiled_run, veiled_runs, veiled_steps
from ..refusals import Refused
from ..request import Visit
from ..responses import Done, Page, Piece, outlook, prints_of
from ..run_view import graph, graph_of_run, read_belongings, step_rows, timeline, veiled_by_all
from . import start

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


MOST = 65_536
"""Characters that are shown of a payload."""


class Stored(NamedTuple):
    """A payload as it is stored."""

    text: str
    format: int
    path: str
    """What it is to ``redact=``."""


async def payload(visit: Visit) -> Piece:
    """The payload that the address names, veiled, and cut where it gets too long."""
    run_id = visit.look.get(visit.params["id"]).id
    if visit.query.get("what") == "error":
        text = await _traceback(visit, run_id)
        return _piece(visit, run_id, text[:MOST], len(text) if len(text) > MOST else None)
    row = await (await glance_of(visit.look)).run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    found = await _stored(visit, row)
    if found is None:
        raise Refused(404, "the run has no such payload")
    text = visit.look._payloads.text(found.text, found.format, "the payload")
    try:
        # A payload of megabytes takes seconds to take apart: other requests are answered meanwhile.
        shown, whole = await asyncio.to_thread(_shown, text, visit.veil(), found.path)
    except ValueError as error:
        raise Refused(409, f"the payload cannot be shown: {error}") from None
    return _piece(visit, run_id, shown, None if whole else len(text))


def _shown(text: str, veil: Veil, path: str) -> tuple[str, bool]:
    return json_numbers.begin(veil.value(json_numbers.read(text), path), MOST)


def _piece(visit: Visit, run_id: str, text: str, size: int | None) -> Piece:
    """``size`` is how many characters there are, if these are not all."""
    if visit.wants_json and size is not None:
        raise Refused(413, f"this has {size:,} characters, and {MOST:,} are shown; `stepfast show` has all of it")
    is_error = visit.query.get("what") == "error"
    return Piece(
        "payload.html", {"text": text, "size": size, "run_id": run_id}, json_numbers.write(text) if is_error else text
    )


async def _stored(visit: Visit, row: RunRow) -> Stored | None:
    what, key = visit.query.get("what", ""), visit.query.get("key", "")
    if what == "input":
        return None if row.input is None else Stored(row.input, row.format, "input")
    if what == "output":
        return None if row.output is None else Stored(row.output, row.output_format or row.format, "output")
    if what == "value":
        value = await (await glance_of(visit.look)).value(row.id, key)
        return None if value is None else Stored(*value, f"values.{key}")
    if what in ("step", "arguments"):
        branch, position = visit.query.get("branch", ""), number(visit.query.get("position", "0"))
        held = await (await glance_of(visit.look)).step_payloads(row.id, branch, position)
        if held is None:
            return None
        text, path = (held[0], "output") if what == "step" else (held[1], "arguments")
        return None if text is None else Stored(text, held[3], path)
    raise Refused(404, "there is no such payload; there are input, output, step, arguments, error and value")


async def _traceback(visit: Visit, run_id: str) -> str:
    """The traceback of the run, or of one of its steps, veiled by all that stands on its page."""
    history = await visit.history(run_id)
    if "position" in visit.query:
        branch, position = visit.query.get("branch", ""), number(visit.query["position"])
        if not any((step.branch, step.position) == (branch, position) for step in history.steps):
            history = await visit.history(run_id, (branch, position - 1), 1)
        found = [step for step in (await veiled_by_all(visit, history)).steps if step.branch == branch]
        error = next((step.error for step in found if step.position == position), None)
    else:
        error = (await veiled_by_all(visit, history)).info.error
    if error is None or not error.traceback:
        raise Refused(404, "there is no such error")
    return own_code_only(error.traceback)


async def confirm(visit: Visit) -> Page:
    """The page before an action."""
    wish = WISHES.get(visit.params["action"])
    if wish is None:
        raise Refused(404, "there is no such action")
    history = await veiled_by_all(visit, await visit.history(visit.params["id"]))
    run = history.info
    sentence = what_happens(wish, run, history.steps)
    if wish == SIGNAL and (warning := await start.said_of(visit, run.workflow)):
        sentence += f" {warning}"
    shown = {"run": run, "wish": wish, "sentence": sentence, "names": _awaited(run)}
    shape = {"run": run.id, "action": wish.action, "what_happens": sentence}
    return Page("confirm.html", shown, msgspec.to_builtins(shape))


def _awaited(run: RunInfo) -> list[str]:
    """The signals that the run waits for."""
    begin = f"{status.WAITING_SIGNAL}:"
    return [part.removeprefix(begin) for part in (run.waiting_for or "").split(", ") if part.startswith(begin)]


async def cancel(visit: Visit) -> Done:
    """End it, and undo its completed steps where they say how."""
    await _run(visit).cancel()
    return _done(visit, "cancel")


async def pause(visit: Visit) -> Done:
    """Pause a run from its next step on."""
    await _run(visit).pause()
    return _done(visit, "pause")


async def resume(visit: Visit) -> Done:
    """Resume a paused run where it stands."""
    await _run(visit).resume()
    return _done(visit, "resume")


async def reschedule(visit: Visit) -> Done:
    """Make a run due now that waits for its start or for a retry."""
    await _run(visit).reschedule(delay=0)
    return _done(visit, "reschedule")


async def retry(visit: Visit) -> Done:
    """Queue a run again; with ``from_start``, as a new run with the same input."""
    again = await _run(visit).retry(from_start=visit.form.get("from_start", "") not in ("", "0", "false"))
    return _done(visit, "retry", again.id)


async def signal(visit: Visit) -> Done:
    """Send a run a signal: ``name``, and ``value`` as JSON."""
    name, text = visit.form.required("name"), visit.form.optional("value")
    try:
        value = None if text is None else msgspec.json.decode(text)
    except RecursionError:
        raise Refused(400, "the value is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise Refused(400, 'the value is not JSON; a text needs its quotes: "text"') from None
    await _run(visit).signal(name, value)
    return _done(visit, "signal")


def _run(visit: Visit) -> Run[Any]:
    return visit.app.get(visit.params["id"])


def _done(visit: Visit, what: str, run_id: str | None = None) -> Done:
    found = run_id or visit.params["id"]
    return Done(visit.url("runs", found, done=what), {"run": found, "done": what})
