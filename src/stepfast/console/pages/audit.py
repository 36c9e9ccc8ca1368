"""``/audit``: who did what by the console, to which run, queue or schedule, when, and from where."""

from __future__ import annotations

from urllib.parse import parse_qsl

from ...model.ids import check_id
from ...model.moments import moment
from ...monitoring.audit import LONGEST, line_shape
from ...monitoring.changes import glance_of
from ...store.store import FAILED, INTERRUPTED, UNKNOWN, AuditLine
from ..answers import Page
from ..filters import Filters
from ..groups import Group
from ..visit import Visit

PAGE = 50
_AGAIN = 15.0


async def audit(visit: Visit) -> Page:
    """A page of lines, the newest first; of one run, queue or schedule, if the address says so."""
    which, before = visit.query.get("which") or None, visit.query.get("before") or None
    glance = await glance_of(visit.look)
    found = await glance.audit(which, None if before is None else check_id(before), PAGE + 1)
    lines, more = found[:PAGE], len(found) > PAGE
    rows = [{"line": line, "at": moment(line.at), "again": _ask_again(visit, line)} for line in lines]
    link = visit.url("audit", which=which, before=lines[-1].id) if more else None
    shown = {"lines": rows, "which": which or "", "more": link, "first": before is None}
    headers = {"Link": f'<{link}>; rel="next"'} if link else {}
    return Page("audit.html", shown, [line_shape(line) for line in lines], again=_AGAIN, headers=headers)


def _ask_again(visit: Visit, line: AuditLine) -> str | None:
    """Where the rest of a bulk job can be asked for that did not come to its end. What it was chosen by stands in the
    line, unless it was too long for one."""
    if line.outcome not in (INTERRUPTED, UNKNOWN, FAILED) or len(line.which) >= LONGEST:
        return None
    kind, _, verb = line.what.partition(".")
    given = dict(parse_qsl(line.which))
    if kind == "failures" and given.get("workflow"):
        return visit.url("failures", verb, **Group.of(given).query)
    return visit.url("bulk", verb, **Filters.of(given).query) if kind == "bulk" else None
