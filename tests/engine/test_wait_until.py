"""``ctx.wait_until``: something outside is asked again and again; the slot is free meanwhile, and only the final answer
is a record."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    SyncContext,
)
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt
from tests.support.waiting import HARDLY_EVER, count, due, let_pass, reached, wake

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


class Outside:
    """Something in the world that the workflow asks about."""

    def __init__(self, calls: Calls) -> None:
        self.answer: Any = None
        self._calls = calls

    def ask(self) -> Any:
        self._calls.hit("ask")
        return self.answer

    async def ask_slowly(self) -> Any:
        await asyncio.sleep(0)
        return self.ask()


@pytest.fixture
def outside(calls: Calls) -> Outside:
    return Outside(calls)


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_the_slot_is_free_between_checks_and_has_one_record(
    app: Stepfast, outside: Outside, calls: Calls, kind: str
) -> None:
    """A worker with one slot does other work between two checks."""
    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> Any:
            return await ctx.wait_until(outside.ask_slowly, every=timedelta(minutes=5))
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> Any:
            return ctx.wait_until(outside.ask, every=timedelta(minutes=5))

    @app.task
    async def other() -> str:
        return "meanwhile"

    run = await app.start("order")
    for checks in (1, 2, 3):
        meanwhile = await app.start(other)
        await app.drain(concurrency=1)
        assert await meanwhile.result(timeout=PATIENCE) == "meanwhile"
        info = await run.info()
        assert (info.status, info.waiting_for, info.worker) == ("waiting", "check", None)
        assert info.due_at is not None and info.due_at - info.read_at <= timedelta(minutes=5)
        assert calls["ask"] == checks
        assert [(step.kind, step.status) for step in await run.steps()] == [("wait_until", "waiting")]
        await let_pass(app, run, 301)
    outside.answer = {"paid": True}
    await app.drain()
    assert await run.result(timeout=PATIENCE) == {"paid": True}
    assert calls["ask"] == 4
    assert await count(app, "steps", run) == 1
    [step] = await run.steps()
    assert (step.kind, step.status, step.output) == ("wait_until", "completed", {"paid": True})


async def test_what_is_so_already_is_not_waited_for(app: Stepfast, outside: Outside, calls: Calls) -> None:
    outside.answer = "yes"

    @app.workflow
    async def order(ctx: Context) -> Any:
        calls.hit("body")
        return await ctx.wait_until(outside.ask, every=3600)

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "yes"
    assert calls == {"body": 1, "ask": 1}


async def test_the_answer_is_not_asked_for_again_on_replay(app: Stepfast, outside: Outside, calls: Calls) -> None:
    gate = Gate()
    outside.answer = "first"

    @app.workflow
    async def order(ctx: Context) -> Any:
        answer = await ctx.wait_until(outside.ask)
        await ctx.step(gate.passing)
        return answer

    run = await app.start(order)
    await interrupt(app, gate)
    outside.answer = "second"
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "first"
    assert calls["ask"] == 1


async def test_checks_go_on_by_themselves(make_app: MakeApp, outside: Outside, calls: Calls) -> None:
    """In memory or released, nobody has to poke it."""
    for moment in (0, 2):
        app = make_app(settings=Settings(inline_wait=moment, poll_interval=60, sweep_interval=60))
        calls.clear()
        outside.answer = None

        @app.workflow(name="order")
        async def order(ctx: Context) -> Any:
            return await ctx.wait_until(outside.ask, every=0.02)

        async with app.worker():
            run = await app.start("order")
            await eventually(lambda: calls["ask"] >= 5)
            outside.answer = True
            assert await run.result(timeout=PATIENCE) is True


@pytest.mark.parametrize("how", ["resume", "signal", "pause and resume"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_the_next_check_is_made_due_at_once(make_app: MakeApp, outside: Outside, calls: Calls, how: str) -> None:
    """By whoever knows that it is so now."""
    app = make_app(settings=HARDLY_EVER)

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(outside.ask, every=3600)

    async with app.worker():
        run = await app.start(order)
        await reached(run, "waiting")
        outside.answer = "now"
        if how == "signal":
            await run.signal("look")
        else:
            if how == "pause and resume":
                await run.pause()
            await run.resume()
        assert await run.result(timeout=PATIENCE) == "now"
    assert calls["ask"] == 2


async def test_a_check_made_too_early_is_followed_by_another_wait(
    app: Stepfast, outside: Outside, calls: Calls
) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(outside.ask, every=3600)

    run = await app.start(order)
    await app.drain()
    for checks in (2, 3):
        await run.resume()
        await app.drain()
        assert (await run.status(), calls["ask"]) == ("waiting", checks)


async def test_whatever_else_wakes_the_run_a_check_is_not_made_before_its_time(
    app: Stepfast, outside: Outside, calls: Calls
) -> None:
    """Another branch sleeps and wakes; the other side is asked no more often for that."""

    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(600)
        await ctx.sleep(600)

    @app.workflow
    async def order(ctx: Context) -> Any:
        answer, _ = await ctx.gather(ctx.wait_until(outside.ask, every=3600), ctx.branch(sleeper))
        return answer

    run = await app.start(order)
    await app.drain()
    for _ in range(2):
        await let_pass(app, run, 601)
        await app.drain()
        assert calls["ask"] == 1
    assert (await run.info()).waiting_for == "check"
    await let_pass(app, run, 2399)
    outside.answer = "so"
    await app.drain()
    assert (await run.result(timeout=PATIENCE), calls["ask"]) == ("so", 2)


async def test_a_run_woken_too_early_waits_for_the_same_time(app: Stepfast, outside: Outside, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(outside.ask, every=3600)

    run = await app.start(order)
    await app.drain()
    first = await due(run)
    for _ in range(2):
        await wake(app, run)
        await app.drain()
        assert (calls["ask"], await due(run)) == (1, first)
    await run.signal("look")
    await app.drain()
    assert calls["ask"] == 2


async def test_what_is_kept_between_checks_is_no_value_of_the_run(app: Stepfast, outside: Outside) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.set("state", "asking")
        return await ctx.wait_until(outside.ask, every=3600)

    run = await app.start(order)
    await app.drain()
    assert await count(app, "run_values", run) == 2
    assert await run.values() == {"state": "asking"}


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_signal_that_comes_during_a_check_makes_the_next_one_due(
    make_app: MakeApp, outside: Outside, calls: Calls
) -> None:
    """Rule 6: the check may just have missed what the signal tells of. Another branch takes the signal meanwhile."""
    app = make_app(settings=HARDLY_EVER)
    gate = Gate()

    async def check() -> Any:
        answer = outside.ask()
        await gate.passing()
        return answer

    async def listener(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    @app.workflow
    async def order(ctx: Context) -> Any:
        answer, _ = await ctx.gather(ctx.wait_until(check, every=3600), ctx.branch(listener))
        return answer

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        outside.answer = "so"
        await run.signal("go")
        await eventually(run.steps)  # it was taken
        gate.open()
        assert await run.result(timeout=PATIENCE) == "so"
    assert calls["ask"] == 2


async def test_a_paused_check_is_not_made(app: Stepfast, outside: Outside, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(outside.ask, every=3600)

    run = await app.start(order)
    await app.drain()
    await run.pause()
    await let_pass(app, run, 7200)
    await run.signal("look")
    await app.drain()
    assert (await run.status(), calls["ask"]) == ("paused", 1)
    outside.answer = "so"
    await run.resume()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "so"


# -- time is up ---------------------------------------------------------------------------------------------------


async def test_a_timeout_can_be_handled(app: Stepfast, outside: Outside, calls: Calls) -> None:
    """WaitTimeout is a TimeoutError, and replays as one; the last check is made when the time is up."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return str(await ctx.wait_until(outside.ask, every=1800, timeout=3600))
        except TimeoutError as error:
            await ctx.step(gate.passing)
            return f"{type(error).__name__}: {error}"

    run = await app.start(order)
    await app.drain()
    await let_pass(app, run, 1801)
    await app.drain()
    info = await run.info()
    assert info.due_at is not None and info.due_at - info.read_at < timedelta(seconds=1800)
    await let_pass(app, run, 1801)
    await interrupt(app, gate)
    outside.answer = "too late"
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "WaitTimeout: check 'ask' did not become true within 3600 s"
    assert calls["ask"] == 3
    assert await count(app, "steps", run) == 2


