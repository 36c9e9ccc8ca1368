"""``/schedules``: when each fires, its state, its next five ticks, and the actions on it."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ScheduleNotFound
from ...monitoring.text import schedule_shape, state_in_words, times_in_words, when_in_words
from ...schedules import ScheduleInfo
from ..confirm import Question
from ..redaction import Redactor, aside
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page

_AGAIN = 10.0
_DONE = {"paused": "The schedule is paused.", "resumed": "The schedule goes on with its next tick."}


async def schedules(request: ConsoleRequest) -> Page:
    """All schedules, by name."""
    all_ = await request.reader.schedules()
    found = await aside(request.redactor(), lambda: [_redacted(info, request.redactor()) for info in all_])
    rows = [
        {
            "info": info,
            "when": when_in_words(info),
            "state": state_in_words(info),
            "next": "" if info.paused else times_in_words(info),
        }
        for info in found
    ]
    shown = {"schedules": rows, "done": _DONE.get(request.query.get("done", ""))}
    return Page("schedules.html", shown, [schedule_shape(info) for info in found], again=_AGAIN)


async def confirm_schedule(request: ConsoleRequest) -> Page:
    """The page before a schedule is paused, resumed or triggered."""
    name, action = request.query.get("schedule", ""), request.params["action"]
    info = next((each for each in await request.reader.schedules() if each.name == name), None)
    if info is None:
        raise ScheduleNotFound(name)
    said = {"pause": _paused, "resume": _resumed, "trigger": _triggered}.get(action)
    if said is None:
        raise Refused(404, "there is no such action")
    title = f"{action.capitalize()} schedule {name}"
    return Question(title, said(info), ("schedules", action), {"schedule": name}).page(
        request, request.url("schedules")
    )


def _redacted(info: ScheduleInfo, redactor: Redactor) -> ScheduleInfo:
    """A schedule without what is hidden of the input that it starts runs with."""
    if not redactor.hides:
        return info
    shown = replace(info, input=redactor.value(info.input, "input"))
    return replace(shown, error=None if info.error is None else redactor.text(info.error))


def _paused(info: ScheduleInfo) -> str:
    return f"Its ticks start nothing until it is resumed; the next would be {times_in_words(info)}. Its runs go on."


def _resumed(info: ScheduleInfo) -> str:
    return "It goes on with its next tick. Ticks that passed meanwhile are skipped."


def _triggered(info: ScheduleInfo) -> str:
    return f"A run of {info.workflow} is started now, with the input of the schedule, beside its ticks."


async def pause(request: ConsoleRequest) -> Done:
    """Pause a schedule: its ticks start nothing."""
    name = request.form.required("schedule")
    await request.app.pause_schedule(name)
    return Done(request.url("schedules", done="paused"), {"name": name, "paused": True})


async def resume(request: ConsoleRequest) -> Done:
    """Resume a paused schedule with its next tick."""
    name = request.form.required("schedule")
    await request.app.resume_schedule(name)
    return Done(request.url("schedules", done="resumed"), {"name": name, "paused": False})


async def trigger(request: ConsoleRequest) -> Done:
    """Start a run of a schedule now."""
    name = request.form.required("schedule")
    run = await request.app.trigger(name)
    return Done(request.url("runs", run.id, done="trigger"), {"name": name, "id": run.id}, said=f"run {run.id}")
