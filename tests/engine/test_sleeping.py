"""Sleeping: when to wake is decided once, and no slot is held until then."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, Settings, Stepfast
from stepfast.engine.execution import Execution
from stepfast.engine.timers import wakes_at
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    ThreadGate,
    bystander,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
)
from tests.support.waiting import HARDLY_EVER, count, doomed, due, let_pass, reached, rows_of, wake
from tests.support.workflows import calling, sleeper, task

pytestmark = ON_SQLITE

DAY = timedelta(days=1)


AT_ONCE = Backoff(base=0, jitter=False)


# -- releasing and waking -----------------------------------------------------------------------------------------


@KINDS
async def test_a_sleep_frees_the_slot_and_wakes_in_time(app: Stepfast, calls: Calls, kind: str) -> None:
    async def order(ctx: Context) -> str:
        before = await ctx.step("before", lambda: calls.hit("before"))
        await ctx.sleep(DAY)
        return f"{before} {await ctx.step('after', lambda: calls.hit('after'))}"

    workflow_of(app, kind, order)
    other = bystander(app)
    run = await app.start("order")
    async with app.worker(concurrency=1):
        await other()
        info = await reached(run, "waiting")
    assert (info.waiting_for, info.worker) == ("time", None)
    assert info.due_at is not None and DAY - timedelta(minutes=1) < info.due_at - info.read_at <= DAY
    assert calls == {"before": 1}
    await let_pass(app, run, DAY.total_seconds())
    assert await finished(app, run) == "1 1"
    assert calls == {"before": 1, "after": 1}
    info = await run.info()
    assert (info.attempt, info.losses) == (1, 0)


async def test_a_short_sleep_stays_in_memory(app: Stepfast, calls: Calls) -> None:
    await outcome(app, sleeper(app, 0.05, calls=calls))
    assert calls == {"body": 1}


@pytest.mark.parametrize("moment", [0, 2])
async def test_sleepers_wake_by_themselves(make_app: MakeApp, calls: Calls, moment: float) -> None:
    app = make_app(settings=Settings(poll_interval=60, sweep_interval=60, inline_wait=moment))

    @app.workflow
    async def nap(ctx: Context, number: int) -> int:
        for _ in range(3):
            await ctx.sleep(0.05)
        return number

    async with app.worker():
        runs = await app.start_many(nap, list(range(20)))
        assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(20))


async def test_a_sleep_is_listed_while_it_lasts_and_when_it_is_over(app: Stepfast) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.sleep(3600)
        await ctx.step(gate.passing)

    run = await drained(app, order)
    [sleep] = await run.steps()
    assert (sleep.name, sleep.kind, sleep.status, sleep.completed_at) == ("sleep", "sleep", "waiting", None)
    await let_pass(app, run, 3601)
    await interrupt(app, gate)
    [sleep, *_] = await run.steps()
    assert sleep.status == "completed"
    assert await count(app, "steps", run) == 1


# -- decided once -------------------------------------------------------------------------------------------------


async def test_a_run_woken_too_early_sleeps_until_the_same_time(app: Stepfast, calls: Calls) -> None:
    run = await drained(app, sleeper(app, calls=calls))
    first = await due(run)
    for _ in range(3):
        await wake(app, run)
        await app.drain()
        assert await run.status() == "waiting"
        assert await due(run) == first
    assert calls["body"] == 4
    assert await count(app, "steps", run) == 1


@ON_BOTH
async def test_the_death_of_a_worker_does_not_make_a_sleep_longer(app: Stepfast, make_app: MakeApp) -> None:
    patient = make_app(settings=Settings(inline_wait=3600))
    began = asyncio.Event()

    for each in (app, patient):

        @each.workflow(name="order")
        async def order(ctx: Context) -> None:
            began.set()
            await ctx.sleep(1800)

    run = await patient.start("order")
    async with doomed(patient):
        await asyncio.wait_for(began.wait(), PATIENCE)
        await eventually(run.steps)
    info = await run.info()
    assert (info.status, info.losses) == ("queued", 1)
    async with rows_of(app) as rows:
        [(recorded_at,)] = await rows.fetch("SELECT completed_at FROM [steps] WHERE run_id = ?", run.id)
    await app.drain()
    assert await due(run) == datetime.fromtimestamp(recorded_at / 1000, UTC) + timedelta(seconds=1800)


async def test_a_new_attempt_does_not_sleep_again(app: Stepfast, calls: Calls) -> None:
    @app.workflow(backoff=AT_ONCE)
    async def order(ctx: Context) -> int:
        await ctx.sleep(3600)
        return await ctx.step("fail twice", fail_twice)

    def fail_twice() -> int:
        if calls.hit("fail") < 3:
            raise ValueError("not yet")
        return calls["fail"]

    run = await drained(app, order)
    await let_pass(app, run, 3601)
    assert await finished(app, run) == 3
    assert (await run.info()).attempt == 3


async def test_a_sleep_under_way_goes_on_over_attempts(app: Stepfast, calls: Calls) -> None:
    """The attempt fails beside the sleep: the next one wakes when the first would have."""
    order = calling(
        app,
        lambda ctx: asyncio.gather(ctx.sleep(3600), ctx.step("fail", fail_once_asleep, ctx.run_id)),
        backoff=AT_ONCE,
    )

    async def fail_once_asleep(run_id: str) -> None:
        await eventually(lambda: app.get(run_id).steps())
        if calls.hit("fail") == 1:
            await asyncio.sleep(0.1)  # a sleep that began again would end so much later
            raise ValueError("the first attempt fails")

    run = await app.start(order)
    async with app.worker():
        await eventually(lambda: calls["fail"] == 2)
        info = await reached(run, "waiting")
    assert info.attempt == 2
    [sleep, *_] = await (await app.store()).steps(run.id)
    assert info.due_at == datetime.fromtimestamp(wakes_at(sleep) / 1000, UTC)
    assert wakes_at(sleep) == sleep.completed_at + 3_600_000


async def test_the_time_after_a_sleep_is_at_least_when_it_ended(app: Stepfast) -> None:
    """Rule 17: and the same on every replay."""
    seen: list[datetime] = []
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        begun = ctx.now()
        await ctx.sleep(0.2)
        seen.append(ctx.now())
        assert ctx.now() - begun >= timedelta(seconds=0.2)
        await ctx.step(gate.passing)

    await (await replayed(app, gate, order)).result()
    assert len(seen) == 2 and seen[0] == seen[1]


# -- a clock that steps back --------------------------------------------------------------------------------------


async def test_a_sleep_that_is_over_stays_so_if_the_clock_steps_back(app: Stepfast, calls: Calls) -> None:
    """What was recorded after it says that its time had come."""
    gate = Gate()

    async def order(ctx: Context) -> str:
        await ctx.sleep(0.01)
        await ctx.step("after", lambda: calls.hit("after"))
        await ctx.step(gate.passing)
        return "awake"

    run = await app.start(app.workflow(order))
    await interrupt(app, gate)
    await let_pass(app, run, -3600)
    assert await finished(app, run, gate) == "awake"
    assert calls == {"after": 1}


@pytest.mark.parametrize("kind", ["async", "def", "branch"])
async def test_also_if_all_that_came_after_it_was_recorded_by_the_clock_that_had_stepped(
    app: Stepfast, calls: Calls, kind: str
) -> None:
    """An attempt fails then, and the next one comes by the sleep once more."""
    gate = ThreadGate()

    def after() -> None:
        calls.hit("after")
        gate.passing()

    async def sleep(ctx: Context) -> None:
        await ctx.sleep(0.01)

    async def nap(ctx: Context) -> None:
        await (ctx.branch(sleep) if kind == "branch" else ctx.sleep(0.01))
        await ctx.step(after)
        if calls.hit("end") == 1:
            raise ValueError("not yet")

    workflow_of(app, "def" if kind == "def" else "async", nap, max_attempts=2, backoff=AT_ONCE)
    run = await app.start("order")
    async with app.worker():
        await gate.reached()
        await let_pass(app, run, -3600)
        gate.open()
        await run.result(timeout=PATIENCE)
    assert calls == {"after": 1, "end": 2}


async def test_nor_does_that_keep_an_undo_from_being_called(app: Stepfast, calls: Calls) -> None:
    gate = ThreadGate()

    def charge() -> str:
        gate.passing()
        return f"receipt {calls.hit('charge')}"

    def refund(receipt: str) -> None:
        calls.hit(f"refund {receipt}")

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.sleep(0.01)
        await ctx.options(compensate=refund).step(charge)
        raise ValueError("no")

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await let_pass(app, run, -3600)
        gate.open()
        await failure(run)
    assert calls == {"charge": 1, "refund receipt 1": 1}
    assert await run.status() == "compensated"


async def test_a_sleep_that_is_not_over_is_not_cut_short_by_what_is_recorded_beside_it(
    app: Stepfast, calls: Calls
) -> None:
    @app.workflow
    async def nap(ctx: Context) -> None:
        await ctx.gather(ctx.sleep(3600), ctx.step("beside", lambda: calls.hit("beside")))
        await ctx.step("after", lambda: calls.hit("after"))

    run = await drained(app, nap)
    await let_pass(app, run, -1800)
    await wake(app, run)
    await app.drain()
    assert (await run.status(), calls) == ("waiting", {"beside": 1})


# -- until a point in time ----------------------------------------------------------------------------------------


async def test_sleep_until_wakes_at_the_time_given(app: Stepfast) -> None:
    when = (datetime.now(UTC) + DAY).replace(microsecond=123_000)

    @app.workflow
    async def order(ctx: Context, until: datetime) -> None:
        await ctx.sleep_until(until)

    assert await due(await drained(app, order, when)) == when


async def test_a_time_that_has_passed_is_not_waited_for(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> None:
        calls.hit("body")
        await ctx.sleep_until(datetime.now(UTC) - DAY)

    run = await drained(app, order)
    await run.result(timeout=PATIENCE)
    assert calls["body"] == 1
    assert [s.status for s in await run.steps()] == ["completed"]


NEVER = datetime.max.replace(tzinfo=UTC)
"""It rounds up to the year 10000."""


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        *(("sleep", span, r"ctx\.sleep") for span in (-1, timedelta(days=-1), True, "soon", float("inf"), 1e12)),
        ("sleep_until", datetime(2100, 1, 1), "time zone"),
        ("sleep_until", NEVER, "before the year 9000"),
    ],
)
async def test_a_sleep_that_makes_no_sense_is_refused(app: Stepfast, verb: str, given: Any, said: str) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match=said):
            await getattr(ctx, verb)(given)
        await getattr(ctx, verb)(given)

    run = await drained(app, order)
    await failure(run, said)
    assert [info.id for info in await app.runs()] == [run.id]


async def test_a_start_at_a_time_that_cannot_be_shown_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="at must be before the year 9000"):
        await app.start(sleeper(app), at=NEVER)
    assert await app.runs() == []


# -- deadlines and timeouts ---------------------------------------------------------------------------------------


async def test_a_deadline_ends_a_sleep_without_a_replay(app: Stepfast, calls: Calls) -> None:
    run = await drained(app, sleeper(app, DAY.total_seconds(), calls=calls, deadline=timedelta(hours=1)))
    await let_pass(app, run, 3601)
    await app.drain()
    assert (await failure(run)).reason == "deadline"
    assert calls["body"] == 1


async def test_the_timeout_of_an_attempt_does_not_count_sleeps_in_memory(app: Stepfast) -> None:
    assert await outcome(app, sleeper(app, 1.5, timeout=1, max_attempts=1)) == "awake"


# -- an own timeout, another task, a closed context ---------------------------------------------------------------


async def test_a_sleep_that_is_not_awaited_is_refused(app: Stepfast) -> None:
    """Rule 18."""

    @app.workflow
    async def order(ctx: Context) -> None:
        ctx.sleep(3600)

    run = await drained(app, order)
    await failure(run, "without awaiting 'sleep'")
    assert (await run.info()).attempt == 1


async def test_a_released_context_refuses_whatever_is_still_asked_of_it(app: Stepfast, calls: Calls) -> None:
    """Rule 20: code that swallows the end of its attempt changes nothing by it."""

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.sleep(3600)
        except BaseException:
            calls.hit("swallowed")
            for call in (lambda: ctx.sleep(1), lambda: ctx.wait_signal("x"), lambda: ctx.step("x", calls.hit, "x")):
                try:
                    await call()
                except BaseException:
                    calls.hit("refused")
        return "out of turn"

    run = await drained(app, order)
    assert await run.status() == "waiting"
    assert calls == {"swallowed": 1, "refused": 3}
    assert await count(app, "steps", run) == 1
    await let_pass(app, run, 3601)
    assert await finished(app, run) == "out of turn"
    assert calls == {"swallowed": 1, "refused": 3}


async def test_gathering_with_errors_as_results_does_not_swallow_a_release(app: Stepfast, calls: Calls) -> None:
    """Rule 20: ``gather(return_exceptions=True)`` takes any exception for a result."""

    @app.workflow
    async def order(ctx: Context) -> str:
        results = await asyncio.gather(ctx.sleep(3600), ctx.sleep(7200), return_exceptions=True)
        calls.hit("went on")
        return str(results)

    run = await drained(app, order)
    assert await run.status() == "waiting"
    await let_pass(app, run, 3601)
    await app.drain()
    assert await run.status() == "waiting"
    await let_pass(app, run, 3601)
    assert await finished(app, run) == "[None, None]"
    assert calls["went on"] == 1


# -- many ---------------------------------------------------------------------------------------------------------


async def test_a_run_stays_in_memory_while_a_branch_is_busy(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: it is released when every branch waits, and due when the first of them is."""
    app = make_app(settings=Settings(inline_wait=0))
    gate, another_run = Gate(), bystander(app)

    async def sleeper(ctx: Context, seconds: float) -> None:
        await ctx.sleep(seconds)

    async def worker(ctx: Context) -> None:
        await ctx.step(gate.passing)
        await ctx.sleep(1800)

    @app.workflow
    async def order(ctx: Context) -> None:
        calls.hit("body")
        await ctx.gather(ctx.branch(sleeper, 7200), ctx.branch(worker), ctx.branch(sleeper, 3600))

    async def both_sleep() -> bool:
        return await count(app, "steps", run) == 2

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await eventually(both_sleep)
        await another_run()
        assert await run.status() == "running"
        gate.open()
        info = await reached(run, "waiting")
    assert info.due_at is not None
    assert timedelta(seconds=1790) < info.due_at - info.read_at <= timedelta(seconds=1800)
    for _ in range(4):
        await let_pass(app, run, 1801)
        await app.drain()
    await run.result(timeout=PATIENCE)
    assert gate.arrivals == 1


