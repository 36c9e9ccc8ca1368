"""``/runs``: the list by filters in the address, page by page; ``/news`` reports changes to open tabs."""

from __future__ import annotations

import time
from dataclasses import replace

from ...filters import ListKeywords
from ...info import RunInfo
from ...model import status
from ...model.bulk_actions import BATCHED
from ...model.cron import clock
from ...monitoring.changes import LISTS, news_of
from ...monitoring.search import SEARCHED, Counted, Listed, count_runs, find_runs, list_runs
from ...monitoring.text import count
from ..filters import ORDERS, Filters
from ..redaction import aside, redacted_runs
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import NAVIGATION, Done, Json, Page, change_poll, state_hash_of

PAGE = 50
_MOST = 500
_AGAIN = 2.0
_LATEST = 15.0
"""Seconds after which the list is read again, even without a change of the newest runs."""


async def runs(request: ConsoleRequest) -> Page | Done:
    """A page of runs; if the search box identifies one run, a redirect to it."""
    wanted = request.query.get("find", "").strip()
    if wanted:
        found = await find_runs(request.reader, wanted)
        if len(found) == 1:
            return Done(request.url("runs", found[0].id), {"found": found[0].id})
        return await _page(request, Filters(), Listed(found, None), wanted)
    filters = Filters.of(request.query)
    if filters.text is not None and request.state.rule is not None:
        raise Refused(400, "parts of inputs are hidden here, so they cannot be searched for a text")
    seen = await state_hash_of(request) if filters.text is None else None
    keywords = await filters.keywords(request.reader)
    number = await count_runs(request.reader, keywords) if filters.any and filters.text is None else None
    page: ListKeywords = {"limit": _limit(request.query.get("limit")), "after": request.query.get("after") or None}
    listed = await list_runs(request.reader, {**keywords, **page}, filters.text)
    return replace(await _page(request, filters, listed, "", number), news=change_poll(request, seen, _LATEST))


def _searched(listed: Listed) -> str:
    """How many runs were searched, if not all of them."""
    said = []
    if listed.looked is not None:
        newest = f", the newest {SEARCHED:,} that pass the other filters" if listed.looked >= SEARCHED else ""
        said.append(f"Looked through the inputs of {count(listed.looked, 'run')}{newest}.")
    if listed.too_large:
        said.append(f"{listed.too_large:,} of them were too large for that.")
    if listed.back_to is not None:
        said.append(f"The search ended at {clock(listed.back_to)}; the next page continues from there.")
    return " ".join(said)


def _bulk(request: ConsoleRequest, filters: Filters, number: Counted | None) -> list[str]:
    """The actions that can be applied to all of them, by the status that they have."""
    if number is None or not number.number or not request.may_operate:
        return []
    return [action.verb for action in BATCHED.values() if filters.status is None or filters.status in action.statuses]


async def _page(
    request: ConsoleRequest, filters: Filters, listed: Listed, wanted: str, number: Counted | None = None
) -> Page:
    redactor = request.redactor()
    shown = await aside(redactor, lambda: redacted_runs(listed.runs, redactor))
    kept = {**filters.query, "limit": request.query.get("limit")}
    more = None if listed.after is None else request.url("runs", **kept, after=listed.after)
    given = {
        "runs": shown,
        "filters": filters,
        "wanted": wanted,
        "said": _searched(listed),
        "number": number,
        "bulk": _bulk(request, filters, number),
        "more": more,
        "first": request.query.get("after") is None,
        "statuses": status.RUN_STATUSES,
        "reasons": status.REASONS,
        "orders": ORDERS,
        "columns": _columns(shown),
    }
    link = {"Link": f'<{more}>; rel="next"'} if more else {}
    # A search reads thousands of inputs: an open tab does not repeat it.
    again = None if filters.text is not None or wanted else _AGAIN
    return Page("runs.html", given, shown, again=again, headers=link)


def _columns(found: list[RunInfo]) -> set[str]:
    """The columns that are not empty for every run."""
    said = {
        "queue": any(run.queue != run.workflow for run in found),
        "key": any(run.key for run in found),
        "tags": any(run.tags for run in found),
        "attributes": any(run.attributes for run in found),
        "attempt": any(run.attempt > 1 for run in found),
    }
    return {name for name, needed in said.items() if needed}


def _limit(text: str | None) -> int:
    if not text:
        return PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= _MOST:
        raise Refused(400, f"limit must be from 1 to {_MOST}")
    return int(text)


async def home(request: ConsoleRequest) -> Done:
    """Redirect to the list of runs."""
    return Done(request.url("runs"), {"pages": [path for _, path in NAVIGATION]})


_SOON, _LATE = 1.0, 5.0
_QUIET = 30.0
"""A tab waits a second longer for each so many seconds without a change, up to five."""


async def news(request: ConsoleRequest) -> Json:
    """Whether a run, or the list of runs, has changed since a mark; and in how many seconds to ask again."""
    run_id = request.query.get("run")
    what = LISTS if run_id is None else request.reader.get(run_id).id
    found = await (await news_of(request.app)).ask(what)
    if found is None:
        return Json({"changed": True, "again": _LATE})
    quiet = time.monotonic() - found.since
    again = round(min(max(_SOON, quiet / _QUIET), _LATE), 1)
    return Json({"changed": request.query.get("mark") != found.text, "again": again})
