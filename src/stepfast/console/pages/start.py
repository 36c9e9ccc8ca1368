"""``/start``: choose a workflow, fill in its input, and start a run."""

from __future__ import annotations

from typing import Any

from ...errors import UnknownWorkflow
from ...filters import split_attributes, typed_attributes
from ...model.rows import Definition
from ...monitoring.changes import glance_of
from ...monitoring.search import list_runs
from ...monitoring.text import span
from ...settings import FORMAT
from ..input_form import fields_of, input_of
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page


async def start(request: ConsoleRequest) -> Done:
    """Start a run of a workflow, with an input as JSON or from fields. Errors of the input name the path."""
    form, name = request.form, request.form.required("workflow")
    definition = (await _definitions(request, name))[name]
    priority, delay = form.optional("priority"), form.optional("delay")
    run = await request.app.start(
        name,
        input_of(form, definition.input_schema),
        key=form.optional("key"),
        unique=form.optional("unique"),
        queue=form.optional("queue"),
        priority=0 if priority is None else _whole(priority),
        delay=None if delay is None else span(delay),
        attributes=await _attributes(request, form.optional("attributes")),
        tags=[tag.strip() for tag in (form.optional("tags") or "").split(",") if tag.strip()],
    )
    return Done(request.url("runs", run.id, done="start"), {"id": run.id}, said=f"run {run.id}")


async def _attributes(request: ConsoleRequest, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    types = await (await glance_of(request.reader)).attribute_types()
    return typed_attributes(split_attributes(text), types, known=False)


async def _definitions(request: ConsoleRequest, name: str | None) -> dict[str, Definition]:
    """The workflows that the database knows, if that named is among them."""
    known = {each.name: each for each in await (await glance_of(request.reader)).definitions()}
    if name is not None and name not in known:
        raise UnknownWorkflow(name, sorted(known))
    return known


def _whole(text: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 10:
        raise Refused(400, "a priority is a whole number")
    return int(digits)


IN_CLEAR = (
    "This console does not have the codec of this workflow's payloads: what is sent here is stored as readable JSON. "
    "`stepfast console module:app` has the codec."
)


async def codec_warning(request: ConsoleRequest, workflow: str) -> str:
    """Return a warning, if the newest run of the workflow is encoded, and this console could not encode a new one."""
    if request.app._payloads.format != FORMAT:
        return ""
    newest = await list_runs(request.reader, {"workflow": workflow, "limit": 1})
    rows = await (await glance_of(request.reader)).named([run.id for run in newest.runs])
    return IN_CLEAR if any(row.format != FORMAT for row in rows) else ""


async def start_form(request: ConsoleRequest) -> Page:
    """The workflows that the database knows, or the form of one of them."""
    name = request.query.get("workflow") or None
    known = await _definitions(request, name)
    chosen = None if name is None else known[name]
    fields = [] if chosen is None else fields_of(chosen.input_schema)
    warning = "" if name is None else await codec_warning(request, name)
    shown = {"workflows": sorted(known), "chosen": chosen, "fields": fields, "warning": warning}
    return Page("start.html", shown, [_shape(each) for each in known.values()] if chosen is None else _shape(chosen))


def _shape(definition: Definition) -> dict[str, str | None]:
    return {
        "workflow": definition.name,
        "kind": definition.kind,
        "queue": definition.queue,
        "input_schema": definition.input_schema,
    }
