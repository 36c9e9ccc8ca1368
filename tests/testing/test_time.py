"""Time in a lab: schedules, deadlines, rates and retries follow the clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stepfast import Context, Rate, RunFailed, Stepfast, step
from stepfast.testing import Lab, LabError
from stepfast.testing.lab import be_patient

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)

app = Stepfast("sqlite:///must-not-be-made.db")
app.queue("slow", rate=Rate(1, per=60))


@app.task
async def report() -> None:
    """Once a month."""


@app.task(queue="slow")
async def mail(number: int) -> int:
    return number


app.schedule("monthly", report, cron="0 3 1 * *", tz="Europe/Berlin")


@pytest.mark.timeout(60)
async def test_ten_years_of_a_monthly_schedule_pass_at_once() -> None:
    async with Lab(app, now=JANUARY) as lab:
        await lab.advance(timedelta(days=3652))
        assert lab.calls("report") == 120
        runs = await lab.app.runs(workflow=report, limit=500)
        assert len(runs) == 120
        assert [run.created_at.month for run in runs[:3]] == [12, 11, 10]  # newest first, by the lab's clock
        assert lab.now() == JANUARY + timedelta(days=3652)


async def test_everything_happens_at_its_own_time_and_in_order() -> None:
    mine, seen = Stepfast("sqlite://"), []

    @mine.workflow
    async def wait(ctx: Context, minutes: int) -> datetime:
        await ctx.sleep(timedelta(minutes=minutes))
        seen.append(minutes)
        return ctx.now()

    async with Lab(mine, now=JANUARY) as lab:
        runs = [await lab.start(wait, minutes) for minutes in (30, 10, 20)]
        await lab.advance(timedelta(hours=1))
        assert seen == [10, 20, 30]
        assert [await run.result() for run in runs] == [JANUARY + timedelta(minutes=m) for m in (30, 10, 20)]


async def test_the_clock_can_be_moved_to_what_is_due_next() -> None:
    async with Lab(app, now=JANUARY) as lab:
        assert await lab.advance_to_next() == datetime(2026, 1, 1, 2, tzinfo=UTC)
        assert lab.calls("report") == 1
        assert await lab.advance_to_next() == datetime(2026, 2, 1, 2, tzinfo=UTC)
    async with Lab(Stepfast("sqlite://")) as lab:
        assert await lab.advance_to_next() is None


async def test_the_rate_of_a_queue_is_that_of_the_clock() -> None:
    async with Lab(app, now=JANUARY) as lab:
        runs = [await lab.start(mail, number) for number in range(3)]
        assert lab.calls("mail") == 1
        await lab.advance(timedelta(seconds=90))
        assert lab.calls("mail") == 2
        await lab.advance(timedelta(minutes=2))
        assert [await run.result() for run in runs] == [0, 1, 2]


@step(timeout=30, retries=1)
async def ask() -> str:
    return "answered"


@app.workflow(deadline=timedelta(hours=1), timeout=600, max_attempts=2)
async def asking(ctx: Context) -> str:
    return await ctx.step(ask)


async def test_a_step_that_never_comes_back_is_timed_out_by_the_clock() -> None:
    async with Lab(app, now=JANUARY) as lab:
        lab.replace(ask, lab.hang)
        run = await lab.start(asking)
        assert await run.status() == "running"
        assert await lab.advance_to_next() == JANUARY + timedelta(seconds=30)
        assert (await run.info()).waiting_for == "retry"
        await lab.advance(timedelta(minutes=30))
        assert lab.calls(ask) == 4
        with pytest.raises(RunFailed, match="StepTimeout"):
            await run.result()


async def test_a_deadline_ends_a_run_that_hangs() -> None:
    mine = Stepfast("sqlite://")

    @mine.task(deadline=60)
    async def work() -> None:
        raise AssertionError("the real one")

    async with Lab(mine, now=JANUARY) as lab:
        lab.replace(work, lab.hang)
        run = await lab.start(work)
        await lab.advance(timedelta(days=1))
        info = await run.info()
        assert (info.status, info.reason, info.completed_at) == ("failed", "deadline", JANUARY + timedelta(minutes=1))


async def test_a_result_that_never_comes_is_not_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whoever waits for the result has little patience: a busy machine may need longer to come to rest."""
    monkeypatch.setattr("stepfast.results.SOON", 0.05)
    monkeypatch.setattr("stepfast.testing.lab.be_patient", lambda app, _: be_patient(app, 0.1))
    mine = Stepfast("sqlite://")

    @mine.workflow
    async def wait(ctx: Context) -> None:
        await ctx.wait_signal("go")

    async with Lab(mine) as lab:
        run = await lab.start(wait)
        with pytest.raises(LabError, match="it is waiting for signal:go"):
            await run.result()
