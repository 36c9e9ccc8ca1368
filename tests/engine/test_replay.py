"""Replay: a worker goes away in the middle, and the next one continues from the last record."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stepfast import Backoff, Context, Settings, Stepfast
from stepfast.engine.history import History, Ledger, as_record
from stepfast.engine.host import Promise
from stepfast.errors import LeaseLost
from stepfast.model.records import StepDone, StepRecord
from stepfast.worker.attempt import HistoryCache
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.crashing import dying_worker, outcome_of
from tests.support.engine import (
    Calls,
    Gate,
    ThreadGate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
    stopped_at_once,
)
from tests.support.waiting import reached
from tests.support.workflows import calling

pytestmark = ON_SQLITE


@pytest.mark.parametrize("done", range(4))
async def test_a_crash_after_step_k_never_runs_the_first_k_again(app: Stepfast, calls: Calls, done: int) -> None:
    gate = Gate()

    async def work(number: int) -> int:
        calls.hit(f"step {number}")
        if number == done:
            await gate.passing()
        return number * 10

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return [await ctx.step(work, n) for n in range(4)]

    run = await app.start(order)
    await interrupt(app, gate)
    assert await run.status() == "queued"
    assert len(await run.steps()) == done
    assert await finished(app, run, gate) == [0, 10, 20, 30]
    # the step that was under way runs again, the others do not.
    assert calls == {f"step {n}": 2 if n == done else 1 for n in range(4)}


async def test_a_finished_run_is_not_executed_again(app: Stepfast, calls: Calls) -> None:

    @app.workflow
    async def order(ctx: Context) -> int:
        return calls.hit("order")

    run = await drained(app, order)
    assert await finished(app, run) == 1
    assert calls["order"] == 1


async def test_going_on_on_another_worker_uses_no_attempt_and_no_loss(app: Stepfast) -> None:
    gate = Gate()
    attempts: list[int] = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        await ctx.step("gate", gate.passing)
        return "done"

    run = await app.start(order)
    for _ in range(3):
        await interrupt(app, gate)
    assert await finished(app, run, gate) == "done"
    info = await run.info()
    assert (info.attempt, info.losses, attempts) == (1, 0, [1, 1, 1, 1])


@KINDS
async def test_another_process_continues_with_the_records(make_app: MakeApp, calls: Calls, kind: str) -> None:
    """Rule 30: also a plain def."""
    gate = Gate()

    async def order(ctx: Context) -> list[str]:
        first = await ctx.step("first", lambda: f"by call {calls.hit('first')}")
        await ctx.step("gate", gate.passing)
        return [first, await ctx.step("last", lambda: f"end {calls.hit('last')}")]

    one, other = make_app(), make_app()
    for app in (one, other):
        workflow_of(app, kind, order)
    run = await one.start("order")
    await interrupt(one, gate)
    assert await finished(other, run, gate) == ["by call 1", "end 1"]
    assert calls == {"first": 1, "last": 1}


@pytest.mark.parametrize("bound", [{"history_records": 5}, {"history_bytes": 2000}], ids=str)
async def test_a_long_history_is_replayed_whole(make_app: MakeApp, calls: Calls, bound: dict[str, Any]) -> None:
    """Rule 33: a claim brings only the first records along; the rest is fetched."""
    app, gate = make_app(settings=Settings(**bound)), Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        parts = [await ctx.step("page", lambda n: str(n % 10) * (calls.hit("page") and 900), n) for n in range(30)]
        await ctx.step(gate.passing)
        return len("".join(parts))

    assert await (await replayed(app, gate, order)).result() == 30 * 900
    assert calls["page"] == 30


async def test_parallel_steps_that_were_recorded_are_kept(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def work(name: str) -> str:
        calls.hit(name)
        if name == "slow":
            await gate.passing()
        return name

    order = calling(app, lambda ctx: asyncio.gather(ctx.step(work, "slow"), ctx.step(work, "quick")))
    run = await app.start(order)

    async def one_recorded() -> bool:
        return [s.output for s in await run.steps() if s.status == "completed"] == ["quick"]

    async with stopped_at_once(app):
        await gate.reached()
        await eventually(one_recorded)
    assert await finished(app, run, gate) == ["slow", "quick"]
    assert calls == {"slow": 2, "quick": 1}


async def test_positions_are_taken_when_called_not_when_awaited(app: Stepfast, calls: Calls) -> None:
    """Rule 18: so the order of awaiting is free, also on replay."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        one = ctx.step("one", lambda: f"one {calls.hit('one')}")
        two = ctx.step("two", lambda: f"two {calls.hit('two')}")
        results = [await two, await one]
        await ctx.step(gate.passing)
        return results

    run = await replayed(app, gate, order)
    assert await run.result() == ["two 1", "one 1"]
    assert [(s.position, s.name) for s in await run.steps()] == [(1, "two"), (0, "one"), (2, "passing")]


