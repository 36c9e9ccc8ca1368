"""Values of rows that a hand, or another role, may have damaged: JSON, counters and times.

Every value has an answer, so that one such row neither makes a statement fail that moves other runs, nor keeps a worker
from its work, nor others from being shown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

T = TypeVar("T")

LAST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999. No time that is reckoned is later."""
MOST_COUNTED = 1_000_000_000
"""Counters stop there: half of what the tables allow, so that one that a hand has set to the most they hold harms
nothing but its own run."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000
_FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) + 2 * _DAY
_LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) - 2 * _DAY
"""The ends of the calendar, but for two days: every zone has these times too."""
_LONGEST = _LAST - _FIRST


def read_json(text: object, kind: type[T], otherwise: T) -> T:
    """The value in a row, or ``otherwise``."""
    if not isinstance(text, (str, bytes)):
        return otherwise
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return otherwise


def more(count: int, by: int = 1) -> int:
    """A counter that moves, by less than nothing if need be: never beyond its ends."""
    return max(0, min(count + by, MOST_COUNTED))


def after(time: int, span: int) -> int:
    """The time so many milliseconds later; beyond the end of the calendar, the end."""
    return min(time + span, LAST_TIME)


def next_claim(claim: int) -> int:
    """The number of a new claim: another one than the last, also where a hand has set that to the most there is."""
    return claim + 1 if 0 <= claim < MOST_COUNTED else 1


def moment(milliseconds: float) -> datetime:
    """The point in time; beyond the ends of the calendar, the end."""
    return EPOCH + timedelta(milliseconds=min(max(milliseconds, _FIRST), _LAST))


def moment_or_none(milliseconds: float | None) -> datetime | None:
    """The point in time, if there is one."""
    return None if milliseconds is None else moment(milliseconds)


def span(milliseconds: float) -> timedelta:
    """The length of time; none is longer than the calendar."""
    return timedelta(milliseconds=min(max(milliseconds, -_LONGEST), _LONGEST))


def later(when: datetime, by: timedelta) -> datetime:
    """The point in time so much later; beyond the end of the calendar, the end."""
    return moment((when - EPOCH + by) / timedelta(milliseconds=1))
