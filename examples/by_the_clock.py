"""Work that the clock begins: a report for each day, a feed that is polled, an index that is made when all is calm.

The schedules are declared beside the code, and live in the database: any worker that has the code starts their runs,
one for each tick, however many workers there are. A night would be too long for an example, so some days of spring are
backfilled, and the feed is polled five times a second.

    python examples/by_the_clock.py
    STEPFAST_URL=postgresql://… python examples/by_the_clock.py
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from stepfast import Context, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))
polled = asyncio.Event()


@app.workflow
async def daily_report(ctx: Context) -> str:
    """Which day it is for, a run learns from its tick."""
    tick = await ctx.step(tick_of, ctx.run_id) or ctx.now()
    return f"report of {tick - timedelta(days=1):%A}"


async def tick_of(run_id: str) -> datetime | None:
    """The tick that a run was started for; None, if somebody triggered it."""
    return (await app.get(run_id).info()).tick


@app.task
async def poll_feed() -> None:
    """Something that is looked at regularly."""
    polled.set()


@app.task
async def make_index(text: str) -> str:
    """Something that need not be done for every change, but after the last."""
    return f"indexed {text!r}"


app.schedule("report", daily_report, cron="0 3 * * *", tz="Europe/Berlin", missed="all", jitter=30)
app.schedule("feed", poll_feed, every=0.2, overlap="skip")


async def main() -> None:
    """A worker, and what an operator might do beside it."""
    async with app, app.worker():
        await polled.wait()
        print("the feed is polled")
        await app.pause_schedule("feed")

        since = datetime(2026, 3, 28, tzinfo=UTC)  # summer time begins on the second day
        runs = await app.backfill("report", since, since + timedelta(days=3))
        again = await app.backfill("report", since, since + timedelta(days=3))
        print("twice is once:", [run.id for run in runs] == [run.id for run in again])
        for run in runs:
            print(f"  {(await run.info()).key}: {await run.result(timeout=30)}")

        for text in ("D", "Dra", "Draft"):
            index = await app.start(make_index, text, key="doc-7", debounce=0.3)
        print("three changes, one run:", await index.result(timeout=30))

        for info in await app.schedules():
            state = "paused" if info.paused else "awake" if info.awake else "asleep"
            print(f"{info.name}: {info.cron or info.every}, {state}")


if __name__ == "__main__":
    asyncio.run(main())
