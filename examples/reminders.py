"""Reminders over two weeks, from a process that is mostly not there.

Each customer has a trial of fourteen days, and one run. It sleeps, sends a reminder, sleeps again, and ends early when
the customer subscribes. A sleeping run is a row in the database; no process has to live while it sleeps. So here a job
is started now and then, as cron would do it: it works on what is due, and goes away.

A day lasts a tenth of a second, so that the example ends.

    python examples/reminders.py
    STEPFAST_URL=postgresql://… python examples/reminders.py
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from stepfast import Context, Settings, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0, drain=0))

DAY = timedelta(seconds=0.3)  # timedelta(days=1)


async def mail(customer: str, text: str) -> None:
    """To the customer."""
    print(f"  to {customer}: {text}", flush=True)


@app.workflow
async def trial(ctx: Context, customer: str) -> str:
    """Written as if it were running for two weeks. It is not: it is replayed up to here whenever it wakes."""
    ends = ctx.now() + 14 * DAY  # the database's time, the same on every replay
    await ctx.step("welcome", mail, customer, "welcome")
    for day in (7, 12):
        left = 14 - day
        winner, _ = await ctx.first(
            subscribed=ctx.wait_signal("subscribed"),
            time=ctx.sleep_until(ends - left * DAY),
        )
        if winner == "subscribed":
            await ctx.step("thank", mail, customer, "thank you")
            return "subscribed"
        await ctx.step("remind", mail, customer, f"{left} days left")
    await ctx.sleep_until(ends)  # or ctx.sleep(2 * DAY): a span is counted from the moment the sleep begins
    await ctx.step("farewell", mail, customer, "the trial is over")
    return "left"


async def main() -> None:
    """Three customers; one of them subscribes in between."""
    async with app:
        runs = {name: await app.start(trial, name) for name in ("Ada", "Bob", "Eve")}
        await app.drain()  # the job, for the first time: it returns when nobody is due
        info = await runs["Ada"].info()
        print(f"nobody works, and Ada's run is {info.status} until its time comes: {info.due_at is not None}")
        await runs["Bob"].signal("subscribed")
        jobs = 1
        while any([await run.status() == "waiting" for run in runs.values()]):
            await asyncio.sleep(0.1)
            await app.drain()
            jobs += 1
        for name, run in runs.items():
            info = await run.info()
            print(f"{name} {await run.result(timeout=30)}, after {info.attempt} attempt of the code")
        print("more than one job did it:", jobs > 1)


if __name__ == "__main__":
    asyncio.run(main())
