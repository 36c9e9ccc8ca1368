"""``/bulk``: one action on all runs that filters select, and the progress of bulk jobs."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from ...bulk import for_statuses
from ...filters import ListKeywords
from ...model.bulk_actions import BATCHED, BulkAction
from ...monitoring.search import Counted, count_runs
from ..bulk_jobs import Apply, Job, all_of
from ..confirm import Question
from ..filters import Filters
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page

_AGAIN = 1.0


async def bulk(request: ConsoleRequest) -> Page:
    """Count the selected runs, and ask for confirmation."""
    action, filters = _action_of(request), Filters.of(request.query)
    number = await _counted(request, await _choices(request, action, filters))
    title = f"{action.verb.capitalize()} {number} {'run' if str(number) == '1' else 'runs'}"
    chosen = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in filters.query.items() if name != "sort")
    sentence = f"{number} chosen by {chosen}. {action.happens}" if number.number else (
        f"No run is chosen by {chosen} that could be {action.done}."
    )  # fmt: skip
    fields = filters.query | {"counted": str(number)}
    question = Question(title, sentence, ("bulk", action.verb), fields, danger=action.danger)
    page = question.page(request, request.url("runs", **filters.query), possible=number.number > 0)
    return Page(page.template, page.shown, {"found": number.number, "more": number.more, action.done: 0, "refused": []})


async def job(request: ConsoleRequest) -> Page:
    """The progress of a job."""
    found = request.state.jobs.get(request.params["job"])
    refused = list(found.result.refused.items())
    shown = {"job": found, "refused": refused[:20], "more": max(0, len(refused) - 20)}
    return Page("job.html", shown, found.shape(), again=_AGAIN if found.ended is None else None)


async def begin_bulk(request: ConsoleRequest) -> Done:
    """Begin a job; its audit entry stays open until it ends."""
    action, filters = _action_of(request), Filters.of(request.form)
    choices = await _choices(request, action, filters)
    job = Job(action, str(await _counted(request, choices)), urlencode(filters.query))
    return await begun(request, job, all_of(choices))


async def begun(request: ConsoleRequest, job: Job, apply: Apply) -> Done:
    """Begin a job, and redirect to its page."""
    begun = await request.state.jobs.begin(job, apply, request.audit_id)
    address = request.url("bulk", "jobs", begun.id)
    if begun is not job:
        return Done(address, begun.shape(), "the same was under way already")
    return Done(address, job.shape(), open=True)


def _action_of(request: ConsoleRequest) -> BulkAction:
    action = BATCHED.get(request.params["action"])
    if action is None:
        raise Refused(404, f"there is no such action; there are {', '.join(BATCHED)}")
    return action


async def _choices(request: ConsoleRequest, action: BulkAction, filters: Filters) -> list[ListKeywords]:
    """The filters for each status that the action applies to. At least one filter has to be given."""
    if not filters.any:
        raise Refused(400, "no runs are chosen: narrow the list down by a filter first")
    if filters.text is not None:
        raise Refused(400, "runs cannot be chosen by a text: it is only searched for in the newest runs")
    given = await filters.keywords(request.reader)
    given.pop("oldest_first", None)
    return for_statuses(action, given)


async def _counted(request: ConsoleRequest, choices: Sequence[ListKeywords]) -> Counted:
    """Count the runs, up to ten thousand of each status."""
    found = [await count_runs(request.reader, choice) for choice in choices]
    return Counted(sum(each.number for each in found), any(each.more for each in found))
