"""What is said of schedules: when they fire, how they stand, and their next ticks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..errors import ConfigurationError
from ..model.cron import zone
from ..schedule_info import ScheduleInfo
from .words import ago, lasting

_SHOWN = 5
"""Ticks to come that are told of each schedule."""


def times_in_words(info: ScheduleInfo) -> str:
    """The next ticks: ``in 21 h: Tue 17 Nov 03:00, Wed 18 Nov 03:00 (Europe/Berlin)``, in the schedule's own time zone.
    A date that is that of the tick before is left out."""
    times = _times(info)
    if not times:
        return "never"
    said, day = list[str](), ""
    for time in (time.astimezone(zone(info.tz)) for time in times):
        clock = f"{time:%H:%M}" if info.cron is not None else f"{time:%H:%M:%S}"
        date = f"{time:%a} {time.day} {time:%b}"
        said.append(clock if date == day else f"{date} {clock}")
        day = date
    return f"{ago(times[0], info.read_at)}: {', '.join(said)} ({info.tz})"


def _times(info: ScheduleInfo) -> list[datetime]:
    """None of a schedule that somebody has spoilt by hand: it must not keep the others from being listed."""
    try:
        return info.times(_SHOWN)
    except ConfigurationError:
        return []


def when_in_words(info: ScheduleInfo) -> str:
    """When its ticks are: an interval, or a cron expression with its time zone."""
    return f"every {lasting(info.every)}" if info.every is not None else f"{info.cron} {info.tz}"


def state_in_words(info: ScheduleInfo) -> str:
    """What keeps it from firing comes first."""
    if info.paused:
        return "paused"
    if info.error is not None:
        return "failing"
    return "awake" if info.awake else "asleep"


def schedule_shape(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule as JSON, with its next ticks."""
    fields: dict[str, Any] = msgspec.to_builtins(info)
    return fields | {"times": _times(info)}
