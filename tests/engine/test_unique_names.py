"""What runs of a name hand on: signals of starts that they did not take, and the name itself (rule 68)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, InvalidState, RunCancelled, RunFailed, Stepfast
from stepfast.monitoring.explain import explain
from stepfast.run import Run
from stepfast.testing import Lab
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.engine.test_connection_argument import Caller
from tests.support.engine import PATIENCE, Gate, eventually

pytestmark = ON_BOTH


def one_answer(app: Stepfast) -> Any:
    """Takes one message, and ends."""

    @app.workflow(name="once", max_attempts=1)
    async def once(ctx: Context, label: str | None = None) -> str:
        said: str = await ctx.wait_signal("message")
        if said == "fail":
            raise ValueError(said)
        return f"{label}: {said}"

    return once


async def _ended(app: Stepfast, number: int) -> bool:
    runs = await app.runs(workflow="once", limit=100)
    return len(runs) == number and all(run.completed_at is not None for run in runs)


async def _outputs(app: Stepfast) -> list[Any]:
    return [run.output or run.reason for run in await app.runs(workflow="once", limit=100, oldest_first=True)]


async def test_signals_that_a_run_has_not_taken_go_to_new_runs(app: Stepfast, make_app: MakeApp) -> None:
    """One for each start, with its input and options, however the run before it ended."""
    once, other = one_answer(app), make_app()
    first = await app.start(once, "a", unique="n", signal=("message", "1"))
    for label, text in (("b", "fail"), ("c", "3"), ("d", "4")):
        again = await other.start("once", label, unique="n", signal=("message", text), priority=3, tags=[label])
        assert again.id == first.id
    async with app.worker():
        assert await first.result(timeout=PATIENCE) == "a: 1"
        await eventually(lambda: _ended(app, 4))
    assert await _outputs(app) == ["a: 1", "code", "c: 3", "d: 4"]
    (last,) = await app.runs(tag="d")
    assert (last.unique, last.priority) == ("n", 3)


async def test_a_run_made_for_a_signal_does_not_hand_it_on(app: Stepfast) -> None:
    @app.workflow(name="once")
    async def deaf(ctx: Context) -> None:
        await ctx.sleep(0)

    await app.start(deaf, unique="n", signal=("message", 0))
    for number in range(2):
        await app.start(deaf, unique="n", signal=("message", number))
    await app.drain()
    assert len(await app.runs(workflow="once")) == 3


async def test_a_cancelled_run_hands_on_to_the_one_that_has_its_name(app: Stepfast) -> None:
    once = one_answer(app)
    first = await app.start(once, "a", unique="n")
    await app.start(once, "b", unique="n", signal=("message", "2"))
    await first.cancel()
    new = await app.start(once, "c", unique="n")
    assert not new.existed
    async with app.worker():
        assert await new.result(timeout=PATIENCE) == "c: 2"
    assert len(await app.runs(workflow="once")) == 2


async def test_queued_runs_begin_one_after_the_other(app: Stepfast) -> None:
    once = one_answer(app)
    first = await app.start(once, "a", unique="n", on_conflict="queue", signal=("message", "1"))
    second, third, fourth, fifth = await app.start_many(
        once, list("bcde"), unique=["n"] * 4, on_conflict="queue", signal=("message", "x"), expires_in=60
    )
    late = await app.start(once, "late", unique="n", on_conflict="queue", expires_in=0.01)
    assert not any(run.existed for run in (first, second, third, fourth, fifth))
    info = await second.info()
    assert (info.status, info.waiting_for, info.unique) == ("waiting", "name", "n")
    assert "the run that has its name 'n'" in await explain(app, info, [], [], [])
    with pytest.raises(InvalidState):
        await second.pause()
    await third.cancel()
    with pytest.raises(InvalidState, match="has its name 'n' by now"):
        await third.retry()
    assert (await app.start(once, unique="n")).id == first.id
    async with app.worker():
        for run, label in ((first, "a: 1"), (second, "b: x"), (fourth, "d: x"), (fifth, "e: x")):
            assert await run.result(timeout=PATIENCE) == label
        with pytest.raises(RunFailed, match="expires_in"):
            await late.result(timeout=PATIENCE)
        times = [await run.info() for run in (first, second, fourth, fifth)]
        for before, after in itertools.pairwise(times):
            assert before.completed_at is not None and after.started_at is not None
            assert before.completed_at <= after.started_at
        await third.retry()
        assert (await app.start(once, unique="n")).id == third.id
        assert await third.result(timeout=PATIENCE) == "c: x"


async def test_a_start_that_cancels_begins_when_the_other_is_undone(app: Stepfast) -> None:
    gate = Gate()

    async def book() -> str:
        return "booked"

    async def unbook(_: str) -> None:
        await gate.passing()

    @app.workflow
    async def trip(ctx: Context, label: str) -> str:
        await ctx.options(compensate=unbook).step(book)
        return f"{label} {await ctx.wait_signal('go')}"

    go = ("go", "now")
    async with app.worker():
        old = await app.start(trip, "old", unique="t")
        await eventually(lambda: _is(old, "waiting"))
        superseded = await app.start(trip, "between", unique="t", on_conflict="cancel", signal=go)
        new = await app.start(trip, "new", unique="t", on_conflict="cancel", signal=go)
        await gate.reached()
        await eventually(lambda: _is(superseded, "cancelled"))
        assert await new.status() == "waiting"
        gate.open()
        assert await new.result(timeout=PATIENCE) == "new now"
        with pytest.raises(RunCancelled):
            await old.result(timeout=PATIENCE)


async def _is(run: Run[Any], status: str) -> bool:
    return await run.status() == status


async def test_dags(app: Stepfast) -> None:
    order = app.dag("order")
    order.approval("ok")

    @order.step(after=["ok"])
    async def pack(ctx: Any) -> str:
        return f"packed {ctx.input} {ctx.outputs['ok']}"

    first = await app.start(order, 1, unique="o")
    queued = await app.start(order, 2, unique="o", on_conflict="queue", signal=("ok", "two"))
    gone = await app.start(order, 3, unique="o", on_conflict="queue", deadline=0.01)
    cancelled = await app.start(order, 4, unique="o", on_conflict="queue")
    await cancelled.cancel()
    assert (await queued.status(), await queued.steps()) == ("waiting", [])
    await app.start(order, 5, unique="o", signal=("ok", "one"))
    handed = await app.start(order, 6, unique="o", signal=("ok", "six"))
    assert handed.id == first.id
    async with app.worker():
        assert (await first.result(timeout=PATIENCE))["pack"] == "packed 1 one"
        assert (await queued.result(timeout=PATIENCE))["pack"] == "packed 2 two"
        await eventually(lambda: _is(gone, "failed"))
        with pytest.raises(RunCancelled):
            await cancelled.result(timeout=PATIENCE)
        await eventually(lambda: _packed(app, "packed 6 six"))


async def _packed(app: Stepfast, text: str) -> bool:
    outputs = [run.output for run in await app.runs(workflow="order", status="completed")]
    return any(output["pack"] == text for output in outputs)


async def test_within_a_transaction(app: Stepfast) -> None:
    """What a start leaves for a run that ends before the commit is handed on after it."""
    once = one_answer(app)
    caller = Caller({"sqlite": "sqlite3", "mysql": "asyncmy"}.get(app.url.kind, "asyncpg"), app)
    first = await app.start(once, "a", unique="n")
    if app.url.path:
        async with caller.transaction() as connection:
            await app.start(once, "b", unique="n", signal=("message", "2"), connection=connection)
            queued = await app.start(
                once, "c", unique="n", on_conflict="queue", signal=("message", "3"), connection=connection
            )
        await first.cancel()
    else:
        async with caller.transaction() as connection:
            await app.start(once, "b", unique="n", signal=("message", "2"), connection=connection)
            queued = await app.start(
                once, "c", unique="n", on_conflict="queue", signal=("message", "3"), connection=connection
            )
            await first.cancel()
    async with app.worker():
        assert await queued.result(timeout=PATIENCE) == "c: 3"
        await eventually(lambda: _ended(app, 3))
    assert sorted(await _outputs(app)) == ["b: 2", "c: 3", "cancelled"]


@ON_SQLITE
async def test_in_a_lab_and_misuse(app: Stepfast) -> None:
    once = one_answer(app)
    async with Lab(app) as lab:
        first = await lab.start(once, "a", unique="n", signal=("message", "1"))
        second = await lab.start(once, "b", unique="n", on_conflict="queue", signal=("message", "2"))
        assert [await first.result(), await second.result()] == ["a: 1", "b: 2"]
    with pytest.raises(ConfigurationError, match="neither delay nor at"):
        await app.start(once, unique="n", on_conflict="queue", delay=5)
