"""``/failures``: what failed lately, by workflow, reason and error, with how many and since when."""

from __future__ import annotations

import dataclasses

from ...model import status
from ...stats import FailureStats, failure_stats
from ...telling.words import span
from ...watching.onlooker import glance_of
from ..answers import Page
from ..refusals import Refused
from ..visit import Visit

_AGAIN = 10.0
_USUAL = "1d"
LOOKED = 10_000
"""So many of the newest failed runs are looked at, and as many that were undone."""


async def failures(visit: Visit) -> Page:
    """Groups of failures, those that happened most, first."""
    text = visit.query.get("since") or _USUAL
    seconds = _seconds(text)
    found = failure_stats(seconds, await (await glance_of(visit.look)).failures(int(seconds * 1000), LOOKED))
    rows = [{"info": group, "list": _list(visit, group), "retry": _retry(visit, group)} for group in found]
    shown = {"failures": rows, "since": text, "looked": LOOKED, "number": sum(group.count for group in found)}
    return Page("failures.html", shown, [dataclasses.asdict(group) for group in found], again=_AGAIN)


def _seconds(text: str) -> float:
    try:
        seconds = span(text)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    if not 0 < seconds < 10 * 365 * 86400:
        raise Refused(400, f"since must be more than nothing, and at most ten years, not {text}")
    return seconds


def _list(visit: Visit, group: FailureStats) -> str:
    return visit.url("runs", workflow=group.workflow, status=status.FAILED, reason=group.reason)


def _retry(visit: Visit, group: FailureStats) -> str:
    return visit.url("bulk", "retry", workflow=group.workflow, status=status.FAILED, reason=group.reason)