async def test_a_timeout_that_nobody_handles_fails_the_run_at_once(app: Stepfast, outside: Outside) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_until(outside.ask, every=0.02, timeout=0.05)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=PATIENCE)
    assert caught.value.error_type == "WaitTimeout"
    assert (await run.info()).attempt == 1


@pytest.mark.enough_on("postgres", "sqlite")
async def test_the_end_of_a_timeout_is_decided_once(app: Stepfast, outside: Outside) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_until(outside.ask, every=86400, timeout=3600)

    run = await app.start(order)
    await app.drain()
    due_at = (await run.info()).due_at
    for _ in range(2):
        await run.resume()
        await app.drain()
        assert (await run.info()).due_at == due_at


@pytest.mark.parametrize("timeout", [None, 3600])
async def test_an_answer_is_recorded_before_an_operator_is_obeyed(
    app: Stepfast, calls: Calls, timeout: float | None
) -> None:
    """Also the first one, of a wait whose end has not been decided before: what the check has done can be undone."""
    gate = Gate()

    async def release(place: str) -> None:
        calls.hit(f"release {place}")

    async def reserve() -> str:
        await gate.passing()
        return f"place {calls.hit('reserve')}"

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=release).wait_until(reserve, timeout=timeout)

    run = await app.start(order)
    async with app.worker() as worker:
        await gate.reached()
        await run.cancel()
        await eventually(lambda: worker.duties.executor.running[run.id].asked == "cancel")
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    assert calls == {"reserve": 1, "release place 1": 1}
    assert await run.status() == "compensated"


