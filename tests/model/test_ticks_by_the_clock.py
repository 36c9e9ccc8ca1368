"""Schedules with a star for the minute or the hour start a run whenever the clocks show such a time, however the clocks
are changed: compared with every minute there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from stepfast.model.cron import Cron, milliseconds
from stepfast.model.stored import moment

MINUTE = 60_000
CHANGES = [
    ("Australia/Lord_Howe", datetime(2025, 10, 4, 15, 30, tzinfo=UTC)),  # 02:00 becomes 02:30
    ("Australia/Lord_Howe", datetime(2025, 4, 5, 15, 0, tzinfo=UTC)),  # 02:00 becomes 01:30
    ("Europe/Berlin", datetime(2025, 3, 30, 1, 0, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2025, 10, 26, 1, 0, tzinfo=UTC)),
    ("America/Havana", datetime(2025, 3, 9, 5, 0, tzinfo=UTC)),  # 00:00 becomes 01:00
    ("America/Havana", datetime(2025, 11, 2, 5, 0, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2025, 3, 30, 1, 0, tzinfo=UTC)),  # half an hour beside the others, and never changed
]
EXPRESSIONS = [
    "*/15 3 * * *",
    "45 * * * *",
    "*/20 1-2 * * *",
    "0 * * * *",
    "*/7 */2 * * *",
    "30 * * * SUN",
    "* 0 * * *",
]


def shown(cron: str, zone: str, begin: int, minutes: int) -> list[int]:
    """The minutes at which the clocks show a time of the expression."""
    around = CronSim(cron, moment(begin) - timedelta(days=1))
    times = {when.replace(tzinfo=None) for when in takewhile((moment(begin) + timedelta(days=3)).__ge__, around)}
    moments = [begin + n * MINUTE for n in range(1, minutes + 1)]
    return [at for at in moments if moment(at).astimezone(ZoneInfo(zone)).replace(tzinfo=None) in times]


@pytest.mark.parametrize("cron", EXPRESSIONS)
def test_no_time_that_the_clocks_show_is_lost(cron: str) -> None:
    for zone, change in CHANGES:
        begin = milliseconds(change - timedelta(hours=6))
        until = begin + 12 * 60 * MINUTE
        wanted = shown(cron, zone, begin, 12 * 60)
        for start in (begin, milliseconds(change) - 1, milliseconds(change), milliseconds(change) + 10 * MINUTE + 1):
            found = list(takewhile(until.__ge__, Cron(cron, zone).after(start)))
            assert found == [at for at in wanted if at > start], (zone, start)


def test_changes_between_ticks_that_are_far_apart_are_seen() -> None:
    cron = Cron("*/30 3 5 10 *", "Australia/Lord_Howe")
    found = list(takewhile(lambda tick: tick < milliseconds(datetime(2028, 1, 1, tzinfo=UTC)), cron.after(0)))
    last = [moment(tick).astimezone(ZoneInfo("Australia/Lord_Howe")).strftime("%Y %H:%M") for tick in found[-6:]]
    assert last == ["2025 03:00", "2025 03:30", "2026 03:00", "2026 03:30", "2027 03:00", "2027 03:30"]
