"""``/queues``: what is in each, since when the first waits, its limits, who serves it; and what goes before actions."""

from __future__ import annotations

from ...monitoring.queue_stats import MOST, depths_of
from ...monitoring.text import count, limits_in_words, queue_shape, served_by
from ...queues import QueueInfo
from ..answers import Page
from ..asking import Question
from ..refusals import Refused
from ..sparkline import sparkline
from ..visit import Visit

_AGAIN = 5.0
_DONE = {
    "paused": "The queue is paused.",
    "resumed": "The queue goes on.",
    "limited": "The limits hold within a second.",
    "reset": "What the code declares holds again.",
}
LIMITS = ("concurrency", "rate", "key_concurrency", "key_rate", "max_ready")


async def queues(visit: Visit) -> Page:
    """All queues, by name."""
    found = await depths_of(visit.look)
    visit.desk.hour.add(found)
    rows = [
        {
            "info": info,
            "limits": limits_in_words(info),
            "served_by": served_by(info, found.workers),
            "unserved": not info.workers and bool(info.ready or info.delayed or info.waiting),
            "ended": found.ended.get(info.name, 0),
            "chart": sparkline(visit.desk.hour.of(info.name)),
        }
        for info in found.queues
    ]
    shape = [
        queue_shape(info, found.workers) | {"ended_within_a_minute": found.ended.get(info.name, 0)}
        for info in found.queues
    ]
    shown = {"queues": rows, "full": found.full, "most": MOST, "done": _DONE.get(visit.query.get("done", ""))}
    return Page("queues.html", shown, shape, again=_AGAIN)


async def confirm_queue(visit: Visit) -> Page:
    """The page before a queue is paused, resumed or limited."""
    name, action = visit.query.get("queue", ""), visit.params["action"]
    if not name:
        raise Refused(400, "the link names no queue")
    found = {info.name: info for info in (await depths_of(visit.look)).queues}
    info = found.get(name)
    if action == "pause":
        question = Question(f"Pause queue {name}", _paused(info), ("queues", "pause"), {"queue": name}, danger=True)
    elif action == "resume":
        question = Question(f"Resume queue {name}", _resumed(info), ("queues", "resume"), {"queue": name})
    elif action == "limits":
        question = Question(f"Limits of queue {name}", _limited(info), ("queues", "limits"), {"queue": name})
    else:
        raise Refused(404, "there is no such action")
    now = {limit: None if info is None else getattr(info, limit) for limit in LIMITS}
    return question.page(visit, visit.url("queues"), "confirm_limits.html" if action == "limits" else None, limits=now)


def _paused(info: QueueInfo | None) -> str:
    if info is None:
        return "Nothing has named this queue so far. It is paused all the same: nothing of it will be claimed."
    ready, running = count(info.ready, "run"), count(info.running, "run")
    return (
        f"Nothing of it is claimed from now on: {ready} that {_is(info.ready)} ready now will stay. {running} that "
        f"{_is(info.running)} being executed will go on to the end, or to the next wait. Starts are taken as before."
    )


def _resumed(info: QueueInfo | None) -> str:
    ready = 0 if info is None else info.ready
    return f"Workers claim from it again: {count(ready, 'run')} {_is(ready)} ready now."


def _limited(info: QueueInfo | None) -> str:
    now = limits_in_words(info) if info is not None else ""
    return (
        f"Now: {now or 'no limits'}. What is set here holds over all workers within a second, and wins over what the "
        "code declares, until it is reset."
    )


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
