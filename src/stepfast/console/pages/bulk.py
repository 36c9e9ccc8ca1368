"""``/bulk``: one action on all runs that filters select, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from ...filters import ListKeywords
from ...monitoring.search import Counted, count_runs
from ..bulk_jobs import BULK_ACTIONS, Apply, BulkAction, Job, all_of
from ..confirm import Question
from ..filters import Filters
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page

_AGAIN = 1.0


async def bulk(request: ConsoleRequest) -> Page:
    """The counted dry run, and the form that makes it so."""
    action, filters = action_of(request), Filters.of(request.query)
    number = await counted(request, choices_of(action, filters))
    title = f"{action.verb.capitalize()} {number} {'run' if str(number) == '1' else 'runs'}"
    sentence = f"{number} chosen by {chosen_by(filters)}. {action.happens}" if number.number else (
        f"No run is chosen by {chosen_by(filters)} that could be {action.done}."
    )  # fmt: skip
    fields = filters.query | {"counted": str(number)}
    question = Question(title, sentence, ("bulk", action.verb), fields, danger=action.verb == "cancel")
    page = question.page(request, request.url("runs", **filters.query), possible=number.number > 0)
    return Page(page.template, page.shown, {"found": number.number, "more": number.more, action.done: 0, "refused": []})


async def job(request: ConsoleRequest) -> Page:
    """How far a job is."""
    found = request.state.jobs.get(request.params["job"])
    refused = list(found.tally.refused.items())
    shown = {"job": found, "refused": refused[:20], "more": max(0, len(refused) - 20)}
    return Page("job.html", shown, found.shape(), again=_AGAIN if found.ended is None else None)


def action_of(request: ConsoleRequest) -> BulkAction:
    """What is asked of them."""
    action = BULK_ACTIONS.get(request.params["action"])
    if action is None:
        raise Refused(404, f"there is no such action; there are {', '.join(BULK_ACTIONS)}")
    return action


def choices_of(action: BulkAction, filters: Filters) -> list[ListKeywords]:
    """The filters for each status that is meant. All runs at once are not meant by a link that names none."""
    if not filters.any:
        raise Refused(400, "which runs? Narrow the list down by a filter first")
    if filters.text is not None:
        raise Refused(400, "runs that were found by a text cannot be chosen: the text is only looked for in the newest")
    given = filters.keywords
    given.pop("oldest_first", None)
    return [{**given, "status": each} for each in ([filters.status] if filters.status else action.usual)]


async def counted(request: ConsoleRequest, choices: Sequence[ListKeywords]) -> Counted:
    """How many these are, up to ten thousand of each."""
    found = [await count_runs(request.reader, choice) for choice in choices]
    return Counted(sum(each.number for each in found), any(each.more for each in found))


def chosen_by(filters: Filters) -> str:
    """The filters in words."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in filters.query.items() if name != "sort")


def written(filters: Filters) -> str:
    """The filters as an address has them, for the audit."""
    return urlencode(filters.query)


async def begin_bulk(request: ConsoleRequest) -> Done:
    """Begin it, beside the pages; the page that comes next tells how far it is. Its line in the audit stays open until
    it has ended."""
    action, filters = action_of(request), Filters.of(request.form)
    choices = choices_of(action, filters)
    job = Job(action, str(await counted(request, choices)), written(filters))
    return await begun(request, job, all_of(choices))


async def begun(request: ConsoleRequest, job: Job, apply: Apply) -> Done:
    """Begin a job, and go on to its page."""
    begun = await request.state.jobs.begin(job, apply, request.audit_id)
    address = request.url("bulk", "jobs", begun.id)
    if begun is not job:
        return Done(address, begun.shape(), "the same was under way already")
    return Done(address, job.shape(), open=True)
