"""Starting a run from a form."""

from __future__ import annotations

from ...errors import UnknownWorkflow
from ...monitoring.changes import glance_of
from ...monitoring.text import span
from ..answers import Done
from ..input_form import input_of
from ..refusals import Refused
from ..visit import Visit


async def start(visit: Visit) -> Done:
    """Start a run of a workflow, with an input as JSON or field by field. What does not fit is refused by its path."""
    name, form = visit.form.required("workflow"), visit.form
    known = {each.name: each for each in await (await glance_of(visit.look)).definitions()}
    if name not in known:
        raise UnknownWorkflow(name, sorted(known))
    priority, delay = form.optional("priority"), form.optional("delay")
    run = await visit.app.start(
        name,
        input_of(form, known[name].input_schema),
        key=form.optional("key"),
        queue=form.optional("queue"),
        priority=0 if priority is None else _whole(priority),
        delay=None if delay is None else _seconds(delay),
        tags=[tag.strip() for tag in (form.optional("tags") or "").split(",") if tag.strip()],
    )
    return Done(visit.url("runs", run.id, done="start"), {"id": run.id}, said=f"run {run.id}")


def _whole(text: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 10:
        raise Refused(400, "a priority is a whole number")
    return int(digits)


def _seconds(text: str) -> float:
    try:
        return span(text)
    except ValueError as error:
        raise Refused(400, str(error)) from None
