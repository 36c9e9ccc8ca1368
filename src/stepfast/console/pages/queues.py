"""``/queues``: depth, limits and workers of each queue, its last hour as a chart, and the actions on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from markupsafe import Markup

from ...model.queue_config import LimitKeywords
from ...monitoring.queue_stats import MOST, SPAN, Point, depths_of
from ...monitoring.text import count, limit_of, limits_in_words, queue_shape, served_by
from ...queues import QueueInfo
from ..confirm import Question
from ..refusals import Refused
from ..request import ConsoleRequest
from ..responses import Done, Page

_WIDE, _HIGH = 120, 24
_SHORTEST = 300.0
"""Seconds that a chart spans at least, and up to an hour."""
_GAP = 90.0
"""Seconds without a point that break the line: no page was open."""


def sparkline(points: Sequence[Point]) -> Markup:
    """Draw the number of ready runs over the last hour; nothing for fewer than two points."""
    lines = [stretch for stretch in _stretches(points) if len(stretch) > 1]
    if not lines:
        return Markup("")
    most = max(1, *(point.ready for point in points))
    span = min(SPAN, max(_SHORTEST, points[0].ago))
    drawn = Markup("").join(
        Markup('<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5"/>').format(
            " ".join(_coordinates(point, most, span) for point in stretch)
        )
        for stretch in lines
    )
    label = f"ready within the last hour: {points[-1].ready:,} now, {max(point.ready for point in points):,} at most"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDE, _HIGH, _WIDE, _HIGH, label, drawn)


def _stretches(points: Sequence[Point]) -> Iterator[list[Point]]:
    stretch: list[Point] = []
    for point in points:
        if stretch and stretch[-1].ago - point.ago > _GAP:
            yield stretch
            stretch = []
        stretch.append(point)
    yield stretch


def _coordinates(point: Point, most: int, span: float) -> str:
    across = _WIDE * (1 - point.ago / span)
    up = (_HIGH - 2) * point.ready / most
    return f"{across:.1f},{_HIGH - 1 - up:.1f}"


_AGAIN = 5.0
_DONE = {
    "paused": "The queue is paused.",
    "resumed": "The queue continues.",
    "limited": "The limits apply within a second.",
    "reset": "The limits of the code apply again.",
}
LIMITS = ("concurrency", "rate", "key_concurrency", "key_rate", "max_ready")


async def queues(request: ConsoleRequest) -> Page:
    """All queues, by name."""
    found = await depths_of(request.reader)
    request.state.hour.add(found)
    rows = [
        {
            "info": info,
            "limits": limits_in_words(info),
            "served_by": served_by(info, found.workers),
            "unserved": not info.workers and bool(info.ready or info.delayed or info.waiting),
            "ended": found.ended.get(info.name, 0),
            "chart": sparkline(request.state.hour.of(info.name)),
        }
        for info in found.queues
    ]
    shape = [
        queue_shape(info, found.workers) | {"ended_within_a_minute": found.ended.get(info.name, 0)}
        for info in found.queues
    ]
    shown = {"queues": rows, "full": found.full, "most": MOST, "done": _DONE.get(request.query.get("done", ""))}
    return Page("queues.html", shown, shape, again=_AGAIN)


async def confirm_queue(request: ConsoleRequest) -> Page:
    """Ask for confirmation before a queue is paused, resumed or limited."""
    name, action = request.query.get("queue", ""), request.params["action"]
    if not name:
        raise Refused(400, "the link names no queue")
    found = {info.name: info for info in (await depths_of(request.reader)).queues}
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
    return question.page(
        request, request.url("queues"), "confirm_limits.html" if action == "limits" else None, limits=now
    )


def _paused(info: QueueInfo | None) -> str:
    if info is None:
        return "No run or worker has named this queue so far. It is paused all the same: its runs will not be claimed."
    ready, running = count(info.ready, "run"), count(info.running, "run")
    return (
        f"Its runs are not claimed from now on: {ready} that {_is(info.ready)} ready now will stay. {running} that "
        f"{_is(info.running)} being executed will continue to the end, or the next wait. New runs are still accepted."
    )


def _resumed(info: QueueInfo | None) -> str:
    ready = 0 if info is None else info.ready
    return f"Workers claim its runs again: {count(ready, 'run')} {_is(ready)} ready now."


def _limited(info: QueueInfo | None) -> str:
    now = limits_in_words(info) if info is not None else ""
    return (
        f"Now: {now or 'no limits'}. What is set here applies to all workers within a second, and overrides the limits "
        "of the code, until it is reset."
    )


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


async def pause(request: ConsoleRequest) -> Done:
    """Pause a queue: its runs are not claimed from now on."""
    name = request.form.required("queue")
    await request.app.pause_queue(name)
    return _done(request, "paused", {"queue": name, "paused": True})


async def resume(request: ConsoleRequest) -> Done:
    """Resume a paused queue: its runs are claimed again."""
    name = request.form.required("queue")
    await request.app.resume_queue(name)
    return _done(request, "resumed", {"queue": name, "paused": False})


async def limits(request: ConsoleRequest) -> Done:
    """Set limits: an empty field keeps one as it is, ``none`` removes it, ``reset`` applies those of the code."""
    name, reset = request.form.required("queue"), bool(request.form.optional("reset"))
    given = {
        limit: limit_of(limit, text.strip()) for limit in LIMITS if (text := request.form.optional(limit)) is not None
    }
    if reset and given:
        raise Refused(400, "either set limits, or reset them to those of the code")
    if not reset and not given:
        raise Refused(400, "no limit was given: write a number, a rate as 100/60s, or none")
    await request.app.set_limits(name, reset=reset, **cast(LimitKeywords, given))
    return _done(request, "reset" if reset else "limited", {"queue": name, "set": sorted(given), "reset": reset})


def _done(request: ConsoleRequest, word: str, shape: dict[str, object]) -> Done:
    return Done(request.url("queues", done=word), shape)
