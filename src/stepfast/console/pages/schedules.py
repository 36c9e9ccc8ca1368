"""``/schedules``: the state of each schedule, its next five ticks, and the actions on it.

Each page has a module of its own.
"""

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
_DONE = {"paused": "The schedule is paused.", "resumed": "The schedule continues with its next tick."}


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


def _redacted(info: ScheduleInfo, redactor: Redactor) -> ScheduleInfo:
    """Redact the input that the schedule starts runs with."""
    shown = replace(info, input=redactor.value(info.input, "input"))
    return replace(shown, error=None if info.error is None else redactor.text(info.error))


async def confirm_schedule(request: ConsoleRequest) -> Page:
    """Ask for confirmation before a schedule is paused, resumed or triggered."""
    name, action = request.query.get("schedule", ""), request.params["action"]
    info = next((each for each in await request.reader.schedules() if each.name == name), None)
    if info is None:
        raise ScheduleNotFound(name)
    sentences = {
        "pause": f"Its ticks start no runs until it is resumed; the next would be {times_in_words(info)}. Runs that it "
        "has started continue.",
        "resume": "It continues with its next tick. Ticks that passed while it was paused are skipped.",
        "trigger": f"A run of {info.workflow} is started now, with the input of the schedule. Its ticks stay the same.",
    }
    if action not in sentences:
        raise Refused(404, "there is no such action")
    title = f"{action.capitalize()} schedule {name}"
    question = Question(title, sentences[action], ("schedules", action), {"schedule": name})
    return question.page(request, request.url("schedules"))


async def pause(request: ConsoleRequest) -> Done:
    """Pause a schedule: its ticks start no runs."""
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
