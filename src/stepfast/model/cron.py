"""The ticks of a schedule: the points in time at which it starts a run. Milliseconds, and pure functions of them.

Whichever worker asks, and from whichever time on, the same ticks are found: that is what makes their keys good for one
run each. cronsim reads cron expressions, and follows Debian's cron where the clocks are changed: a job at a fixed time
is never lost and never doubled, one with a star for the minute or the hour goes by the time that really passes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Protocol
from zoneinfo import ZoneInfo

from ..errors import ConfigurationError
from .stored import EPOCH, moment

_NAIVE_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_DAY_MS = 86_400_000
"""The clocks of a zone are not changed and changed back within it."""
SHORTEST_MS = 100
"""The shortest time between two ticks: below it, starting them would be all that a worker does."""
_FIRST_WINDOW = 3_600_000
_LAST_MS = 253_000_000_000_000
"""Some day before the year 10000, behind which there are no dates."""


class Timetable(Protocol):
    """Says when the ticks of one schedule are."""

    def after(self, at: int) -> Iterator[int]:
        """The ticks later than a time, one after the other, without an end."""
        ...

    def newest(self, after: int, until: int, count: int) -> list[int]:
        """The last ``count`` of the ticks later than one time and not later than another, oldest first."""
        ...


def timetable(cron: str | None, every_ms: int | None, tz: str, anchor: int) -> Timetable:
    """From what is stored of a schedule. Refuses by name what cannot be one."""
    if (cron is None) == (every_ms is None):
        raise ConfigurationError("a schedule takes either cron= or every=")
    zone(tz)
    if cron is not None:
        return Cron(cron, tz)
    assert every_ms is not None
    return Every(every_ms, anchor)


def next_tick(times: Timetable, at: int) -> int | None:
    """The first tick later than a time; None, if there is none any more."""
    return next(times.after(at), None)


class Every:
    """A fixed grid: the anchor, and every so many milliseconds from it, in both directions."""

    def __init__(self, every_ms: int, anchor: int) -> None:
        if every_ms < SHORTEST_MS:
            raise ConfigurationError(f"every= must be at least {SHORTEST_MS / 1000:g} seconds, not {every_ms / 1000:g}")
        self._every = every_ms
        self._anchor = anchor

    def after(self, at: int) -> Iterator[int]:
        """Yield the ticks after a time."""
        tick = at + self._every - (at - self._anchor) % self._every
        while tick < _LAST_MS:
            yield tick
            tick += self._every

    def newest(self, after: int, until: int, count: int) -> list[int]:
        """Return the newest ticks of a span of time, at most ``count``."""
        last = until - (until - self._anchor) % self._every
        first = max(next(self.after(after)), last - (count - 1) * self._every)
        return list(range(first, last + 1, self._every))


class Cron:
    """A cron expression of five fields, or of six with seconds, in a time zone."""

    def __init__(self, cron: str, tz: str) -> None:
        from cronsim import CronSim, CronSimError

        self._text = _fields(cron)
        self._zone = zone(tz)
        self._sim = CronSim
        minute, hour = self._text.split()[-5:-3]
        self._is_fixed = self._zone is UTC or not (minute.startswith("*") or hour.startswith("*"))
        try:
            CronSim(self._text, EPOCH)
        except CronSimError as error:
            raise ConfigurationError(f"cron={cron!r} is no cron expression that ever fires: {error}") from None

    def after(self, at: int) -> Iterator[int]:
        """Yield the ticks after a time."""
        try:
            yield from self._at_fixed_times(at) if self._is_fixed else self._as_time_passes(at)
        except OverflowError:
            return  # behind the last year there is

    def _at_fixed_times(self, at: int) -> Iterator[int]:
        """Jobs at fixed times: once each, also on days on which the clocks are changed."""
        last = at
        for found in self._sim(self._text, moment(at).astimezone(self._zone)):
            tick = milliseconds(found)
            # In an hour that comes twice, the first pass is found again from within the second.
            if tick > last:
                yield tick
                last = tick

    def _as_time_passes(self, at: int) -> Iterator[int]:
        """All others: whenever the clocks show such a time. Looked for from one change of the clocks to the next, by
        the offset that holds in between: cronsim itself takes every change for one of whole hours."""
        begin, offset = at - at % 1000, self._offset(at)
        while True:
            known = then = begin
            for found in self._sim(self._text, _NAIVE_EPOCH + timedelta(milliseconds=begin + offset)):
                tick = (found - _NAIVE_EPOCH) // _MILLISECOND - offset
                while known < tick and self._offset(then := min(known + _DAY_MS, tick)) == offset:
                    known = then
                if known < tick:
                    break
                yield tick
            else:
                return
            changed = self._change(known, then, offset)
            begin, offset = changed - 1000, self._offset(changed)  # a tick may be at the very change

    def _change(self, before: int, after: int, offset: int) -> int:
        """The first second, after one time and up to another, at which the offset is not this one."""
        while after - before > 1000:
            between = (before + after) // 2000 * 1000
            before, after = (between, after) if self._offset(between) == offset else (before, between)
        return after

    def _offset(self, at: int) -> int:
        """By how many milliseconds the clocks are ahead of UTC at a time."""
        ahead = moment(at).astimezone(self._zone).utcoffset()
        assert ahead is not None
        return ahead // _MILLISECOND

    def newest(self, after: int, until: int, count: int) -> list[int]:
        """Looked for in a window that ends with ``until`` and grows, because years may have passed."""
        window = _FIRST_WINDOW
        while True:
            begin = max(after, until - window)
            found = deque(takewhile(lambda tick: tick <= until, self.after(begin)), count)
            if len(found) == count or begin == after:
                return list(found)
            window *= 4


def _fields(cron: object) -> str:
    if not isinstance(cron, str):
        raise ConfigurationError(f"cron= must be a string such as '0 3 * * *', not {cron!r}")
    if len(cron.split()) not in (5, 6):
        raise ConfigurationError(
            f"cron={cron!r} has {len(cron.split())} fields; there are five: minute, hour, day of the month, month, "
            "day of the week; or six, with the second before them"
        )
    return cron


def zone(tz: object) -> tzinfo:
    """A time zone by its name. UTC is known also where the system has no list of zones."""
    if tz == "UTC":
        return UTC
    if not isinstance(tz, str):
        raise ConfigurationError(f"tz= must be the name of a time zone, such as 'Europe/Berlin', not {tz!r}")
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):  # not found; an odd name; the name of a folder
        raise ConfigurationError(
            f"there is no time zone {tz!r} here; names look like 'Europe/Berlin'. (Where the system has no list of "
            "them, `pip install tzdata` brings one)"
        ) from None


def refuse_never(times: Timetable, cron: str | None, now: int) -> None:
    """A schedule that would never start anything is a mistake."""
    if next_tick(times, now) is None:
        raise ConfigurationError(f"cron={cron!r} never fires: no day has this date")


def clock(when: datetime) -> str:
    """A point in time as people are shown it, everywhere but for the ticks of a schedule: in UTC, and saying so. A
    terminal, a browser and a server may be in three zones, and what they show is compared."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def milliseconds(when: datetime) -> int:
    """A point in time in milliseconds, without the rounding of floats."""
    return (when - EPOCH) // timedelta(milliseconds=1)


def spelled(tick: int) -> str:
    """A tick as it stands in keys."""
    kind = "milliseconds" if tick % 1000 else "seconds"
    return moment(tick).isoformat(timespec=kind).replace("+00:00", "Z")


def tick_key(schedule: str, tick: int) -> str:
    """The key of the run that a tick starts: one run for each, no matter which process starts it and how often."""
    return f"{schedule}@{spelled(tick)}"


def jitter(schedule: str, tick: int, jitter_ms: int) -> int:
    """By how many milliseconds the run of a tick is put off: the same in each process."""
    if jitter_ms <= 0:
        return 0
    digest = hashlib.blake2b(tick_key(schedule, tick).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (jitter_ms + 1)
