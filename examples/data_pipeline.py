"""A small data pipeline: fetch pages side by side, clean them in threads, load the result; many days at once.

python examples/data_pipeline.py                      # SQLite in memory
STEPFAST_URL=postgresql://… python examples/data_pipeline.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import date, timedelta

from stepfast import Backoff, Context, Stepfast, step

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))

PAGES = 4


@dataclass
class Reading:
    """One measurement."""

    sensor: str
    value: float


@dataclass
class Report:
    """What is left of a day."""

    day: date
    readings: int
    mean: float


calls = 0


@step(retries=3, backoff=Backoff(base=0.02))
async def fetch(day: date, page: int) -> list[Reading]:
    """The source is flaky: every seventh call fails. Only that page is fetched again."""
    global calls
    calls += 1
    if calls % 7 == 0:
        raise ConnectionError("the source hung up")
    await asyncio.sleep(0.01)
    return [Reading(f"sensor-{n}", float(day.day + page + n)) for n in range(3)]


def clean(readings: list[Reading]) -> list[Reading]:
    """Plain code, as one would write for a script. It runs in a thread and may take its time."""
    return [reading for reading in readings if reading.value >= 2]


def summarise(day: date, readings: list[Reading]) -> Report:
    """The result is a dataclass again when the workflow gets it, live as well as replayed."""
    return Report(day, len(readings), round(sum(r.value for r in readings) / len(readings), 2))


@app.workflow(queue="pipeline")
async def daily_report(ctx: Context, day: date) -> Report:
    """The calls are made in order and awaited together: a step's place is taken when it is called."""
    pages = await asyncio.gather(*(ctx.step(fetch, day, page) for page in range(PAGES)))
    ctx.progress(f"{len(pages)} pages fetched")
    readings: list[Reading] = []
    for page in pages:
        readings += await ctx.step(clean, page)  # in a loop: each turn has a record of its own
    return await ctx.step(summarise, day, readings)


async def main() -> None:
    """Ten days in one call, worked off until nothing is left."""
    days = [date(2026, 1, 1) + timedelta(days=n) for n in range(10)]
    async with app:
        runs = await app.start_many(daily_report, days)
        await app.drain(concurrency=5)
        for run in runs:
            report = await run.result(timeout=30)
            print(f"{report.day}: {report.readings} readings, mean {report.mean}")
        steps = await runs[0].steps()
        print(f"{len(runs)} runs, {len(steps)} steps each, {calls} fetches")


if __name__ == "__main__":
    asyncio.run(main())