async def test_recorded_steps_are_kept_by_a_new_attempt(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=3, backoff=Backoff(base=0, jitter=False))
    async def order(ctx: Context) -> int:
        value = await ctx.step("once", lambda: calls.hit("once"))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return value * 100 + ctx.attempt

    assert await outcome(app, order) == 103
    assert calls["once"] == 1


@pytest.mark.parametrize("how", ["except BaseException", "gather(return_exceptions=True)"])
async def test_the_stop_of_a_worker_cannot_be_swallowed_by_code(app: Stepfast, calls: Calls, how: str) -> None:
    """Rule 20: what a handler returns, raises or calls after its run was given back is discarded."""
    gate = Gate()
    refusals: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            if how == "except BaseException":
                await ctx.step("gate", gate.passing)
            else:
                await asyncio.gather(ctx.step("gate", gate.passing), return_exceptions=True)
        except BaseException:
            calls.hit("swallowed")
        try:
            await ctx.step("after", lambda: calls.hit("after"))
        except BaseException as error:
            refusals.append(type(error).__name__)
        return f"swallowed {calls['swallowed']}, refused {len(refusals)}"

    run = await app.start(order)
    await interrupt(app, gate)
    assert refusals == ["AttemptEnded"]
    assert (calls["swallowed"], calls["after"], await run.status()) == (1, 0, "queued")
    assert await finished(app, run, gate) == "swallowed 1, refused 1"
    assert calls["after"] == 1


async def test_a_blocking_step_left_behind_records_nothing(app: Stepfast, calls: Calls) -> None:
    """Rule 1: its thread cannot be stopped, but what it returns later is refused."""
    gate = ThreadGate()

    def work() -> str:
        number = calls.hit("work")
        if number == 1:
            gate.passing()
        calls.hit("finished")
        return f"call {number}"

    order = calling(app, lambda ctx: ctx.step(work))
    run = await app.start(order)
    async with stopped_at_once(app):
        await gate.reached()
    assert await finished(app, run) == "call 2"
    gate.open()
    await eventually(lambda: calls["finished"] == 2)
    await app.drain()
    assert [s.output for s in await run.steps()] == ["call 2"]


