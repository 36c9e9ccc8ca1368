"""What can be done with a schedule: pause, resume, trigger."""

from __future__ import annotations

from ..answers import Done
from ..visit import Visit


async def pause(visit: Visit) -> Done:
    """Pause a schedule: its ticks start nothing."""
    name = visit.form.required("schedule")
    await visit.app.pause_schedule(name)
    return Done(visit.url("schedules", done="paused"), {"name": name, "paused": True})


async def resume(visit: Visit) -> Done:
    """Resume a paused schedule with its next tick."""
    name = visit.form.required("schedule")
    await visit.app.resume_schedule(name)
    return Done(visit.url("schedules", done="resumed"), {"name": name, "paused": False})


async def trigger(visit: Visit) -> Done:
    """Start a run of a schedule now."""
    name = visit.form.required("schedule")
    run = await visit.app.trigger(name)
    return Done(visit.url("runs", run.id, done="trigger"), {"name": name, "id": run.id}, said=f"run {run.id}")
