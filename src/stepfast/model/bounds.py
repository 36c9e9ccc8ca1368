"""Counters and times within what every table holds: sums of numbers that a hand, or another role, may have written.

One such number must not make a statement fail that moves other runs as well.
"""

from __future__ import annotations

LAST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999. No time that is reckoned is later."""
MOST_COUNTED = 1_000_000_000
"""Counters stop there: half of what the tables allow, so that one that a hand has set to the most they hold harms
nothing but its own run."""


def more(count: int, by: int = 1) -> int:
    """A counter that moves, by less than nothing if need be: never beyond its ends."""
    return max(0, min(count + by, MOST_COUNTED))


def after(time: int, span: int) -> int:
    """The time so many milliseconds later; beyond the end of the calendar, the end."""
    return min(time + span, LAST_TIME)


def next_claim(claim: int) -> int:
    """The number of a new claim: another one than the last, also where a hand has set that to the most there is."""
    return claim + 1 if 0 <= claim < MOST_COUNTED else 1
