"""A lab: an application's own workflows in memory, by a clock that stands until it is moved."""

from __future__ import annotations

from datetime import timedelta

from stepfast import Context, Stepfast, step
from stepfast.testing import Lab

app = Stepfast("sqlite:///must-not-be-made.db")


@step(retries=2)
async def charge(order: str) -> str:
    return f"charged {order}"


async def fake_charge(order: str) -> str:
    return f"faked {order}"


@app.workflow
async def checkout(ctx: Context, order: str) -> str:
    receipt = await ctx.step(charge, order)
    await ctx.sleep(timedelta(days=2))
    approved = await ctx.wait_signal("approved", type=bool)
    return receipt if approved else "refused"


async def test_a_run_is_at_rest_when_start_returns_and_goes_on_with_time_and_signals() -> None:
    async with Lab(app) as lab:
        run = await lab.start(checkout, "o-1")
        assert (await run.info()).waiting_for == "time"
        assert lab.calls("charge") == lab.calls(charge) == 1
        await lab.advance(timedelta(days=1))
        assert (await run.info()).waiting_for == "time"
        await lab.advance(timedelta(days=2))
        assert (await run.info()).waiting_for == "signal:approved"
        await run.signal("approved", True)
        await lab.settle()
        assert await run.result() == "charged o-1"
        assert lab.calls("charge") == 1


async def test_another_function_stands_in_for_a_step_in_one_lab_alone() -> None:
    async with Lab(app) as lab, Lab(app) as other:
        lab.replace(charge, fake_charge)
        runs = [await each.start(checkout, "o-1") for each in (lab, other)]
        for each, run in zip((lab, other), runs, strict=True):
            await run.signal("approved", True)
            await each.advance(timedelta(days=3))
        assert [await run.result() for run in runs] == ["faked o-1", "charged o-1"]


async def test_failures_are_injected_and_retries_come_with_time() -> None:
    async with Lab(app) as lab:
        lab.fail("charge", times=2)
        run = await lab.start(checkout, "o-1")
        assert (await run.info()).waiting_for == "retry"
        await lab.advance(timedelta(minutes=1))
        assert lab.calls("charge") == 3
        assert (await run.info()).waiting_for == "time"


async def test_a_worker_that_dies_in_a_step_writes_nothing_more_and_another_takes_over() -> None:
    async with Lab(app) as lab:
        died: list[str] = []

        async def die_once(order: str) -> str:
            if not died:
                died.append(order)
                lab.crash()
            return await fake_charge(order)

        lab.replace(charge, die_once)
        run = await lab.start(checkout, "o-1")
        assert (await run.info()).waiting_for == "time"
        assert lab.calls("charge") == 2
        await lab.crash()
        await run.signal("approved", True)
        await lab.advance(timedelta(days=2))
        assert await run.result() == "faked o-1"
        assert lab.calls("charge") == 2
