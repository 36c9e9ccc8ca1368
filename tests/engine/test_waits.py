"""Waits: which release the slot, which stay in memory, what a suspect does at one, and how long they took."""

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
    RetryLater,
    Run,
    Settings,
    SignalTimeout,
    Stepfast,
    WaitTimeout,
)
from stepfast.engine.host import Promise, wake_all
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    bystander,
    drained,
    eventually,
    finished,
    make_due,
    stopped_at_once,
)
from tests.support.waiting import let_pass, reached, rows_of
from tests.support.workflows import calling, sleeper

pytestmark = ON_SQLITE


def flaky(calls: Calls, delay: float, failures: int = 1) -> Any:
    """A step that puts itself off some times."""

    async def flaky() -> str:
        if calls.hit("flaky") <= failures:
            raise RetryLater(delay)
        return "flaky"

    return flaky


async def gather_flaky(ctx: Context, flaky: Any, *others: Any) -> list[Any]:
    return list(await asyncio.gather(ctx.options(retries=1).step(flaky), *(ctx.step(other) for other in others)))


@KINDS
@ON_BOTH
async def test_a_long_wait_frees_the_slot(app: Stepfast, calls: Calls, kind: str) -> None:
    put_off, others = flaky(calls, 3600), bystander(app)

    async def order(ctx: Context) -> Any:
        calls.hit("body")
        return await ctx.options(retries=1).step(put_off)

    workflow_of(app, kind, order)
    async with app.worker(concurrency=1):
        run = await app.start("order")
        await reached(run, "waiting")
        await others()
        assert await run.status() == "waiting"
        await make_due(app, run.id)
        assert await run.result(timeout=PATIENCE) == "flaky"
    assert calls == {"flaky": 2, "body": 2}
    assert (await run.info()).attempt == 1


@pytest.mark.parametrize(
    ("slots", "delay", "failures", "replays"),
    [(10, 0.02, 2, 0), (1, 1.0, 1, 1)],  # a second is longer than a busy machine takes to give the run back
    ids=["free slots", "no free slot"],
)
@ON_BOTH
async def test_a_short_wait_stays_in_memory_while_slots_are_free(
    app: Stepfast, calls: Calls, slots: int, delay: float, failures: int, replays: int
) -> None:
    put_off = flaky(calls, delay, failures)

    @app.workflow
    async def order(ctx: Context) -> str:
        calls.hit("body")
        return str(await ctx.options(retries=failures).step(put_off))

    run = await app.start(order)
    await app.drain(concurrency=slots)
    assert await run.result() == "flaky"
    assert calls == {"flaky": failures + 1, "body": 1 + replays}