@pytest.mark.parametrize("order", [(7200, 3600, 1800), (1800, 3600, 7200)])
async def test_each_sleep_of_many_branches_is_woken_in_its_own_time(app: Stepfast, order: tuple[int, ...]) -> None:
    """Rule 24: a branch that sleeps on must not hide another whose time has come, whichever is replayed first."""
    woken: list[int] = []

    async def sleeper(ctx: Context, seconds: int) -> None:
        await ctx.sleep(seconds)
        await ctx.step("woken", woken.append, seconds)

    dream = calling(app, lambda ctx: ctx.map(sleeper, order), name="dream")
    run = await drained(app, dream)
    for passed, awake in [(1801, [1800]), (1800, [1800, 3600]), (3600, [1800, 3600, 7200])]:
        await let_pass(app, run, passed)
        await app.drain()
        assert woken == awake
    await run.result(timeout=PATIENCE)


async def test_a_thousand_sleepers_hold_no_slot_and_no_memory(app: Stepfast) -> None:
    @app.workflow
    async def dream(ctx: Context, number: int) -> int:
        await ctx.sleep(DAY)
        return number

    other = bystander(app)
    runs = await app.start_many(dream, list(range(1000)))
    async with app.worker(concurrency=20) as worker:
        await worker.until_drained()
        assert worker.duties.executor.running == {} and worker.duties.executor.slots.free == 20
        await eventually(lambda: not in_memory({run.id for run in runs}))
        await other()
    async with rows_of(app) as rows:
        counted = await rows.fetch("SELECT status, count(*) FROM [runs] GROUP BY status ORDER BY status")
        assert counted == [("completed", 1), ("waiting", 1000)]
        day = 24 * 3_600_000
        await rows.fetch("UPDATE [runs] SET visible_at = visible_at - ? WHERE status = 'waiting'", day)
        await rows.fetch("UPDATE [steps] SET completed_at = completed_at - ?", day)
    await app.drain(concurrency=20)
    assert [await run.result(timeout=PATIENCE) for run in runs[::100]] == list(range(0, 1000, 100))
    assert await app.runs(status="waiting") == []


