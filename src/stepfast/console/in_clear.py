"""Whoever writes a payload without the codec that others write with leaves it readable: forms say so before."""

from __future__ import annotations

from ..monitoring.changes import glance_of
from ..monitoring.search import list_runs
from ..settings import FORMAT
from .visit import Visit

IN_CLEAR = (
    "This console is without the codec that runs of this workflow are stored through: what is sent here is stored as "
    "readable JSON. `stepfast console module:app` has the codec."
)


async def said_of(visit: Visit, workflow: str) -> str:
    """The sentence, if what is written from here about a workflow would not be sealed as the newest of its runs is."""
    if visit.app._payloads.format != FORMAT:
        return ""
    newest = await list_runs(visit.look, {"workflow": workflow, "limit": 1})
    rows = await (await glance_of(visit.look)).named([run.id for run in newest.runs])
    return IN_CLEAR if any(row.format != FORMAT for row in rows) else ""
