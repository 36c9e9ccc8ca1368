"""``/schedules``: when each fires, its state, its next five ticks, and the actions on it."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ScheduleNotFound
from ...monitoring.text import schedule_shape, state_in_words, times_in_words, when_in_words
from ...schedules import ScheduleInfo
from ..confirm import Question
from ..redaction import Veil, aside
from ..refusals import Refused
from ..request import Visit
from ..responses import Done, Page

_AGAIN = 10.0
_DONE = {"paused": "The schedule is paused.", "resumed": "The schedule goes on with its next tick."}


async def schedules(visit: Visit) -> Page:
    """All schedules, by name."""
    all_ = await visit.look.schedules()
    found = await aside(visit.veil(), lambda: [_veiled(info, visit.veil()) for info in all_])
    rows = [
        {
            "info": info,
            "when": when_in_words(info),
            "state": state_in_words(info),
            "next": "" if info.paused else times_in_words(info),
        }
        for info in found
    ]
    shown = {"schedules": rows, "done": _DONE.get(visit.query.get("done", ""))}
    return Page("schedules.html", shown, [schedule_shape(info) for info in found], again=_AGAIN)


async def confirm_schedule(visit: Visit) -> Page:
    """The page before a schedule is paused, resumed or triggered."""
    name, action = visit.query.get("schedule", ""), visit.params["action"]
    info = next((each for each in await visit.look.schedules() if each.name == name), None)
    if info is None:
        raise ScheduleNotFound(name)
    said = {"pause": _paused, "resume": _resumed, "trigger": _triggered}.get(action)
    if said is None:
        raise Refused(404, "there is no such action")
    title = f"{action.capitalize()} schedule {name}"
    return Question(title, said(info), ("schedules", action), {"schedule": name}).page(visit, visit.url("schedules"))


def _veiled(info: ScheduleInfo, veil: Veil) -> ScheduleInfo:
    """A schedule without what is hidden of the input that it starts runs with."""
    if not veil.hides:
        return info
    shown = replace(info, input=veil.value(info.input, "input"))
    return replace(shown, error=None if info.error is None else veil.text(info.error))


def _paused(info: ScheduleInfo) -> str:
    return f"Its ticks start nothing until it is resumed; the next would be {times_in_words(info)}. Its runs go on."


def _resumed(info: ScheduleInfo) -> str:
    return "It goes on with its next tick. Ticks that passed meanwhile are skipped."


def _triggered(info: ScheduleInfo) -> str:
    return f"A run of {info.workflow} is started now, with the input of the schedule, beside its ticks."


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
