"""``/bulk``: one action on all runs that filters select, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from ...filters import ListKeywords
from ...monitoring.search import Counted, count_runs
from ..bulk_jobs import WISHES, BulkAction, Carry, Job, all_of
from ..confirm import Question
from ..filters import Filters
from ..refusals import Refused
from ..request import Visit
from ..responses import Done, Page

_AGAIN = 1.0


async def bulk(visit: Visit) -> Page:
    """The counted dry run, and the form that makes it so."""
    wish, filters = wish_of(visit), Filters.of(visit.query)
    number = await counted(visit, choices_of(wish, filters))
    title = f"{wish.verb.capitalize()} {number} {'run' if str(number) == '1' else 'runs'}"
    sentence = f"{number} chosen by {chosen_by(filters)}. {wish.happens}" if number.number else (
        f"No run is chosen by {chosen_by(filters)} that could be {wish.done}."
    )  # fmt: skip
    fields = filters.query | {"counted": str(number)}
    question = Question(title, sentence, ("bulk", wish.verb), fields, danger=wish.verb == "cancel")
    page = question.page(visit, visit.url("runs", **filters.query), possible=number.number > 0)
    return Page(page.template, page.shown, {"found": number.number, "more": number.more, wish.done: 0, "refused": []})


async def job(visit: Visit) -> Page:
    """How far a job is."""
    found = visit.desk.jobs.get(visit.params["job"])
    refused = list(found.tally.refused.items())
    shown = {"job": found, "refused": refused[:20], "more": max(0, len(refused) - 20)}
    return Page("job.html", shown, found.shape(), again=_AGAIN if found.ended is None else None)


def wish_of(visit: Visit) -> BulkAction:
    """What is asked of them."""
    wish = WISHES.get(visit.params["action"])
    if wish is None:
        raise Refused(404, f"there is no such action; there are {', '.join(WISHES)}")
    return wish


def choices_of(wish: BulkAction, filters: Filters) -> list[ListKeywords]:
    """The filters for each status that is meant. All runs at once are not meant by a link that names none."""
    if not filters.any:
        raise Refused(400, "which runs? Narrow the list down by a filter first")
    if filters.text is not None:
        raise Refused(400, "runs that were found by a text cannot be chosen: the text is only looked for in the newest")
    given = filters.keywords
    given.pop("oldest_first", None)
    return [{**given, "status": each} for each in ([filters.status] if filters.status else wish.usual)]


async def counted(visit: Visit, choices: Sequence[ListKeywords]) -> Counted:
    """How many these are, up to ten thousand of each."""
    found = [await count_runs(visit.look, choice) for choice in choices]
    return Counted(sum(each.number for each in found), any(each.more for each in found))


def chosen_by(filters: Filters) -> str:
    """The filters in words."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in filters.query.items() if name != "sort")


def written(filters: Filters) -> str:
    """The filters as an address has them, for the audit."""
    return urlencode(filters.query)


async def begin_bulk(visit: Visit) -> Done:
    """Begin it, beside the pages; the page that comes next tells how far it is. Its line in the audit stays open until
    it has ended."""
    wish, filters = wish_of(visit), Filters.of(visit.form)
    choices = choices_of(wish, filters)
    job = Job(wish, str(await counted(visit, choices)), written(filters))
    return await begun(visit, job, all_of(choices))


async def begun(visit: Visit, job: Job, carry: Carry) -> Done:
    """Begin a job, and go on to its page."""
    begun = await visit.desk.jobs.begin(job, carry, visit.line)
    address = visit.url("bulk", "jobs", begun.id)
    if begun is not job:
        return Done(address, begun.shape(), "the same was under way already")
    return Done(address, job.shape(), open=True)
