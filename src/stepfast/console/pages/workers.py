"""``/workers``: who works, on what, and when they were last heard of."""

from __future__ import annotations

from ...model.moments import moment
from ...monitoring.changes import glance_of
from ...monitoring.text import queues_of, worker_name, worker_shape
from ..answers import Page
from ..visit import Visit

_AGAIN = 5.0


async def workers(visit: Visit) -> Page:
    """Every worker that is registered; dead ones until somebody has buried them."""
    found = await (await glance_of(visit.look)).workers()
    rows = [
        {
            "worker": worker,
            "name": worker_name(worker),
            "queues": queues_of(worker),
            "workflows": sorted(worker.workflows),
            "up": (worker.beat_at - worker.started_at + worker.age_ms) / 1000,
            "silent": worker.age_ms / 1000,
            "started_at": moment(worker.started_at),
        }
        for worker in found
    ]
    return Page("workers.html", {"workers": rows}, [worker_shape(worker) for worker in found], again=_AGAIN)
