"""Races whose runners fail, whose worker dies, and those that are cancelled or undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ChildFailed,
    Context,
    NonRetryableError,
    RunCancelled,
    Settings,
    StepFailed,
    Stepfast,
)
from tests.engine.conftest import MakeApp
from tests.support.crashing import crash_at, dying_worker, outcome_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    make_due,
    replayed,
    worked,
)
from tests.support.waiting import reached
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")
WAITS = pytest.mark.parametrize("moment", [0.0, 0.2], ids=["released", "in memory"])
HOUR = timedelta(hours=1)


# -- errors --------------------------------------------------------------------------------------------------------


async def test_a_runner_that_fails_first_wins_with_its_error(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    def broken() -> None:
        calls.hit("broken")
        raise NonRetryableError("no")

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.first(broken=ctx.step(broken), late=ctx.sleep(HOUR))
        except StepFailed as error:
            await ctx.step("gate", gate.passing)
            return error.step
        return "?"

    assert await (await replayed(app, gate, order)).result() == "broken"
    assert calls == {"broken": 1}


async def test_a_new_attempt_runs_a_race_again_that_ended_by_an_error(app: Stepfast, calls: Calls) -> None:
    """Rule 15: the failed record is made anew, and with it what came of it: the verdict of the race."""

    def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return "better"

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        kept = await ctx.step("before", lambda: calls.hit("before"))
        return [kept, *await ctx.first(flaky=ctx.step(flaky), late=ctx.sleep(HOUR))]

    run = await drained(app, order)
    await make_due(app, run.id)
    assert await finished(app, run) == [1, "flaky", "better"]
    assert calls == {"before": 1, "flaky": 2}


@pytest.mark.parametrize("replayed", [False, True])
async def test_what_lost_to_a_failure_may_win_in_the_next_attempt(
    make_app: MakeApp, calls: Calls, replayed: bool
) -> None:
    """A limit that a race puts to a step holds in each attempt: also if the verdict that is forgotten was not made by
    this claim, but read from its record."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=0.05))

    async def pay() -> None:
        if calls.hit("pay") == 1:
            raise ValueError("once")
        await asyncio.get_running_loop().create_future()  # and then it hangs

    @app.workflow(max_attempts=2, backoff=Backoff(base=0))
    async def order(ctx: Context) -> str:
        try:
            name, _ = await ctx.first(pay=ctx.step(pay), late=ctx.sleep(HOUR if ctx.attempt == 1 else 0.01))
        except StepFailed:
            if replayed:
                await ctx.wait_signal("go")
            raise
        return name

    run = await app.start(order)
    async with app.worker():
        if replayed:
            await reached(run, "waiting")
            await run.signal("go")
        assert await run.result(timeout=PATIENCE) == "late"
    assert calls == {"pay": 2}


async def test_a_failing_child_wins_with_an_error_that_names_it(app: Stepfast) -> None:
    broken = task(app, "broken", error=ValueError("no"), max_attempts=1)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.first(child=ctx.call(broken), late=ctx.sleep(HOUR))
        except ChildFailed as error:
            return error.workflow
        return "?"

    assert await worked(app, await app.start(order)) == "broken"


