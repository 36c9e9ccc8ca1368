"""Races: ``ctx.first`` records who won; what lost is given up, and replays so for ever."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
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
    outcome,
    replayed,
    worked,
)
from tests.support.waiting import reached
from tests.support.workflows import calling, task
from tests.worker.spying import HeldReply

pytestmark = pytest.mark.enough_on("sqlite")
WAITS = pytest.mark.parametrize("moment", [0.0, 0.2], ids=["released", "in memory"])
HOUR = timedelta(hours=1)


async def kinds(app: Stepfast, run_id: str) -> dict[str, str]:
    """Name of each record → its status."""
    return {s.name: s.status for s in await app.get(run_id).steps()}


# -- who wins ------------------------------------------------------------------------------------------------------


@WAITS
async def test_a_signal_beats_a_long_sleep(make_app: MakeApp, moment: float) -> None:
    """The winner by its name, with its value; the sleep is given up."""
    app = make_app(settings=Settings(inline_wait=moment))
    order = calling(app, lambda ctx: ctx.first(paid=ctx.wait_signal("paid", type=int), late=ctx.sleep(HOUR)))
    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
        await run.signal("paid", 3)
        assert await run.result(timeout=20) == ["paid", 3]


@WAITS
async def test_a_sleep_beats_a_signal_that_does_not_come(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))
    order = calling(app, lambda ctx: ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR)))
    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
    await make_due(app, run.id)
    assert await worked(app, run) == ["late", None]


async def test_a_step_beats_another(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def slow() -> str:
        calls.hit("slow")
        await gate.passing()
        return "slow"

    async def quick() -> str:
        await gate.reached()
        return "quick"

    order = calling(app, lambda ctx: ctx.first(slow=ctx.step(slow), quick=ctx.step(quick)))
    run = await drained(app, order)
    assert await run.result() == ["quick", "quick"]
    assert await kinds(app, run.id) == {"quick": "completed", "slow": "cancelled", "first": "completed"}


async def three_steps(ctx: Context, name: str) -> list[str]:
    return [await ctx.step(f"{name} {n}", lambda n: f"{name}{n}", n) for n in range(3)]


def nested(ctx: Context) -> Any:
    return ctx.first(a=ctx.wait_signal("never"), b=ctx.step("quick", lambda: 1))


@pytest.mark.parametrize(
    ("runner", "value"),
    [
        (lambda ctx: ctx.branch(three_steps, "w"), ["w0", "w1", "w2"]),
        (lambda ctx: ctx.map(three_steps, ["a"]), [["a0", "a1", "a2"]]),
        (nested, ["b", 1]),
    ],
    ids=["branch", "map", "race"],
)
async def test_branches_maps_and_races_may_race(app: Stepfast, runner: Callable[[Context], Any], value: Any) -> None:
    """Against a clock."""
    order = calling(app, lambda ctx: ctx.first(work=runner(ctx), late=ctx.sleep(HOUR)))
    assert await outcome(app, order) == ["work", value]


@pytest.mark.enough_on("postgres", "sqlite")
async def test_children_and_maps_may_race(app: Stepfast) -> None:
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns="slow")

    async def item(ctx: Context, n: int) -> int:
        return await ctx.step(f"item {n}", lambda: n)

    order = calling(app, lambda ctx: ctx.first(child=ctx.call(slow), map=ctx.map(item, [1, 2])))
    run = await app.start(order)
    async with app.worker():
        assert await run.result(timeout=20) == ["map", [1, 2]]
        gate.open()
        [child] = await app.runs(workflow=slow)
        assert await app.get(child.id).result(timeout=20) == "slow"  # given up, not ended


async def test_two_ready_at_the_same_time_have_one_winner_for_ever(app: Stepfast, calls: Calls) -> None:
    """Both steps end in the same turn of the loop; whoever is recorded as the winner stays it."""
    gate = Gate()
    both = asyncio.Barrier(2)

    async def runner(name: str) -> str:
        calls.hit(name)
        await both.wait()
        return name

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        won = await ctx.first(a=ctx.step("a", runner, "a"), b=ctx.step("b", runner, "b"))
        await ctx.set("winner", won[0])
        await ctx.step("gate", gate.passing)
        return list(won)

    run = await app.start(order)
    await interrupt(app, gate)
    winner = await run.get("winner")
    assert await finished(app, run, gate) == [winner, winner]
    assert calls == {"a": 1, "b": 1}


@pytest.mark.enough_on("postgres", "sqlite")
async def test_two_signals_at_the_same_time_lose_neither(app: Stepfast) -> None:
    """One wins, the other stays in the mailbox."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        winner, value = await ctx.first(a=ctx.wait_signal("a"), b=ctx.wait_signal("b"))
        other = "b" if winner == "a" else "a"
        return [winner, value, await ctx.wait_signal(other)]

    run = await app.start(order)
    await run.signal("b", "B")
    await run.signal("a", "A")
    await app.drain()
    assert sorted(map(str, (await run.result())[1:])) == ["A", "B"]


