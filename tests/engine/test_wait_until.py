"""``ctx.wait_until``: a check outside is made again and again; the slot is free in between, the answer is a record."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stepfast import Again, Backoff, Context, Done, RunCancelled, Settings, Stepfast
from stepfast.testing import Lab, crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    bystander,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
)
from tests.support.waiting import HARDLY_EVER, count, due, let_pass, reached, wake
from tests.support.workflows import calling

pytestmark = ON_SQLITE

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


def asking(app: Stepfast, check: Any, *args: Any, options: dict[str, Any] | None = None, **wait: Any) -> Any:
    """A workflow, with one attempt, that waits until the check is true: every hour, unless told otherwise."""

    @app.workflow(name="order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.options(**options or {}).wait_until(check, *args, **{"every": 3600, **wait})

    return order


@KINDS
async def test_the_slot_is_free_between_checks_and_the_wait_has_one_record(
    app: Stepfast, outside: Outside, calls: Calls, kind: str
) -> None:
    async def order(ctx: Context) -> Any:
        check = outside.ask_slowly if kind == "async" else outside.ask
        return await ctx.wait_until("ask", check, every=timedelta(minutes=5))

    workflow_of(app, kind, order)
    other = bystander(app)
    run = await app.start("order")
    for checks in (1, 2, 3):
        async with app.worker(concurrency=1):
            await eventually(lambda: calls["ask"] == checks)  # noqa: B023
            info = await reached(run, "waiting")
            await other()
        assert (info.waiting_for, info.worker) == ("check", None)
        assert info.due_at is not None and info.due_at - info.read_at <= timedelta(minutes=5)
        assert calls["ask"] == checks
        assert [(step.kind, step.status) for step in await run.steps()] == [("wait_until", "waiting")]
        await let_pass(app, run, 301)
    outside.answer = {"paid": True}
    assert await finished(app, run) == {"paid": True}
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

    assert await outcome(app, order) == "yes"
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
    assert await finished(app, run, gate) == "first"
    assert calls["ask"] == 1


@pytest.mark.parametrize("moment", [0, 2], ids=["released", "in memory"])
async def test_checks_go_on_by_themselves(make_app: MakeApp, outside: Outside, calls: Calls, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment, poll_interval=60, sweep_interval=60))
    order = asking(app, outside.ask, every=0.02)
    async with app.worker():
        run = await app.start(order)
        await eventually(lambda: calls["ask"] >= 5)
        outside.answer = True
        assert await run.result(timeout=PATIENCE) is True


@pytest.mark.parametrize("how", ["resume", "signal", "pause and resume"])
@ON_BOTH
async def test_the_next_check_is_made_due_at_once(make_app: MakeApp, outside: Outside, calls: Calls, how: str) -> None:
    app = make_app(settings=HARDLY_EVER)
    order = asking(app, outside.ask)
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


async def test_whatever_else_wakes_the_run_a_check_is_not_made_before_its_time(
    app: Stepfast, outside: Outside, calls: Calls
) -> None:
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(600)
        await ctx.sleep(600)

    @app.workflow
    async def order(ctx: Context) -> Any:
        answer, _ = await ctx.gather(ctx.wait_until(outside.ask, every=3600), ctx.branch(sleeper))
        return answer

    run = await drained(app, order)
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
    run = await drained(app, asking(app, outside.ask))
    first = await due(run)
    for _ in range(2):
        await wake(app, run)
        await app.drain()
        assert (calls["ask"], await due(run)) == (1, first)
    for checks, verb in ((2, partial(run.signal, "look")), (3, run.resume), (4, run.resume)):
        await verb()
        await app.drain()
        assert (await run.status(), calls["ask"]) == ("waiting", checks)


async def test_what_is_kept_between_checks_is_no_value_of_the_run(app: Stepfast, outside: Outside) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.set("state", "asking")
        return await ctx.wait_until(outside.ask, every=3600)

    run = await drained(app, order)
    assert await count(app, "run_values", run) == 2
    assert await run.values() == {"state": "asking"}


@ON_BOTH
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
    run = await drained(app, asking(app, outside.ask))
    await run.pause()
    await let_pass(app, run, 7200)
    await run.signal("look")
    await app.drain()
    assert (await run.status(), calls["ask"]) == ("paused", 1)
    outside.answer = "so"
    await run.resume()
    assert await finished(app, run) == "so"


# -- time is up ---------------------------------------------------------------------------------------------------


async def test_a_timeout_can_be_handled(app: Stepfast, outside: Outside, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return str(await ctx.wait_until(outside.ask, every=1800, timeout=3600))
        except TimeoutError as error:
            await ctx.step(gate.passing)
            return f"{type(error).__name__}: {error}"

    run = await drained(app, order)
    await let_pass(app, run, 1801)
    await app.drain()
    info = await run.info()
    assert info.due_at is not None and info.due_at - info.read_at < timedelta(seconds=1800)
    await let_pass(app, run, 1801)
    await interrupt(app, gate)
    outside.answer = "too late"
    assert await finished(app, run, gate) == "WaitTimeout: check 'ask' did not become true within 3600 s"
    assert calls["ask"] == 3
    assert await count(app, "steps", run) == 2


async def test_a_timeout_that_is_not_handled_fails_the_run_at_once(app: Stepfast, outside: Outside) -> None:
    order = calling(app, lambda ctx: ctx.wait_until(outside.ask, every=0.02, timeout=0.05))
    run = await drained(app, order)
    assert (await failure(run)).error_type == "WaitTimeout"
    assert (await run.info()).attempt == 1


@ON_BOTH
async def test_the_end_of_a_timeout_is_decided_once(app: Stepfast, outside: Outside) -> None:
    run = await drained(app, asking(app, outside.ask, every=86400, timeout=3600))
    first = await due(run)
    for _ in range(2):
        await run.resume()
        await app.drain()
        assert await due(run) == first


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

    run = await app.start(asking(app, reserve, timeout=timeout, options={"compensate": release}))
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


async def test_a_check_that_fails_is_retried_as_a_step_is(app: Stepfast, calls: Calls) -> None:
    async def flaky() -> Any:
        if calls.hit("flaky") in (2, 3):
            raise ConnectionError("busy")
        return calls["flaky"] if calls["flaky"] > 4 else None

    run = await drained(app, asking(app, flaky, every=0.01, options={"retries": 2, "backoff": AT_ONCE}))
    assert await run.result(timeout=PATIENCE) == 5
    assert [a.status for a in await run.activity()].count("failed") == 2


@pytest.mark.parametrize("every", [0.01, 3600])
@pytest.mark.parametrize("pause", [0, 60])
async def test_each_check_has_its_own_retries(app: Stepfast, calls: Calls, every: float, pause: float) -> None:
    """Also if the run was released in between: after an answer, failures are counted again."""

    async def flaky() -> Any:
        if calls.hit("flaky") % 2 == 1:
            raise ConnectionError("busy")
        return "so" if calls["flaky"] == 8 else None

    once = {"retries": 1, "backoff": Backoff(base=pause, jitter=False)}
    run = await app.start(asking(app, flaky, every=every, options=once))
    for _ in range(8):
        await app.drain()
        await let_pass(app, run, 3601)
    assert await run.result(timeout=PATIENCE) == "so"
    assert [a.status for a in await run.activity()].count("failed") == 4


@ON_BOTH
async def test_failures_before_an_answer_stay_forgiven_when_the_worker_dies(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def flaky() -> Any:
        number = calls.hit("flaky")
        if number == 3:
            await gate.passing()
        if number in (1, 4):
            raise ConnectionError("busy")
        return "so" if number == 5 else None

    run = await replayed(app, gate, asking(app, flaky, every=0.01, options={"retries": 1, "backoff": AT_ONCE}))
    assert await run.result(timeout=PATIENCE) == "so"
    assert calls["flaky"] == 5


async def test_the_failures_of_one_check_are_counted_together_over_releases(app: Stepfast, calls: Calls) -> None:
    async def failing() -> None:
        if calls.hit("failing") != 2:
            raise ConnectionError("busy")

    once = {"retries": 1, "backoff": Backoff(base=60, jitter=False)}
    run = await app.start(asking(app, failing, options=once))
    for _ in range(4):
        await app.drain()
        await let_pass(app, run, 3601)
    await failure(run, "ConnectionError")
    assert calls["failing"] == 4


async def test_every_check_is_a_step_inside_which_the_context_is_refused(app: Stepfast, calls: Calls) -> None:
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

    run = await drained(app, order)
    assert await run.result(timeout=PATIENCE) is True
    assert len(refused) == 3 and all("from inside" in each for each in refused)
    assert await count(app, "steps", run) == 1


async def test_a_check_with_a_timeout_of_its_own_is_given_up(app: Stepfast, calls: Calls) -> None:
    async def check() -> bool:
        if calls.hit("check") == 2:
            await asyncio.Event().wait()
        return calls["check"] == 3

    options = {"timeout": 0.1, "retries": 1, "backoff": AT_ONCE}
    assert await outcome(app, asking(app, check, every=0.01, options=options)) is True


# -- the rest -----------------------------------------------------------------------------------------------------


async def test_arguments_are_given_to_each_check(app: Stepfast, calls: Calls) -> None:
    def check(name: str, wanted: int) -> bool:
        return calls.hit(name) >= wanted

    assert await outcome(app, asking(app, check, "x", 3, every=0.01)) is True
    assert calls["x"] == 3


async def test_a_check_may_have_a_label(app: Stepfast) -> None:
    run = await drained(app, asking(app, "is it so?", lambda: 1))
    assert await run.result(timeout=PATIENCE) == 1
    assert [s.name for s in await run.steps()] == ["is it so?"]


async def test_a_hundred_pollers_share_a_slot(app: Stepfast, calls: Calls) -> None:
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


@ON_BOTH
async def test_an_open_wait_is_listed_once_however_long_its_check_takes(make_app: MakeApp) -> None:
    """A check that takes long is listed as running while it is made. Between two checks, and while the run is paused or
    ready, it is a wait, and still one."""
    app = make_app(settings=Settings(inline_wait=0, running_after=0.05, poll_interval=0.05))
    first, second = gates = [Gate(), Gate()]

    async def check() -> bool:
        await gates[first.arrivals].passing()
        return False

    async def listed() -> list[tuple[str, str]]:
        return [(step.name, step.status) for step in await run.steps()]

    async def runs() -> bool:
        return await listed() == [("check", "running")]

    run = await app.start(asking(app, check))
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


# -- answers: again, and done -------------------------------------------------------------------------------------


@dataclass
class Cursor:
    page: int


class Base64:
    """A codec under which no payload can be read as it is."""

    def encode(self, data: bytes) -> bytes:
        return base64.b64encode(data)

    def decode(self, data: bytes) -> bytes:
        return base64.b64decode(data)


@KINDS
@ON_BOTH
async def test_a_state_is_given_to_the_next_check_and_the_pauses_grow(make_app: MakeApp, kind: str) -> None:
    """Each check is made by another worker: the state, and how many there were, are stored."""
    app, seen = make_app(codec=Base64()), list[tuple[Cursor, str]]()

    def check(cursor: Cursor, name: str) -> Again | Done[list[int]] | None:
        seen.append((cursor, name))
        if cursor.page == 3:
            return Done([]) if len(seen) > 5 else None  # not yet, with the same state
        return Again(Cursor(cursor.page + 1), after=7 if cursor.page == 2 else None)

    async def order(ctx: Context) -> Any:
        return await ctx.wait_until(check, Cursor(1), "x", every=Backoff(10, factor=2, max=60, jitter=False))

    run = await app.start(workflow_of(app, kind, order))
    pauses = []
    for _ in range(5):
        await app.drain()
        info = await run.info()
        assert info.due_at is not None
        pauses.append(round((info.due_at - info.read_at).total_seconds()))
        await let_pass(app, run, 61)
    assert await finished(app, run) == []  # which is not true, and the end all the same
    assert pauses == [10, 7, 40, 60, 60]
    assert seen == [(Cursor(page), "x") for page in (1, 2, 3, 3, 3, 3)]
    [step] = await run.steps()
    [line] = await run.activity()
    assert (step.kind, step.output, line.parameters) == ("wait_until", [], {"cursor": {"page": 1}, "name": "x"})


async def test_a_state_outlives_crashes_and_is_undone_as_it_was_given(app: Stepfast) -> None:
    seen, undone = list[int](), list[tuple[str, int]]()

    async def check(page: int) -> Again | Done[str]:
        seen.append(page)
        return Again(page + 1) if page < 4 else Done("so")

    def undo(output: str, page: int) -> None:
        undone.append((output, page))

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).wait_until(check, 1, every=30, max_checks=4)
        raise ValueError("no")

    report = await crash_everywhere(app, order)
    assert (report.status, report.crashes > 10) == ("compensated", True)
    assert set(undone) == {("so", 1)}
    # Each run asks once with the first page, and again only where its worker died before the next one was stored.
    assert report.crashes <= seen.count(1) < 1.5 * report.crashes


async def test_a_check_that_fails_is_made_again_with_its_state(app: Stepfast, calls: Calls) -> None:
    def check(page: int = 0) -> Again | Done[int]:
        if calls.hit(f"page {page}") == 1:
            raise ConnectionError("busy")
        return Again(page + 1) if page < 2 else Done(page)

    options = {"retries": 1, "backoff": Backoff(base=60, jitter=False)}
    run = await app.start(asking(app, check, options=options, max_checks=3))
    for _ in range(6):
        await app.drain()
        await let_pass(app, run, 3601)
    assert await run.result(timeout=PATIENCE) == 2
    assert calls == {"page 0": 2, "page 1": 2, "page 2": 2}


@ON_BOTH
async def test_no_more_checks_are_made_than_allowed(app: Stepfast, outside: Outside, calls: Calls) -> None:
    """Counted over releases; in a new attempt anew, as its time is."""

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        try:
            await ctx.wait_until(outside.ask, every=60, max_checks=3)
        except TimeoutError as error:
            raise ValueError(str(error)) from error

    run = await app.start(order)
    for _ in range(8):
        await app.drain()
        await let_pass(app, run, 61)
    await failure(run, "check 'ask' did not become true within 3 checks")
    assert calls["ask"] == 6


async def test_a_run_that_is_cancelled_between_checks_makes_no_other(app: Stepfast) -> None:
    seen = []

    def check(page: int) -> Again:
        seen.append(page)
        return Again(page + 1)

    order = asking(app, check, 1, every=Backoff(base=60))
    async with Lab(app) as lab:
        run = await lab.start(order)
        await lab.settle()
        await lab.advance(150)
        await run.cancel()
        await lab.advance(3600)
        assert (await run.status(), seen) == ("cancelled", [1, 2])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: Again(2, after="soon"), "after of Again must be zero or more seconds"),  # type: ignore[arg-type]
        (lambda: Again("seven"), "the state of wait_until 'check' does not fit its annotation"),
        (lambda: Again(object()), "the state of wait_until 'check' cannot be stored as JSON"),
    ],
)
async def test_an_answer_that_cannot_be_kept_is_refused(app: Stepfast, answer: Any, message: str) -> None:
    def check(page: int) -> Any:
        return answer()

    run = await drained(app, asking(app, check, 1, options={"retries": 3}))
    assert message in str(await failure(run))
