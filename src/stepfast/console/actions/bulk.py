"""One wish for all runs that filters choose."""

from __future__ import annotations

from ..answers import Done
from ..filters import Filters
from ..jobs import Carry, Job, all_of
from ..pages.bulk import choices_of, counted, wish_of, written
from ..visit import Visit


async def bulk(visit: Visit) -> Done:
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