# -- what lost -----------------------------------------------------------------------------------------------------


@WAITS
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_signal_that_lost_stays_in_the_mailbox(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        won = await ctx.first(paid=ctx.wait_signal("paid"), quick=ctx.step("quick", lambda: 1))
        await ctx.step("gate", gate.passing)
        return [*won, await ctx.wait_signal("paid")]

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await run.signal("paid", "later")
        gate.open()
        assert await run.result(timeout=20) == ["quick", 1, "later"]


async def test_a_loser_is_stopped_before_the_code_goes_on(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def slow() -> None:
        try:
            await gate.passing()
        finally:
            calls.hit("stopped")

    @app.workflow
    async def order(ctx: Context) -> int:
        await ctx.first(slow=ctx.step(slow), quick=ctx.step("quick", gate.reached))
        return calls["stopped"]

    assert await outcome(app, order) == 1


async def test_the_child_of_a_loser_may_still_be_asked(app: Stepfast) -> None:
    """A race over a handle gives up the asking, not the child."""
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns="slow")

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        child = await ctx.start(slow)
        won = await ctx.first(child=child.result(), quick=ctx.step("quick", gate.reached))
        await ctx.step("open", gate.open)
        return [won[0], await child.result()]

    assert await worked(app, await app.start(order)) == ["quick", "slow"]


async def deeper(ctx: Context, depth: int = 5) -> None:
    await ctx.step(f"deep {depth}", lambda: depth)
    if depth:
        await ctx.gather(ctx.branch(deeper, depth - 1), ctx.step("beside", lambda: 4))


async def losing(ctx: Context, number: int) -> None:
    await ctx.step(f"one {number}", lambda: 1)
    await ctx.gather(ctx.step("two", lambda: 2), ctx.branch(deeper))
    await ctx.wait_signal("never")


@WAITS
@pytest.mark.parametrize("way", ["branch", "map"])
async def test_a_branch_or_map_that_loses_after_some_steps_replays_as_lost(
    make_app: MakeApp, moment: float, way: str
) -> None:
    """Its records are no part of what the code does afterwards, and no sign of changed code."""
    app = make_app(settings=Settings(inline_wait=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        work = ctx.branch(losing, 0) if way == "branch" else ctx.map(losing, range(5), limit=2)
        won = await ctx.first(work=work, late=ctx.sleep(HOUR))
        await ctx.step("gate", gate.passing)
        return [*won, await ctx.step("after", lambda: "after")]

    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
    await make_due(app, run.id)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == ["late", None, "after"]


async def test_calls_a_losing_branch_had_not_awaited_are_no_misuse(app: Stepfast) -> None:
    """It was stopped by the race, and could not await them any more."""

    async def work(ctx: Context) -> None:
        first, second = ctx.step("first step", asyncio.Event().wait), ctx.step("second step", lambda: 2)
        await first
        await second

    order = calling(app, lambda ctx: ctx.first(work=ctx.branch(work), late=ctx.sleep(0.05)))
    assert await worked(app, await app.start(order)) == ["late", None]


async def test_a_loser_does_not_go_on_though_it_was_stopped_while_a_step_was_being_recorded(
    app: Stepfast, calls: Calls
) -> None:
    """That step is too late to be stopped; the one after it is not."""
    enough = asyncio.Event()

    async def busy(ctx: Context) -> None:
        while True:
            await ctx.step("busy step", lambda: calls.hit("busy step"))
            if calls["busy step"] == 10:
                enough.set()

    order = calling(app, lambda ctx: ctx.first(busy=ctx.branch(busy), quick=ctx.step("quick", enough.wait)))
    assert await worked(app, await app.start(order)) == ["quick", True]
    assert calls["busy step"] < 100


@pytest.mark.parametrize("call", ["sleep", "signal", "child", "step", "gather", "map"])
async def test_an_own_timeout_while_a_step_is_being_recorded_stops_the_next_call(app: Stepfast, call: str) -> None:
    """Rule 19: the record that is under way stays; what comes after it within the timeout is given up."""
    held = HeldReply(await app.store(), "flush")
    limits: list[asyncio.Timeout] = []
    child = task(app, "child", returns=None, queue="nobody")

    async def item(ctx: Context, n: int) -> None:
        await ctx.sleep(HOUR)

    def next_call(ctx: Context) -> Any:
        calls: dict[str, Callable[[], Any]] = {
            "sleep": lambda: ctx.sleep(HOUR),
            "signal": lambda: ctx.wait_signal("never"),
            "child": lambda: ctx.call(child),
            "step": lambda: ctx.step("hang", asyncio.Event().wait),
            "gather": lambda: ctx.gather(ctx.sleep(HOUR), ctx.branch(item, 1)),
            "map": lambda: ctx.map(item, [1, 2]),
        }
        return calls[call]()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.step("quick", lambda: 1)
                await next_call(ctx)
        except TimeoutError:
            return await ctx.step("after", lambda: "after")
        return "?"

    run = await app.start(order)
    async with app.worker(queues=["order"]):
        await held.done()
        limits[0].reschedule(asyncio.get_running_loop().time())
        await eventually(limits[0].expired)
        held.release()
        assert await run.result(timeout=10) == "after"
    assert (await kinds(app, run.id))["quick"] == "completed"


# -- races within races --------------------------------------------------------------------------------------------


@WAITS
async def test_a_signal_is_for_whoever_wins_all_its_races(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))

    @app.workflow
    async def order(ctx: Context, wins: str) -> Any:
        heat = ctx.first(word=ctx.wait_signal("word", type=str), nap=ctx.sleep(HOUR))
        found = await ctx.first(heat=heat, late=ctx.sleep(0.2 if wins == "late" else HOUR))
        return [*found, await ctx.wait_signal("word", type=str)] if wins == "late" else list(found)

    first, second = await app.start(order, "heat"), await app.start(order, "late")
    async with app.worker():
        await reached(first, "waiting")
        await first.signal("word", "hello")
        assert await first.result(timeout=20) == ["heat", ["word", "hello"]]

        async def late_won() -> bool:
            return any(s.kind == "first" and s.status == "completed" for s in await second.steps())

        await eventually(late_won)
        await second.signal("word", "hello")
        assert await second.result(timeout=20) == ["late", None, "hello"]


# -- many ----------------------------------------------------------------------------------------------------------


async def work_of_replaying(app: Stepfast, name: str, races: int) -> int:
    """How many functions of the engine are called when a run of so many decided races is replayed."""
    gate = Gate()

    async def loser(ctx: Context, number: int) -> None:
        await ctx.step("begun", lambda: number)
        await ctx.wait_signal("never")

    async def race(ctx: Context, number: int) -> str:
        winner, _ = await ctx.first(loser=ctx.branch(loser, number), quick=ctx.step("quick", lambda: number))
        return winner

    @app.workflow(name=name)
    async def order(ctx: Context) -> list[str]:
        winners = await ctx.map(race, range(races))
        await ctx.step("gate", gate.passing)
        return winners

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/stepfast/engine/" in frame.f_code.co_filename:
            counted["calls"] += 1

    sys.setprofile(count)
    try:
        await app.drain()
    finally:
        sys.setprofile(None)
    assert await run.result() == ["quick"] * races
    return counted["calls"]


async def test_a_replay_grows_with_the_races_lost_not_with_their_square(app: Stepfast) -> None:
    few, many = [await work_of_replaying(app, f"order of {races}", races) for races in (20, 100)]
    assert many < 8 * few


# -- races whose runners fail, whose worker dies, and those that are cancelled or undone


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
    order = calling(app, lambda ctx: ctx.first())
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
    order = calling(app, lambda ctx: race(ctx))
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

    order = calling(app, lambda ctx: ctx.first(work=ctx.branch(work), late=ctx.sleep(HOUR)))
    run = await replayed(app, gate, order)
    assert await run.result() == ["work", "done"]
    assert calls == {"one": 1}


# -- cancelling and undoing ----------------------------------------------------------------------------------------


async def test_a_race_is_cancelled_with_its_run(app: Stepfast) -> None:
    order = calling(app, lambda ctx: ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR)))
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