# -- checks that fail ---------------------------------------------------------------------------------------------


async def test_a_check_that_fails_is_retried_as_a_step_is(app: Stepfast, outside: Outside, calls: Calls) -> None:
    """``ctx.options(retries=…)`` bounds the failures of each check; the answer comes after them."""

    async def flaky() -> Any:
        if calls.hit("flaky") in (2, 3):
            raise ConnectionError("busy")
        return calls["flaky"] if calls["flaky"] > 4 else None

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.options(retries=2, backoff=AT_ONCE).wait_until(flaky, every=0.01)

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 5
    assert [a.status for a in await run.activity()].count("failed") == 2


@pytest.mark.parametrize("every", [0.01, 3600])
@pytest.mark.parametrize("pause", [0, 60])
async def test_each_check_has_its_own_retries(app: Stepfast, calls: Calls, every: float, pause: float) -> None:
    """Also if the run was released meanwhile: after an answer, failures are counted anew."""

    async def flaky() -> Any:
        if calls.hit("flaky") % 2 == 1:
            raise ConnectionError("busy")
        return "so" if calls["flaky"] == 8 else None

    backoff = Backoff(base=pause, jitter=False)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.options(retries=1, backoff=backoff).wait_until(flaky, every=every)

    run = await app.start(order)
    for _ in range(8):
        await app.drain()
        await let_pass(app, run, 3601)
    assert await run.result(timeout=PATIENCE) == "so"
    assert [a.status for a in await run.activity()].count("failed") == 4


@pytest.mark.enough_on("postgres", "sqlite")
async def test_failures_before_an_answer_stay_forgiven_when_the_worker_dies(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def flaky() -> Any:
        number = calls.hit("flaky")
        if number == 3:
            await gate.passing()
        if number in (1, 4):
            raise ConnectionError("busy")
        return "so" if number == 5 else None

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.options(retries=1, backoff=AT_ONCE).wait_until(flaky, every=0.01)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "so"
    assert calls["flaky"] == 5


async def test_the_failures_of_one_check_are_counted_together(app: Stepfast, calls: Calls) -> None:
    """Over releases too: an earlier answer gives no more retries than one check has."""

    async def failing() -> None:
        if calls.hit("failing") != 2:
            raise ConnectionError("busy")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1, backoff=Backoff(base=60, jitter=False)).wait_until(failing, every=3600)

    run = await app.start(order)
    for _ in range(4):
        await app.drain()
        await let_pass(app, run, 3601)
    with pytest.raises(RunFailed, match="ConnectionError"):
        await run.result(timeout=PATIENCE)
    assert calls["failing"] == 4


async def test_a_check_that_fails_for_good_fails_the_attempt(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(lambda_that_fails, every=3600)

    def lambda_that_fails() -> None:
        raise ConnectionError("no")

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="ConnectionError"):
        await run.result(timeout=PATIENCE)


