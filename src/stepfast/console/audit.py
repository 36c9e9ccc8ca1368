"""What the audit keeps of an action: to what it was done, from where, and what else was asked. Never a payload."""

from __future__ import annotations

from urllib.parse import urlencode

from ..monitoring.audit import deed
from ..store.answers import Deed
from .filters import FIELDS, Filters
from .request import ConsoleRequest

_KEPT = (
    "name", "from_start", "concurrency", "rate", "key_concurrency", "key_rate", "max_ready", "reset", "key", "queue",
    "priority", "delay", "tags", "counted",
)  # fmt: skip
"""Fields of forms that are kept. Inputs and the values of signals are not among them."""


def audit_entry(request: ConsoleRequest, what: str) -> Deed:
    """The line for an action that is about to be carried out."""
    client = request.http.client
    which = _which(request, what)
    what = f"bulk.{request.params['action']}" if what == "bulk.runs" else what
    detail = {
        name: request.form[name][:200] for name in _KEPT if request.form.get(name) and request.form[name] != which
    }
    return deed(request.who.name, what, which, "" if client is None else client.host, detail)


def _which(request: ConsoleRequest, what: str) -> str:
    if "id" in request.params:
        return request.params["id"].lower()  # as ids are written everywhere else: the lines of a run are found by it
    if what.startswith("failures."):
        return urlencode({name: request.form[name] for name in FIELDS if request.form.get(name)})
    if what.startswith("bulk."):
        return urlencode(Filters.of(request.form).query)
    return request.form.get({"queue": "queue", "schedule": "schedule"}.get(what.partition(".")[0], "workflow"), "")