@ON_BOTH
async def test_a_run_is_released_only_when_everything_in_it_waits(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: with a parallel step still busy it stays in memory."""
    app, put_off, gate = make_app(settings=Settings(inline_wait=0)), flaky(calls, 3600), Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        calls.hit("body")
        return await gather_flaky(ctx, put_off, gate.passing)

    run = await app.start(order)
    async with app.worker():
        await eventually(run.activity)
        assert await run.status() == "running"
        gate.open()
        await reached(run, "waiting")
        assert [(s.name, s.status) for s in await run.steps()] == [("passing", "completed"), ("flaky", "waiting")]
        await make_due(app, run.id)
        assert await run.result(timeout=PATIENCE) == ["flaky", None]
    assert calls == {"body": 2, "flaky": 2} and gate.arrivals == 1


@ON_BOTH
async def test_a_run_stays_in_memory_while_its_own_code_goes_on(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: a step waits in the background, and the steps after it do not wait until its time has come."""
    app, put_off = make_app(settings=Settings(inline_wait=0)), flaky(calls, 3600)

    @app.workflow
    async def order(ctx: Context) -> Any:
        background = asyncio.ensure_future(ctx.options(retries=1).step(put_off))
        await ctx.step("first", eventually, app.get(ctx.run_id).activity)
        for name in ("second", "third"):
            await ctx.step(name, lambda: None)
        await asyncio.gather(ctx.step("fourth", lambda: None), ctx.step("fifth", lambda: None))
        await ctx.step("sixth", lambda: None)
        return await background

    run = await drained(app, order)
    done = [s.name for s in await run.steps() if s.status == "completed"]
    assert sorted(done) == ["fifth", "first", "fourth", "second", "sixth", "third"]
    assert await run.status() == "waiting"


@ON_BOTH
async def test_the_earliest_of_several_waits_wakes_the_run(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: visible_at is the earliest wake."""
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        patient = ctx.options(retries=1)
        return list(await asyncio.gather(*(patient.step(str(delay), flaky(calls, delay, 2)) for delay in (3600, 600))))

    info = await (await drained(app, order)).info()
    assert info.status == "waiting" and info.due_at is not None
    assert 595 < (info.due_at - info.read_at).total_seconds() <= 600


@ON_BOTH
async def test_finally_blocks_run_when_a_run_is_released(app: Stepfast, calls: Calls) -> None:
    """Rule 20: and an ``except Exception`` around the wait sees nothing."""
    put_off = flaky(calls, 3600)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(retries=1).step(put_off)
        except Exception:
            calls.hit("swallowed")
        finally:
            calls.hit("finally")
        return "wrong"

    assert await (await drained(app, order)).status() == "waiting"
    assert calls == {"flaky": 1, "finally": 1}


@ON_BOTH
async def test_many_runs_wait_at_once_without_slots(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context, number: int) -> None:
        await ctx.options(retries=1, backoff=Backoff(base=60)).step("fail", lambda: calls.hit(str(number)) / 0)

    await app.start_many(order, range(20))
    await app.drain(concurrency=2)
    assert len(await app.runs(status="waiting")) == 20
    assert calls == {str(n): 1 for n in range(20)}


@pytest.mark.parametrize("what", ["retry", "attempt", "sleep"])
@ON_BOTH
async def test_drain_stays_for_what_is_due_soon_though_no_wait_is_kept_in_memory(
    make_app: MakeApp, calls: Calls, what: str
) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    soon = Backoff(base=0.1, jitter=False)

    def fails_once() -> None:
        if what != "sleep" and calls.hit("call") == 1:
            raise ValueError("once")

    @app.workflow(backoff=soon)
    async def order(ctx: Context) -> None:
        if what == "sleep":
            await ctx.sleep(0.1)
        await ctx.options(retries=1 if what == "retry" else 0, backoff=soon).step(fails_once)

    assert await (await drained(app, order)).status() == "completed"


@pytest.mark.parametrize("where", ["one slot", "limited queue"])
@pytest.mark.parametrize("alone", [True, False])
async def test_the_timeout_of_a_signal_comes_where_a_run_may_not_stay(sqlite_url: str, where: str, alone: bool) -> None:
    app = Stepfast(sqlite_url, settings=Settings(inline_wait=0.05, poll_interval=0.1))
    app.queue("narrow", concurrency=1)

    async def listen(ctx: Context, name: str, timeout: float) -> str:
        try:
            return str(await ctx.wait_signal(name, timeout=timeout))
        except SignalTimeout:
            return "late"

    @app.workflow
    async def order(ctx: Context) -> str:
        if alone:
            return await listen(ctx, "paid", 0.2)
        winner, value = await ctx.first(paid=ctx.branch(listen, "paid", 0.2), sent=ctx.branch(listen, "sent", 1000.0))
        return f"{winner} {value}"

    narrow = where == "limited queue"
    async with app, app.worker(concurrency=10 if narrow else 1):
        run = await app.start(order, queue="narrow" if narrow else None)
        assert await run.result(timeout=PATIENCE) == ("late" if alone else "paid late")
        assert (await run.info()).status == "completed"


LONG = Settings(poll_interval=0.05, inline_wait=300)
"""A wait that may stay in memory does so for longer than any test."""


async def lose(app: Stepfast, losses: int, workflow: str) -> None:
    """Let so many workers have died with the runs of a workflow."""
    async with rows_of(app) as rows:
        lost = "UPDATE [runs] SET losses = ?, unrecorded_losses = ? WHERE workflow = ?"
        await rows.fetch(lost, losses, losses, workflow)


@pytest.mark.parametrize("losses", [1, 4])
@ON_BOTH
async def test_a_suspect_gives_its_slot_back_at_any_wait_and_its_losses_are_forgiven(
    make_app: MakeApp, losses: int
) -> None:
    """Rules 5 and 52. In memory it would count a loss each time its worker dies for another reason."""
    app = make_app(settings=LONG)
    child = sleeper(app, 200, name="child")

    @app.workflow
    async def patient(ctx: Context, what: str) -> None:
        if what == "signal":
            await ctx.wait_signal("go")
        elif what == "first":
            await ctx.first(go=ctx.wait_signal("go"), stop=ctx.wait_signal("stop", timeout=100))
        elif what == "child":
            await ctx.call(child)
        else:
            await ctx.wait_until(_never, every=100)

    runs = await app.start_many(patient, ["signal", "first", "child", "check"])
    await lose(app, losses, "patient")
    async with stopped_at_once(app):
        for run in runs:
            await reached(run, "waiting")
    assert [(await run.info()).losses for run in runs] == [0] * 4


async def _never() -> bool:
    return False


@ON_BOTH
async def test_waiting_suspects_do_not_keep_other_suspects_from_work(make_app: MakeApp) -> None:
    """Suspects are tried alone. A wake that they do not wait for brings each back to its wait at once."""
    app = make_app(settings=LONG)

    @app.workflow
    async def patient(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    busy = calling(app, lambda ctx: ctx.step("work", lambda: "done"), name="busy")
    await app.start_many(patient, [None] * 15, priority=5)
    run = await app.start(busy)
    for workflow in ("patient", "busy"):
        await lose(app, 4, workflow)
    async with stopped_at_once(app):
        assert await run.result(timeout=PATIENCE) == "done"
    async with rows_of(app) as rows:
        assert await rows.fetch("SELECT count(*) FROM [runs] WHERE losses > 0") == [(0,)]


HOUR = 3600.0


RELEASES = Settings(inline_wait=0)
"""Every wait gives its slot back."""


ENDS = {
    "sleep": "done", "sleep_until": "done", "signal": "done", "signal_any": "done", "result": "done", "child": "done",
    "until": "done", "signal_late": "SignalTimeout", "child_failed": "ChildFailed", "until_late": "WaitTimeout",
}  # fmt: skip
"""Kinds of waits, and what each ends with."""


def declare(app: Stepfast, opened: list[bool]) -> Any:
    """One workflow with a wait of every kind; which one is its input."""

    @app.task(max_attempts=1)
    async def child(fails: bool) -> str:
        if fails:
            raise NonRetryableError("no stock")
        return "shipped"

    async def is_open() -> bool:
        return bool(opened)

    async def result(ctx: Context) -> None:
        await (await ctx.start(child, False, delay=HOUR)).result()

    waits: dict[str, Callable[[Context], Any]] = {
        "sleep": lambda ctx: ctx.sleep(HOUR),
        "sleep_until": lambda ctx: ctx.sleep_until(ctx.now() + timedelta(seconds=HOUR)),
        "signal": lambda ctx: ctx.wait_signal("paid", timeout=9 * HOUR),
        "signal_any": lambda ctx: ctx.wait_signal("paid"),
        "signal_late": lambda ctx: ctx.wait_signal("paid", timeout=HOUR),
        "race": lambda ctx: ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(9 * HOUR)),
        "result": result,
        "child": lambda ctx: ctx.call(child, False, delay=HOUR),
        "child_failed": lambda ctx: ctx.call(child, True, delay=HOUR),
        "until": lambda ctx: ctx.wait_until(is_open, every=HOUR),
        "until_late": lambda ctx: ctx.wait_until(is_open, every=HOUR, timeout=HOUR),
    }

    @app.workflow(max_attempts=1)
    async def waiter(ctx: Context, kind: str) -> str:
        try:
            await waits[kind](ctx)
        except (SignalTimeout, ChildFailed, WaitTimeout) as error:
            return type(error).__name__
        return "done"

    return waiter


async def wait_an_hour(make_app: MakeApp, kind: str) -> tuple[Stepfast, Run[Any]]:
    """Start it, let it give its slot back, let an hour pass, and let another process bring it to its end."""
    opened: list[bool] = []
    app, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await app.start(declare(app, opened), kind)
    declare(other, opened)
    await app.drain()
    assert await run.status() == "waiting"
    await let_pass(app, run, HOUR)
    for step in await run.steps():
        if step.child is not None:
            await let_pass(app, app.get(step.child), HOUR)
    if kind in ("signal", "signal_any", "race"):
        await run.signal("paid")
    if kind == "until":
        opened.append(True)
    again = other.get(run.id)
    await other.drain()
    return other, again


@pytest.mark.parametrize("kind", ENDS)
async def test_the_log_and_its_views_give_the_whole_span_of_a_wait(make_app: MakeApp, kind: str) -> None:
    app, run = await wait_an_hour(make_app, kind)
    assert await run.result(timeout=PATIENCE) == ENDS[kind]
    step, call = (await run.steps())[-1], (await run.activity())[-1]
    how = "completed" if ENDS[kind] == "done" else "failed"
    assert (step.status, call.status, call.name) == (how, how, step.name)
    assert (call.error is None) == (how == "completed")
    assert step.started_at is not None and step.completed_at is not None
    seconds = [(step.completed_at - step.started_at).total_seconds(), call.duration.total_seconds()]
    assert abs(call.started_at - step.started_at) < timedelta(seconds=1)
    if kind != "result":
        async with rows_of(app) as rows:
            sql = "SELECT seconds, status FROM [activity_readable] WHERE run_id = ?"
            [(read, said)] = await rows.fetch(sql, run.id)
            [(status,)] = await rows.fetch("SELECT status FROM [steps_readable] WHERE run_id = ?", run.id)
        assert (said, status) == (how, how)
        seconds.append(float(read))
    assert seconds == pytest.approx([HOUR] * len(seconds), abs=15)


async def test_a_race_and_all_that_ran_in_it_are_told_with_their_whole_span(make_app: MakeApp) -> None:
    _, run = await wait_an_hour(make_app, "race")
    assert await run.result(timeout=20) == "done"
    found = {step.kind: (step.status, step.lost_to) for step in await run.steps()}
    assert found == {"signal": ("completed", None), "sleep": ("cancelled", "paid"), "first": ("completed", None)}
    assert [call.duration.total_seconds() for call in await run.activity()] == pytest.approx([HOUR] * 3, abs=15)


async def test_what_is_open_has_no_end_yet(make_app: MakeApp) -> None:
    app = make_app(settings=RELEASES)
    run = await drained(app, declare(app, []), "sleep")
    [step] = await run.steps()
    assert (step.status, step.completed_at, await run.activity()) == ("waiting", None, [])
    async with rows_of(app) as rows:
        found = await rows.fetch("SELECT status, completed_at FROM [steps_readable] WHERE run_id = ?", run.id)
    assert [tuple(row) for row in found] == [("waiting", None)]


async def test_a_sleep_that_its_run_did_not_live_to_see_the_end_of_is_not_over(make_app: MakeApp) -> None:
    app = make_app(settings=RELEASES)
    run = await drained(app, declare(app, []), "sleep")
    await run.cancel()
    async with rows_of(app) as rows:  # its time comes long after the run has ended
        await rows.fetch("UPDATE [steps] SET output = '{\"for\": 1000}' WHERE run_id = ?", run.id)
        await rows.fetch("UPDATE [runs] SET completed_at = completed_at - 3600000 WHERE id = ?", run.id)
    info, [step] = await run.info(), await run.steps()
    assert (step.status, step.completed_at, await run.activity()) == ("cancelled", info.completed_at, [])


async def test_a_failure_stays_in_the_log_when_the_wait_is_made_again(make_app: MakeApp) -> None:
    app = make_app()
    waiter = calling(app, lambda ctx: ctx.wait_signal("paid", type=str, timeout=0.01), name="waiter")
    run = await drained(app, waiter)
    assert await run.status() == "failed"
    await run.retry()
    await run.signal("paid", "cash")
    assert await finished(app, run) == "cash"
    log = await run.activity()
    assert [(c.name, c.status, c.result) for c in log if c.position is not None] == [
        ("paid", "failed", None),
        ("paid", "completed", "cash"),
    ]


# -- promises: what tasks wait for that are woken many at a time


def promises(count: int) -> list[Promise[int]]:
    loop = asyncio.get_running_loop()
    return [Promise(loop) for _ in range(count)]


def keep(kept: list[Promise[int]]) -> None:
    loop = asyncio.get_running_loop()
    for value, promise in enumerate(kept):
        promise.keep(value)
    loop.call_soon(wake_all, loop, iter(kept))


@ON_BOTH
async def test_all_who_wait_go_on_in_one_turn_and_in_order() -> None:
    made, order = promises(3), list[int]()

    async def wait(promise: Promise[int]) -> None:
        order.append(await promise)

    tasks = [asyncio.create_task(wait(promise)) for promise in reversed(made)]
    await asyncio.sleep(0)
    keep(made)
    await asyncio.sleep(0)
    assert order == [0, 1, 2]
    await asyncio.gather(*tasks)


@ON_BOTH
async def test_everybody_who_asks_is_told() -> None:
    (promise,) = promises(1)
    told: list[int] = []

    def first(kept: Promise[int]) -> None:
        told.append(1)

    def second(kept: Promise[int]) -> None:
        told.append(2)

    def third(kept: Promise[int]) -> None:
        told.append(3)

    for function in (first, second, third):
        promise.add_done_callback(function)
    assert promise.remove_done_callback(second) == 1
    keep([promise])
    await asyncio.sleep(0.01)
    assert told == [1, 3]


@ON_BOTH
async def test_who_still_waits_is_told_of_a_failure_though_the_first_has_gone() -> None:
    promise, told = Promise[int](asyncio.get_running_loop()), list[object]()
    promise.add_done_callback(print)
    promise.add_done_callback(told.append)
    assert promise.remove_done_callback(print) == 1
    promise.fail(ValueError("no"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [promise]


@ON_BOTH
async def test_a_wait_with_a_limit_takes_it_for_a_future() -> None:
    kept, other = promises(2)
    asyncio.get_running_loop().call_soon(keep, [kept])
    done, pending = await asyncio.wait({kept, other}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    assert done == {kept}
    assert pending == {other}


@ON_BOTH
def test_who_ends_the_event_loop_leaves_the_others_to_be_woken() -> None:
    loop, order = asyncio.new_event_loop(), list[int]()
    made: list[Promise[int]] = [Promise(loop) for _ in range(3)]
    tasks: list[asyncio.Task[None]] = []

    async def wait(promise: Promise[int]) -> None:
        order.append(await promise)
        if order == [0]:
            raise SystemExit

    async def begin() -> None:
        tasks.extend(asyncio.create_task(wait(promise)) for promise in made)
        await asyncio.sleep(0)
        keep(made)
        await asyncio.sleep(10)

    try:
        with pytest.raises(SystemExit):
            loop.run_until_complete(begin())
        loop.run_until_complete(asyncio.wait(tasks))
        assert order == [0, 1, 2]
        assert isinstance(tasks[0].exception(), SystemExit)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
