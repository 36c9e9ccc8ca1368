"""Queues, debounced starts and endless runs in a lab: what decides about them is the database, and that goes by its
clock."""

from __future__ import annotations

from datetime import timedelta

from stepfast import Context, Stepfast
from stepfast.testing import Lab

app = Stepfast("sqlite:///must-not-be-made.db")
app.queue("one", concurrency=1)


@app.task(queue="one")
async def alone(number: int) -> int:
    return number


@app.workflow
async def daily(ctx: Context, day: int) -> int:
    await ctx.sleep(timedelta(days=1))
    if day < 20:
        ctx.continue_as(day + 1)
    return day


async def test_a_limited_queue_is_worked_off_without_time() -> None:
    async with Lab(app) as lab:
        runs = await lab.app.start_many(alone, range(5))
        await lab.settle()
        assert [await run.result() for run in runs] == [0, 1, 2, 3, 4]


async def test_a_paused_queue_goes_on_when_it_is_resumed() -> None:
    async with Lab(app) as lab:
        await lab.app.pause_queue("one")
        run = await lab.start(alone, 1)
        await lab.advance(timedelta(days=1))
        assert await run.status() == "queued"
        await lab.app.resume_queue("one")
        await lab.settle()
        assert await run.result() == 1


async def test_debounced_starts_wait_for_the_clock() -> None:
    async with Lab(app) as lab:
        for number in range(3):
            run = await lab.start(alone, number, key="k", debounce=10)
            await lab.advance(6)
        assert lab.calls(alone) == 0
        await lab.advance(6)
        assert (lab.calls(alone), await run.result()) == (1, 2)


async def test_an_endless_run_goes_on_day_by_day() -> None:
    async with Lab(app) as lab:
        run = await lab.start(daily, 1)
        before = lab.now()
        await lab.advance(timedelta(days=30))
        assert await run.result() == 20
        assert len(await lab.app.runs(workflow=daily)) == 20
        assert lab.now() - before == timedelta(days=30)


async def test_workers_that_die_again_and_again_leave_a_dead_letter() -> None:
    async with Lab(app) as lab:

        async def deadly(number: int) -> int:
            lab.crash()
            return number

        lab.replace(alone, deadly)
        run = await lab.start(alone, 1)
        await lab.advance(timedelta(hours=1))
        info = await run.info()
        assert (info.status, info.reason) == ("failed", "workers_lost")
        assert lab.calls(alone) == lab.app.settings.max_losses
