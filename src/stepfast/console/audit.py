"""What the audit keeps of an action: to what it was done, from where, and what else was asked. Never a payload."""

from __future__ import annotations

from urllib.parse import urlencode

from ..monitoring.audit import deed
from ..store.answers import Deed
from .filters import FIELDS, Filters
from .request import Visit

_KEPT = (
    "name", "from_start", "concurrency", "rate", "key_concurrency", "key_rate", "max_ready", "reset", "key", "queue",
    "priority", "delay", "tags", "counted",
)  # fmt: skip
"""Fields of forms that are kept. Inputs and the values of signals are not among them."""


def deed_of(visit: Visit, what: str) -> Deed:
    """The line for an action that is about to be carried out."""
    client = visit.request.client
    which = _which(visit, what)
    what = f"bulk.{visit.params['action']}" if what == "bulk.runs" else what
    detail = {name: visit.form[name][:200] for name in _KEPT if visit.form.get(name) and visit.form[name] != which}
    return deed(visit.who.name, what, which, "" if client is None else client.host, detail)


def _which(visit: Visit, what: str) -> str:
    if "id" in visit.params:
        return visit.params["id"].lower()  # as ids are written everywhere else: the lines of a run are found by it
    if what.startswith("failures."):
        return urlencode({name: visit.form[name] for name in FIELDS if visit.form.get(name)})
    if what.startswith("bulk."):
        return urlencode(Filters.of(visit.form).query)
    return visit.form.get({"queue": "queue", "schedule": "schedule"}.get(what.partition(".")[0], "workflow"), "")
