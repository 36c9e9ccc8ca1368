"""``/start``: choose a workflow, and fill its input in."""

from __future__ import annotations

from ...errors import UnknownWorkflow
from ...model.rows import Definition
from ...monitoring.changes import glance_of
from .. import in_clear
from ..answers import Page
from ..input_form import fields_of
from ..visit import Visit


async def start_form(visit: Visit) -> Page:
    """The workflows that the database knows; or the form of one of them."""
    known = {each.name: each for each in await (await glance_of(visit.look)).definitions()}
    name = visit.query.get("workflow") or None
    if name is not None and name not in known:
        raise UnknownWorkflow(name, sorted(known))
    chosen = None if name is None else known[name]
    fields = [] if chosen is None else fields_of(chosen.input_schema)
    warning = "" if name is None else await in_clear.said_of(visit, name)
    shown = {"workflows": sorted(known), "chosen": chosen, "fields": fields, "warning": warning}
    return Page("start.html", shown, [_shape(each) for each in known.values()] if chosen is None else _shape(chosen))


def _shape(definition: Definition) -> dict[str, str | None]:
    return {
        "workflow": definition.name,
        "kind": definition.kind,
        "queue": definition.queue,
        "input_schema": definition.input_schema,
    }