async def test_a_handler_that_raises_fails_its_run_with_the_error(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        raise LookupError("no such customer")

    run = await drained(app, order)
    error = await failure(run)
    assert (error.error_type, error.message, error.reason) == ("LookupError", "no such customer", "code")
    assert error.run_id == run.id
    assert error.traceback is not None and "raise LookupError" in error.traceback


async def test_a_cancelled_call_is_remembered_also_if_the_run_is_released_before_its_commit(
    make_app: MakeApp, calls: Calls
) -> None:
    """Cancelled twice, a call does not wait for its record; and a wait for a signal does not wait for anything."""
    app = make_app(settings=Settings(inline_wait=0))

    async def hang() -> None:
        calls.hit("hang")
        await asyncio.Event().wait()

    @app.workflow
    async def given_up(ctx: Context) -> str:
        step = asyncio.ensure_future(ctx.step(hang))
        for _ in range(50):  # turns of the event loop, in which it begins if it is called
            await asyncio.sleep(0)
        for _ in range(2):
            step.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([step])
        calls.hit("body")
        await ctx.wait_signal("on")
        return "done"

    run = await app.start(given_up)
    async with app.worker():
        await reached(run, "waiting")
        await run.signal("on")
        assert await run.result(timeout=20) == "done"
    assert calls == {"hang": 1, "body": 2}


async def test_what_lost_a_race_that_was_over_when_the_worker_died_is_not_remembered_as_open(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker records which has won, and that what the others had begun was given up."""
    remembered: list[list[StepRecord]] = []
    monkeypatch.setattr(HistoryCache, "put", lambda self, run_id, claim, records, _: remembered.append(records))
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def raced(ctx: Context) -> str:
        winner, _ = await ctx.first(late=ctx.sleep(3600), quick=ctx.step("quick", lambda: "quick"))
        await ctx.wait_signal("on")
        return winner

    run = await app.start(raced)
    async with dying_worker(app, outcome_of("quick"), written=True) as crash:
        await crash.happened()
    async with app.worker():
        await reached(run, "waiting")
        stored = {(step.position, step.status) for step in await run.steps()}
        assert all({(each.position, each.status) for each in records} == stored for records in remembered)
        await run.signal("on")
        assert await run.result(timeout=20) == "quick"
    assert (0, "cancelled") in stored


def test_what_a_claim_is_asked_with_is_what_is_remembered() -> None:
    """Rule 61: the claims that the database is told of, and the records of these runs, are one structure."""
    cache = HistoryCache(4000)
    for number in range(30):
        cache.put(f"run {number}", number, [a_record(0, "x" * (number * 7 % 300))], committed())
    assert 0 < len(cache) < 30
    cache.drop("run 29")
    for run_id, claim in dict(cache).items():
        assert cache.get(run_id) == claim
        assert cache.take(run_id, claim + 1) is not None
        assert run_id not in cache
    assert not cache and cache.take("run 29", 30) is None
    cache.put("run 1", 1, [], committed())
    cache.clear()
    assert not cache and cache.get("run 1") is None


@pytest.mark.parametrize("how", ["under way", "refused", "committed"])
def test_what_was_to_go_out_with_a_release_is_remembered_once_that_is_committed(how: str) -> None:
    """A worker that was frozen beyond its lease may claim a run that others have taken from it before it hears that its
    release was refused."""
    parting: Promise[int] = Promise(cast(Any, None))
    if how == "refused":
        parting.fail(LeaseLost("taken away"))
    elif how == "committed":
        parting.keep(1)
    cache = HistoryCache(4000)
    cache.put("run", 1, [a_record(0, "1")], parting)
    assert (cache.take("run", 2) is not None) == (how == "committed")
    assert not cache


def committed() -> Promise[int]:
    parting: Promise[int] = Promise(cast(Any, None))
    parting.keep(1)
    return parting


def test_what_is_committed_after_the_release_is_believed_to_be_stored() -> None:
    """Rule 61: what goes out with the release is remembered apart from what is stored, which alone is counted."""
    ledger = Ledger(History([a_record(0, "1")]), 100)
    ledger.add(an_entry(1, "completed"), 1)
    ledger.leave([(an_entry(2, "waiting"), 2), (an_entry(3, "waiting"), 2)])
    assert ledger.believed() == 4
    ledger.add(an_entry(3, "completed"), 3)
    assert ledger.believed() == 6
    remembered = ledger.whole_history()
    assert remembered is not None
    assert [(each.position, each.status) for each in remembered if each.position] == [
        (1, "completed"), (3, "completed"), (2, "waiting"),
    ]  # fmt: skip
    ledger.keep_only_count()
    assert ledger.believed() == 6


def an_entry(position: int, status: str, output: str | None = None) -> StepDone:
    return StepDone("run", 1, "", position, position, "step", "step", status, output, None, None, 1, 0, None, 1)


def a_record(position: int, output: str) -> StepRecord:
    return as_record(an_entry(position, "completed", output), 1)
