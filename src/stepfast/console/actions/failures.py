"""Retrying all runs that failed alike."""

from __future__ import annotations

from ..answers import Done
from ..groups import Group, runs_of
from ..jobs import WISHES, Job
from ..refusals import Refused
from ..visit import Visit
from .bulk import begun


async def retry(visit: Visit) -> Done:
    """Retry those that are in the group now, and no others: what fails while it goes on is not meant."""
    group = Group.of(visit.form)
    ids = await runs_of(visit, group)
    if not ids:
        raise Refused(409, "no run is left that failed like this and could be retried")
    job = Job(WISHES["retry"], f"{len(ids):,}", str(group))
    return await begun(visit, job, lambda bulk: bulk.these(ids))