async def test_a_race_needs_runners(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.first()

    await failure(await drained(app, order), r"ctx\.first needs at least one call")


async def test_a_race_takes_calls_of_the_context_only(app: Stepfast) -> None:
    stray = asyncio.sleep(0)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.first(a=stray, b=ctx.sleep(1))  # type: ignore[arg-type]

    run = await drained(app, order)
    stray.close()  # or Python complains that it was never awaited, whenever it is gone
    await failure(run, "a is a coroutine")


async def test_a_race_whose_winner_left_the_code_is_told(make_app: MakeApp) -> None:
    """Other code under the same name; the runs in flight say what they miss."""
    old, new = make_app(), make_app()
    gate = Gate()

    async def was(ctx: Context) -> None:
        await ctx.first(a=ctx.step("s", lambda: 1), late=ctx.sleep(HOUR))
        await ctx.step("gate", gate.passing)

    async def now(ctx: Context) -> None:
        await ctx.first(b=ctx.step("s", lambda: 1), late=ctx.sleep(HOUR))
        await ctx.step("gate", gate.passing)

    old.workflow(name="order")(was)
    new.workflow(name="order")(now)
    run = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    await failure(new.get(run.id), r"winner .* is 'a', but the code now has b, late")


# -- crashes -------------------------------------------------------------------------------------------------------


def step_first(ctx: Context) -> Any:
    return ctx.first(winner=ctx.step("winner", lambda: "w"), other=ctx.step("other", asyncio.Event().wait))


def branch_first(ctx: Context) -> Any:
    async def branch(ctx: Context) -> str:
        await ctx.step("inner", lambda: None)
        return await ctx.step("winner", lambda: "w")

    return ctx.first(winner=ctx.branch(branch), other=ctx.step("other", asyncio.Event().wait))


def sleep_first(ctx: Context) -> Any:
    return ctx.first(winner=ctx.sleep(0.05), other=ctx.step("other", asyncio.Event().wait))


def signal_first(ctx: Context) -> Any:
    return ctx.first(winner=ctx.wait_signal("winner"), other=ctx.step("other", asyncio.Event().wait))


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("where", ["other", "first"])
@pytest.mark.parametrize("race", [step_first, branch_first, sleep_first, signal_first])
async def test_a_crash_around_the_verdict_leaves_the_same_winner(
    app: Stepfast, race: Callable[[Context], Any], where: str, written: bool
) -> None:
    """Between the record of the winner, that of the loser, and that of the race."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return list(await race(ctx))

    run = await app.start(order)
    if race is signal_first:
        await run.signal("winner", "w")
    await crash_at(app, outcome_of(where), written=written)
    assert await worked(app, run) == ["winner", None if race is sleep_first else "w"]


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@WAITS
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_crash_when_a_signal_wins_takes_it_once(make_app: MakeApp, moment: float, written: bool) -> None:
    app = make_app(settings=Settings(inline_wait=moment))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        won = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR))
        return [*won, await ctx.wait_signal("paid")]

    run = await app.start(order)
    async with dying_worker(app, outcome_of("paid", "signal"), written=written) as crash:
        await reached(run, "waiting")
        await run.signal("paid", 1)
        await crash.happened()
    await run.signal("paid", 2)
    assert await finished(app, run) == ["paid", 1, 2]


async def test_a_race_goes_on_after_an_interruption(app: Stepfast, calls: Calls) -> None:
    """Nobody had won: all run again from what they have recorded."""
    gate = Gate()

    async def work(ctx: Context) -> str:
        await ctx.step("one", lambda: calls.hit("one"))
        await ctx.step("two", gate.passing)
        return "done"

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return list(await ctx.first(work=ctx.branch(work), late=ctx.sleep(HOUR)))

    run = await replayed(app, gate, order)
    assert await run.result() == ["work", "done"]
    assert calls == {"one": 1}


# -- cancelling and undoing ----------------------------------------------------------------------------------------


async def test_a_race_is_cancelled_with_its_run(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR))

    run = await app.start(order)
    async with app.worker():
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)


async def test_a_step_that_won_is_undone_though_the_verdict_was_never_recorded(app: Stepfast, calls: Calls) -> None:
    """Cancelled while it was in flight; it is completed first, and then undone."""
    gate = Gate()

    async def charge() -> str:
        await gate.passing()
        return "receipt"

    @app.workflow
    async def order(ctx: Context) -> None:
        undo = lambda output: calls.hit(f"undo {output}")
        await ctx.first(charge=ctx.options(compensate=undo).step(charge), late=ctx.sleep(HOUR))

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await run.cancel()
        await eventually(lambda: was_asked(app, run.id))
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
    assert await run.status() == "compensated"
    assert calls == {"undo receipt": 1}


async def was_asked(app: Stepfast, run_id: str) -> bool:
    return (await app.get(run_id).info()).asked == "cancel"


@pytest.mark.parametrize("interrupted", [False, True])
async def test_what_a_loser_had_completed_is_undone_too(app: Stepfast, calls: Calls, interrupted: bool) -> None:
    """It lost, but its step was done."""
    gate = Gate()

    async def work(ctx: Context) -> None:
        undo = lambda output: calls.hit(f"undo {output}")
        await ctx.options(compensate=undo).step("reserve", lambda: "r-1")
        await ctx.set("reserved", True)
        await ctx.step("hang", asyncio.Event().wait)

    async def reserved() -> None:
        await eventually(lambda: run.get("reserved"))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.first(work=ctx.branch(work), quick=ctx.step(reserved))
        await ctx.step("gate", gate.passing)
        raise NonRetryableError("no")

    run = await app.start(order)
    if interrupted:
        await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert (await run.info()).status == "compensated"
    assert calls == {"undo r-1": 1}