def in_memory(runs: set[str]) -> list[Execution]:
    """What this process still knows of runs that were released."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is Execution and thing.run_id in runs]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_hundred_thousand_sleepers_cost_the_claim_nothing(make_app: MakeApp) -> None:
    """Rule 31: by the server's own count of rows read."""
    app = make_app(settings=HARDLY_EVER)
    quick = task(app, "quick")
    dream = sleeper(app, DAY.total_seconds())
    for _ in range(10):
        await app.start_many(dream, [None] * 10_000, delay=DAY)
    async with rows_of(app) as rows:
        await rows.fetch("UPDATE [runs] SET status = 'waiting', waiting_for = 'time'")
        await rows.fetch("ANALYZE [runs]")

        async def read() -> int:
            await rows.fetch("SELECT pg_stat_force_next_flush()")  # what this connection itself has read until now
            await rows.fetch("SELECT pg_stat_clear_snapshot()")
            [(number,)] = await rows.fetch(
                "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint "
                "FROM pg_stat_user_tables WHERE relname = 'runs'"
            )
            return int(number)

        async def all_others_have_left() -> bool:
            others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            return await rows.fetch(f"{others} AND backend_type = 'client backend'") == []

        before = await read()
        async with app.worker(concurrency=10) as worker:
            runs = [await app.start(quick, number) for number in range(200)]
            assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(200))
            assert len(worker.duties.executor.running) == 0
        await app.close()
        await eventually(all_others_have_left)  # and reported to the server what they have read
        assert 200 <= await read() - before < 50_000
