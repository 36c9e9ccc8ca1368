"""``/runs/{id}``: why the run does not move, what it did, its payloads, and the actions on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ...errors import RunNotFound
from ...info import RunInfo, StepInfo
from ...model import status
from ...model.names import LOGS
from ...model.rows import RunRow
from ...model.status import DAG_STEP
from ...model.tracebacks import own_code_only
from ...monitoring.changes import glance_of
from ...monitoring.explain import Redacts, explain, unread
from ...monitoring.search import family_of
from ...monitoring.text import run_shape
from ...run import Run
from .. import json_numbers
from ..confirm import ACTIONS, SIGNAL, offered, what_happens
from ..history import address_of, number, written
from ..input_form import read_json_text
from ..redaction import Redactor, aside, redacted_history, redacted_run, redacted_runs, redacted_steps
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page, PayloadPage, change_poll, state_hash_of
from ..run_view import graph, graph_of_run, read_extras, redacted_by_all, step_rows, timeline
from . import start

_AGAIN = 1.0
_LATEST, _LATEST_HELD = 30.0, 5.0
"""Seconds after which the page is read again, even without a change: times grow while a worker has the run."""


async def run(request: ConsoleRequest) -> Page:
    """One run, and a page of its steps."""
    run_id, after = request.reader.get(request.params["id"]).id, address_of(request.query.get("after"))
    seen = await state_hash_of(request, run_id) if after is None else None
    history = await request.history(run_id, after)
    redactor = request.redactor()
    values, signals = await read_extras(request, history.info, redactor)
    history = await aside(redactor, partial(redacted_history, history, redactor))
    info = history.info
    family = await family_of(request.reader, info.id)
    below = [member.run for member in family.below]
    children = await aside(redactor, lambda: redacted_runs(below, redactor))
    why = await explain(request.reader, info, history.steps, history.tries, children, _redacted(redactor))
    why = await aside(redactor, partial(redactor.text, why))
    declared = await graph_of_run(request, history)
    mail = list(Counter(signal.name for signal in signals).items())
    streams = await (await glance_of(request.reader)).stream_sizes(info.id)
    shown = {
        "run": info,
        "latest": None if info.continued_by is None else await (await request.reader.store()).continuation(info.id),
        "logs": request.url("runs", info.id, "logs") if LOGS in streams else None,
        "streams": request.url("runs", info.id, "streams") if streams.keys() - {LOGS} else None,
        "why": why,
        "dag": history.dag,
        "rows": step_rows(request, history),
        "family": family,
        "values": values,
        "signals": signals,
        "mail": unread(info, mail),
        "attempts": [call for call in history.tries if call.position is None and not call.branch],
        "traceback": "" if info.error is None else own_code_only(info.error.traceback or ""),
        "offered": offered(info) if request.may_operate else [],
        "done": request.query.get("done", ""),
        "next": request.url("runs", run_id, after=written(history.more)) if history.more is not None else None,
        "first": history.after is None,
        "graph": graph(request, history, declared),
        "timeline": timeline(request, history, declared),
    }
    started = [step.child for step in history.steps if step.child is not None and step.kind != DAG_STEP]
    shape = run_shape(info, why, history.steps, started, values, mail)
    if history.more is not None:
        shape["after"] = written(history.more)
    news = change_poll(request, seen, _LATEST if info.worker is None and declared is None else _LATEST_HELD, run_id)
    return Page("run.html", shown, shape, again=None if info.completed_at else _AGAIN, news=news)


def _redacted(redactor: Redactor) -> Redacts:
    """Redact other runs that the explanation mentions, of which not all payloads were read."""

    def redacted(info: RunInfo, steps: list[StepInfo]) -> tuple[RunInfo, list[StepInfo]]:
        fresh = redactor.fresh()
        return redacted_run(info, fresh, complete=False), redacted_steps(steps, fresh, complete=False)

    return redacted


MOST = 65_536
"""Characters of a payload that are shown."""


class Stored(NamedTuple):
    """A payload as it is stored."""

    text: str
    format: int
    path: str
    """Its path for ``redact=``."""


async def payload(request: ConsoleRequest) -> PayloadPage:
    """The payload that the query names, redacted, and cut if it is long."""
    run_id = request.reader.get(request.params["id"]).id
    if request.query.get("what") == "error":
        text = await _traceback(request, run_id)
        return _piece(request, run_id, text[:MOST], len(text) if len(text) > MOST else None)
    row = await (await glance_of(request.reader)).run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    found = await _stored(request, row)
    if found is None:
        raise Refused(404, "the run has no such payload")
    text = request.reader._payloads.text(found.text, found.format, "the payload")
    try:
        # Megabytes take seconds to parse, in which other requests must be answered.
        shown, whole = await asyncio.to_thread(_shown, text, request.redactor(), found.path)
    except ValueError as error:
        raise Refused(409, f"the payload cannot be shown: {error}") from None
    return _piece(request, run_id, shown, None if whole else len(text))


def _shown(text: str, redactor: Redactor, path: str) -> tuple[str, bool]:
    return json_numbers.begin(redactor.value(json_numbers.read(text), path), MOST)


def _piece(request: ConsoleRequest, run_id: str, text: str, size: int | None) -> PayloadPage:
    """``size`` is the number of all characters, if the text is cut."""
    if request.wants_json and size is not None:
        raise Refused(413, f"this has {size:,} characters, and {MOST:,} are shown; `stepfast show` has all of it")
    is_error = request.query.get("what") == "error"
    return PayloadPage(
        "payload.html", {"text": text, "size": size, "run_id": run_id}, json_numbers.write(text) if is_error else text
    )


async def _stored(request: ConsoleRequest, row: RunRow) -> Stored | None:
    what, key = request.query.get("what", ""), request.query.get("key", "")
    if what == "input":
        return None if row.input is None else Stored(row.input, row.format, "input")
    if what == "output":
        return None if row.output is None else Stored(row.output, row.output_format or row.format, "output")
    if what == "value":
        value = await (await glance_of(request.reader)).value(row.id, key)
        return None if value is None else Stored(*value, f"values.{key}")
    if what in ("step", "arguments"):
        branch, position = request.query.get("branch", ""), number(request.query.get("position", "0"))
        held = await (await glance_of(request.reader)).step_payloads(row.id, branch, position)
        if held is None:
            return None
        text, path = (held[0], "output") if what == "step" else (held[1], "arguments")
        return None if text is None else Stored(text, held[3], path)
    raise Refused(404, "there is no such payload; there are input, output, step, arguments, error and value")


async def _traceback(request: ConsoleRequest, run_id: str) -> str:
    """The traceback of the run or of one of its steps, redacted as on its page."""
    history = await request.history(run_id)
    if "position" in request.query:
        branch, position = request.query.get("branch", ""), number(request.query["position"])
        if not any((step.branch, step.position) == (branch, position) for step in history.steps):
            history = await request.history(run_id, (branch, position - 1), 1)
        found = [step for step in (await redacted_by_all(request, history)).steps if step.branch == branch]
        error = next((step.error for step in found if step.position == position), None)
    else:
        error = (await redacted_by_all(request, history)).info.error
    if error is None or not error.traceback:
        raise Refused(404, "there is no such error")
    return own_code_only(error.traceback)


async def confirm(request: ConsoleRequest) -> Page:
    """Ask for confirmation before an action."""
    action = ACTIONS.get(request.params["action"])
    if action is None:
        raise Refused(404, "there is no such action")
    history = await redacted_by_all(request, await request.history(request.params["id"]))
    run = history.info
    sentence = what_happens(action, run, history.steps)
    if action == SIGNAL and (warning := await start.codec_warning(request, run.workflow)):
        sentence += f" {warning}"
    shown = {"run": run, "action": action, "sentence": sentence, "names": _awaited(run)}
    shape = {"run": run.id, "action": action.name, "what_happens": sentence}
    return Page("confirm.html", shown, msgspec.to_builtins(shape))


def _awaited(run: RunInfo) -> list[str]:
    begin = f"{status.WAITING_SIGNAL}:"
    return [part.removeprefix(begin) for part in (run.waiting_for or "").split(", ") if part.startswith(begin)]


async def cancel(request: ConsoleRequest) -> Done:
    """Cancel a run, and undo its completed steps that have an undo."""
    await _run(request).cancel()
    return _done(request, "cancel")


async def pause(request: ConsoleRequest) -> Done:
    """Pause a run before its next step."""
    await _run(request).pause()
    return _done(request, "pause")


async def resume(request: ConsoleRequest) -> Done:
    """Resume a paused run."""
    await _run(request).resume()
    return _done(request, "resume")


async def reschedule(request: ConsoleRequest) -> Done:
    """Make a run due now that waits for its start or a retry."""
    await _run(request).reschedule(delay=0)
    return _done(request, "reschedule")


async def retry(request: ConsoleRequest) -> Done:
    """Queue a run again; with ``from_start``, as a new run with the same input."""
    again = await _run(request).retry(from_start=request.form.get("from_start", "") not in ("", "0", "false"))
    return _done(request, "retry", again.id)


async def confirm_again(request: ConsoleRequest) -> Page:
    """Ask for confirmation before a run is executed again from a step on: as a new run, or as it is."""
    step, info = _step(request.query), await _run(request).info()
    fields = {"branch": step.branch, "position": str(step.position), "step": step.name}
    can_rewind = info.completed_at is not None and info.status != status.COMPENSATED
    shown = {"run": info, "step": step, "fields": fields, "can_rewind": can_rewind}
    return Page("again.html", shown, {"run": info.id, "step": step.name, "fields": fields, "can_rewind": can_rewind})


async def fork(request: ConsoleRequest) -> Done:
    """Start a new run with the records of a run up to a step; ``input`` as JSON instead of its own."""
    text = request.form.optional("input")
    given = None if text is None else read_json_text(text, "the input")
    new = await _run(request).fork(before=_step(request.form), input=given)
    return _done(request, "fork", new.id)


async def rewind(request: ConsoleRequest) -> Done:
    """Execute a run again from a step on."""
    await _run(request).rewind(before=_step(request.form))
    return _done(request, "rewind")


def _step(given: Mapping[str, str]) -> StepInfo:
    """The step that an address or a form names."""
    return StepInfo(given.get("step", ""), given.get("branch", ""), number(given.get("position", "0")), "")


async def signal(request: ConsoleRequest) -> Done:
    """Send a run a signal: ``name``, and ``value`` as JSON."""
    name, text = request.form.required("name"), request.form.optional("value")
    await _run(request).signal(name, None if text is None else read_json_text(text, "the value"))
    return _done(request, "signal")


def _run(request: ConsoleRequest) -> Run[Any]:
    return request.app.get(request.params["id"]).this


def _done(request: ConsoleRequest, what: str, run_id: str | None = None) -> Done:
    found = run_id or request.params["id"]
    return Done(request.url("runs", found, done=what), {"run": found, "done": what})
