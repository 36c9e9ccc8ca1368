"""Times and spans as people read them, from the milliseconds that are stored.

Every number has an answer: one row with an absurd time must not keep the others from being shown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000
_FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) + 2 * _DAY
_LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1) - 2 * _DAY
"""The ends of the calendar, but for two days: every zone has these times too."""
_LONGEST = _LAST - _FIRST


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