async def test_every_check_is_a_step_inside_which_the_context_is_refused(app: Stepfast, calls: Calls) -> None:
    """The second check as well as the first: a record inside could not be replayed."""
    refused: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> bool:
        keys: list[str] = []

        async def check() -> bool:
            keys.append(ctx.step_key)
            try:
                await ctx.sleep(0)
            except Exception as error:
                refused.append(str(error))
            return calls.hit("check") == 3

        done = await ctx.wait_until(check, every=0.01)
        assert len(set(keys)) == 1
        return done

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) is True
    assert len(refused) == 3 and all("from inside" in each for each in refused)
    assert await count(app, "steps", run) == 1


async def test_a_check_with_a_timeout_of_its_own_is_given_up(app: Stepfast, calls: Calls) -> None:
    """``ctx.options(timeout=…)`` is that of one check."""

    async def check() -> bool:
        if calls.hit("check") == 2:
            await asyncio.Event().wait()
        return calls["check"] == 3

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> bool:
        return await ctx.options(timeout=0.1, retries=1, backoff=AT_ONCE).wait_until(check, every=0.01)

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) is True


# -- the rest -----------------------------------------------------------------------------------------------------


async def test_a_wait_given_up_by_the_workflow_replays_so(app: Stepfast, outside: Outside, calls: Calls) -> None:
    """Rule 19."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.wait_until(outside.ask_slowly, every=1)
            way = "so"
        except TimeoutError:
            way = "given up"
        await ctx.step(gate.passing)
        return way

    run = await app.start(order)
    await interrupt(app, gate)
    outside.answer = True
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "given up"
    assert calls["ask"] == 1


async def test_arguments_are_given_to_each_check(app: Stepfast, calls: Calls) -> None:
    def check(name: str, wanted: int) -> bool:
        return calls.hit(name) >= wanted

    @app.workflow
    async def order(ctx: Context) -> bool:
        return await ctx.wait_until(check, "x", 3, every=0.01)

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) is True
    assert calls["x"] == 3


async def test_a_check_may_have_a_label(app: Stepfast) -> None:
    """A lambda needs one."""

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until("is it so?", lambda: 1, every=1)

    run = await app.start(order)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert [s.name for s in await run.steps()] == ["is it so?"]


async def test_a_span_that_makes_no_sense_is_refused(app: Stepfast, outside: Outside) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match="every"):
            await ctx.wait_until(outside.ask, every=-1)
        with pytest.raises(ConfigurationError, match="timeout"):
            await ctx.wait_until(outside.ask, timeout=timedelta(seconds=-1))

    run = await app.start(order)
    await app.drain()
    await run.result(timeout=PATIENCE)


async def test_a_hundred_pollers_share_a_slot(app: Stepfast, calls: Calls) -> None:
    """Waits are rows."""

    def check(number: int) -> int | None:
        return calls[str(number)] if calls.hit(str(number)) > 1 else None

    @app.workflow
    async def order(ctx: Context, number: int) -> Any:
        return await ctx.wait_until(check, number, every=3600)

    runs = await app.start_many(order, list(range(100)))
    await app.drain(concurrency=1)
    assert len(await app.runs(status="waiting", limit=1000)) == 100
    for run in runs:
        await run.resume()
    await app.drain(concurrency=2)
    assert [await run.result(timeout=PATIENCE) for run in runs] == [2] * 100


@pytest.mark.enough_on("postgres", "sqlite")
async def test_an_open_wait_is_listed_once_however_long_its_check_takes(make_app: MakeApp) -> None:
    """A check that takes long is listed as running while it is made. Between two checks, and while the run is paused or
    ready, it is a wait, and still one."""
    app = make_app(settings=Settings(inline_wait=0, running_after=0.05, poll_interval=0.05))
    first, second = gates = [Gate(), Gate()]

    async def check() -> bool:
        await gates[first.arrivals].passing()
        return False

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(check, every=3600)

    async def listed() -> list[tuple[str, str]]:
        return [(step.name, step.status) for step in await run.steps()]

    async def runs() -> bool:
        return await listed() == [("check", "running")]

    run = await app.start(order)
    async with app.worker():
        await first.reached()
        await eventually(runs)
        first.open()
        await reached(run, "waiting")
        assert await listed() == [("check", "waiting")]
        await run.resume()
        await second.reached()
        await eventually(runs)
        await run.pause()
        assert await listed() == [("check", "running")]
        second.open()
        await reached(run, "paused")
    assert [(step.name, step.kind, step.status) for step in await run.steps()] == [("check", "wait_until", "waiting")]
    await run.resume()
    assert (await run.status(), await listed()) == ("queued", [("check", "waiting")])
