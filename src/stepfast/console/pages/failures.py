"""``/failures``: recent failures by workflow, reason, step and error, and the retry of all runs of a group.

Each page has a module of its own.
"""

from __future__ import annotations

import dataclasses

from ...model import status
from ...model.bulk_actions import RETRY
from ...monitoring.changes import glance_of
from ...monitoring.text import count
from ...stats import FailureStats, failure_stats
from ...store.answers import Alike
from ..bulk_jobs import Job
from ..confirm import Question
from ..filters import LOOKED, USUAL, Group, runs_of, seconds_of
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page
from .bulk import begun

_AGAIN = 10.0


async def failures(request: ConsoleRequest) -> Page:
    """Groups of failures, the most frequent first."""
    text = request.query.get("since") or USUAL
    seconds = seconds_of(text)
    found = failure_stats(seconds, await (await glance_of(request.reader)).failures(int(seconds * 1000), LOOKED))
    rows = [
        {
            "info": group,
            "list": request.url("runs", workflow=group.workflow, status=status.FAILED, reason=group.reason),
            "retry": _retry_link(request, group, text),
        }
        for group in found
    ]
    number = sum(group.count for group in found)
    shown = {"failures": rows, "since": text, "looked": LOOKED, "number": number}
    # The failures of `stepfast stats --json`.
    shape = {
        "since": seconds, "failures": [dataclasses.asdict(group) for group in found], "complete": number < LOOKED,
    }  # fmt: skip
    return Page("failures.html", shown, shape, again=_AGAIN)


async def confirm_retry(request: ConsoleRequest) -> Page:
    """Count the runs of a group that can be retried, and ask for confirmation."""
    group = Group.of(request.query)
    number = len(await runs_of(request, group))
    title = f"Retry {count(number, 'run')}"
    sentence = f"{number:,} failed within {group.since} by {group}. {RETRY.happens}" if number else (
        f"No run is left that failed within {group.since} by {group}, and could be retried."
    )  # fmt: skip
    question = Question(title, sentence, ("failures", "retry"), group.query | {"counted": str(number)})
    page = question.page(request, request.url("failures", since=group.since), possible=number > 0)
    return Page(page.template, page.shown, {"found": number, "more": False, RETRY.done: 0, "refused": []})


def _retry_link(request: ConsoleRequest, group: FailureStats, since: str) -> str:
    alike = Alike(group.workflow, group.reason, group.step, group.error_type)
    return request.url("failures", "retry", **Group(alike, since).query)


async def retry(request: ConsoleRequest) -> Done:
    """Retry the runs that are in the group now, and not those that fail later."""
    group = Group.of(request.form)
    ids = await runs_of(request, group)
    if not ids:
        raise Refused(409, "no run is left that failed like this and could be retried")
    return await begun(request, Job(RETRY, f"{len(ids):,}", str(group)), lambda bulk: bulk.these(ids))
