"""``/runs``: the list, by filters that stand in the address, page by page."""

from __future__ import annotations

from ...listing import ListKeywords
from ...model import status
from ...reports import RunInfo
from ..answers import Done, Page
from ..filters import ORDERS, Filters
from ..finding import find
from ..refusals import Refused
from ..veiling import veiled_runs
from ..visit import Visit

PAGE = 50
_MOST = 500
_AGAIN = 3.0


async def runs(visit: Visit) -> Page | Done:
    """A page of runs; or, if the box names one of them, that run."""
    filters = Filters.of(visit.query)
    wanted = visit.query.get("find", "").strip()
    if wanted:
        found = await find(visit.app, wanted)
        if len(found) == 1:
            return Done(visit.url("runs", found[0].id), {"found": found[0].id})
        return _page(visit, Filters(), found, wanted, len(found))
    limit = _limit(visit.query.get("limit"))
    page: ListKeywords = {**filters.keywords, "limit": limit, "after": visit.query.get("after") or None}
    found = await visit.app.runs(**page)
    return _page(visit, filters, found, "", limit)


def _page(visit: Visit, filters: Filters, found: list[RunInfo], wanted: str, limit: int) -> Page:
    shown = veiled_runs(found, visit.veil())
    more = (
        visit.url("runs", **filters.query, after=found[-1].id) if found and not wanted and len(found) == limit else None
    )
    given = {
        "runs": shown,
        "filters": filters,
        "wanted": wanted,
        "more": more,
        "first": visit.query.get("after") is None,
        "statuses": status.RUN_STATUSES,
        "reasons": status.REASONS,
        "orders": ORDERS,
        "columns": _columns(shown),
    }
    link = {"Link": f'<{more}>; rel="next"'} if more else {}
    return Page("runs.html", given, shown, again=_AGAIN, headers=link)


def _columns(found: list[RunInfo]) -> set[str]:
    """Those that say something of at least one run."""
    said = {
        "queue": any(run.queue != run.workflow for run in found),
        "key": any(run.key for run in found),
        "tags": any(run.tags for run in found),
        "attempt": any(run.attempt > 1 for run in found),
    }
    return {name for name, needed in said.items() if needed}


def _limit(text: str | None) -> int:
    if not text:
        return PAGE
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST:
        raise Refused(400, f"limit must be from 1 to {_MOST}")
    return int(text)
