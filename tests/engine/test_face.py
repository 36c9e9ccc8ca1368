"""The calls that are promised, as users write them: read by mypy, and run."""

from __future__ import annotations

import inspect
import pydoc
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stepfast
from stepfast import Backoff, Context, Dag, NonRetryableError, Run, Settings, Stepfast, SyncContext, step
from stepfast.engine import options
from stepfast.filters import ListKeywords
from stepfast.model.queue_config import LimitKeywords
from stepfast.registry import TaskDecorator, WorkflowDecorator
from stepfast.sync import SyncApp, SyncRun
from stepfast.testing import Lab
from tests.support.engine import drained, finished
from tests.support.workflows import task


@dataclass
class Order:
    id: str
    cents: int


@step(retries=5, timeout=10, backoff=Backoff(base=0.5, factor=2, max=30, jitter=True))
async def charge(order: Order) -> str:
    return f"receipt {order.id}"


def add_tax(order: Order, rate: float) -> float:
    return order.cents * rate


def write_rows(connection: sqlite3.Connection, order: Order) -> int:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)")
    return connection.execute("INSERT INTO orders VALUES (?, ?)", (order.id, order.cents)).rowcount


async def undo_charge(output: str, order: Order) -> None: ...


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Stepfast]:
    async with Stepfast(f"sqlite:///{tmp_path}/face.db", settings=Settings(inline_wait=0.01)) as app:
        yield app


async def test_a_workflow_makes_every_call_of_the_context(app: Stepfast) -> None:
    send_mail = task(app, "send_mail", returns=None, max_attempts=5, timeout=60)

    async def fetch(ctx: Context, url: str) -> str:
        return await ctx.step("get", lambda: url.upper())

    async def pack(ctx: Context, order: Order) -> int:
        return await ctx.step("weigh", lambda: order.cents)

    @app.workflow(deadline=timedelta(days=30))
    async def checkout(ctx: Context, order: Order) -> list[Any]:
        receipt = await ctx.options(name="charge", retries=2, timeout=5, compensate=undo_charge).step(charge, order)
        total = await ctx.step("add tax", add_tax, order, 1.5)
        await ctx.sleep(timedelta(milliseconds=20))
        await ctx.sleep_until(datetime.now(UTC))
        ok = await ctx.wait_signal("approved", type=bool, timeout=timedelta(days=3))
        child = await ctx.start(send_mail, order)
        await child.result()
        await ctx.call(send_mail, order)
        pages = await ctx.map(fetch, ["a", "b", "c"], limit=10)
        a, b = await ctx.gather(ctx.step(charge, order), ctx.branch(pack, order))
        winner, value = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(3600))
        await ctx.set("progress", 0.8)
        written = await ctx.transaction(write_rows, order)
        ctx.progress("70 of 100", {"done": 70})
        facts = [ctx.run_id, ctx.attempt, ctx.workflow, ctx.step_key, ctx.now(), ctx.random(), ctx.uuid()]
        assert len(facts) == 7 and ctx.patched("new way")
        return [receipt, total, ok, pages, a, b, winner, value, written]

    run = await app.start(checkout, Order("o-1", 10), key="o-1")
    assert (await app.start(checkout, Order("o-1", 10), key="o-1")).id == run.id
    async with app.worker(concurrency=100):
        await run.signal("approved", True)
        await run.signal("paid", 7)
        result = await run.result(timeout=30)
    assert result == ["receipt o-1", 15.0, True, ["A", "B", "C"], "receipt o-1", 10, "paid", 7, 1]
    assert await run.get("progress") == 0.8
    info, steps, log = await run.info(), await run.steps(), await run.activity()
    assert (info.status, info.workflow, info.key, info.attempt) == ("completed", "checkout", "o-1", 1)
    assert len(steps) >= 10 and len(log) >= 10


async def test_runs_are_started_asked_and_listed(app: Stepfast) -> None:
    @app.workflow
    async def checkout(ctx: Context, order: Order) -> str:
        if order.cents < 0:
            raise NonRetryableError("nothing to pay")
        await ctx.wait_signal("approved")
        return order.id

    @app.workflow
    def in_a_thread(ctx: SyncContext, order: Order) -> str:
        ctx.transaction(write_rows, order)
        return ctx.options(retries=1).step(charge, order)

    await app.start("checkout", {"id": "o-2", "cents": 5}, queue="vip", priority=10, delay=5, at=None, expires_in=60)
    runs = await app.start_many(checkout, [Order("a", 1), Order("b", 2)], keys=["a", "b"], tags=["many"])
    thread = await app.start(in_a_thread, Order("t", 1), deadline=60)
    await runs[0].pause()
    await runs[0].resume()
    for run in runs:
        await run.signal("approved", True)
    await app.drain()
    assert [await run.result(timeout=30) for run in runs] == ["a", "b"]
    assert await thread.result() == "receipt t"
    bad = await drained(app, checkout, Order("c", -1))
    assert await bad.status() == "failed"
    await (await bad.retry()).cancel()
    await app.drain()
    assert await bad.status() == "cancelled"
    assert [info.id for info in await app.runs(workflow=checkout, status="cancelled", limit=50)] == [bad.id]
    assert len(await app.runs(tag="many")) == 2


async def test_a_graph_is_declared_as_promised(app: Stepfast) -> None:
    fulfil = app.dag("order-fulfillment")

    async def refund_card(ctx: Any) -> None: ...

    @fulfil.step(retries=3)
    async def validate_stock(ctx: Any) -> dict[str, str]:
        return {"reservation": "r-1"}

    @fulfil.step
    async def validate_fraud(ctx: Any) -> bool:
        return True

    @fulfil.step(
        after=["validate_stock", "validate_fraud"], retries=1, compensate=refund_card,
        when=lambda ctx: ctx.input["cents"] > 0,
    )  # fmt: skip
    async def charge_card(ctx: Any) -> str:
        return f"{ctx.outputs['validate_stock']['reservation']} {ctx.input['cents']} {ctx.attempt}"

    fulfil.approval("manager_ok", after=["charge_card"], timeout=timedelta(days=2))
    run = await drained(app, fulfil, {"cents": 5})
    await run.signal("manager_ok", True)
    assert await finished(app, run) == {
        "validate_stock": {"reservation": "r-1"}, "validate_fraud": True, "charge_card": "r-1 5 1", "manager_ok": True,
    }  # fmt: skip


@pytest.mark.parametrize(("face", "twin", "without"), [(Stepfast, SyncApp, {"store", "work"}), (Run, SyncRun, set())])
def test_every_verb_has_a_twin_that_needs_no_event_loop(face: type, twin: type, without: set[str]) -> None:
    verbs = {name for name, verb in inspect.getmembers(face, inspect.iscoroutinefunction) if name[0] != "_"} - without
    assert {name for name in verbs if not hasattr(twin, name)} == set()
    for name in verbs:
        asked, taken = (inspect.signature(getattr(each, name)).parameters for each in (face, twin))
        assert asked.keys() <= taken.keys(), f"{twin.__name__}.{name} takes fewer options"


# -- what `help` shows of the calls that users make: every option by its name


FACES = [Stepfast, SyncApp, Context, SyncContext, Dag, Lab, TaskDecorator, WorkflowDecorator]


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (Stepfast.start, options.StartKeywords),
        (Stepfast.start_many, options.StartManyKeywords),
        (Stepfast.runs, ListKeywords),
        (Stepfast.schedule, options.ScheduleKeywords),
        (Stepfast.put_schedule, options.ScheduleKeywords),
        (Stepfast.worker, options.WorkerKeywords),
        (Stepfast.queue, LimitKeywords),
        (TaskDecorator.__call__, options.WorkflowKeywords),
        (WorkflowDecorator.__call__, options.WorkflowKeywords),
        (Context.start, options.ChildKeywords),
        (Context.remote, options.RemoteKeywords),
        (SyncContext.call, options.ChildKeywords),
        (Context.options, options.StepKeywords),
        (Dag.step, options.DagStepKeywords),
        (Lab.start, options.StartKeywords),
        (stepfast.step, options.StepKeywords),
    ],
)
def test_a_call_shows_every_option(call: Any, keywords: Any) -> None:
    parameters = inspect.signature(call).parameters
    assert set(keywords.__annotations__) <= set(parameters)
    assert not [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]


def test_no_call_of_the_public_classes_hides_its_options() -> None:
    hidden = [
        f"{face.__name__}.{name}"
        for face in FACES
        for name, member in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_")
        for each in inspect.signature(member).parameters.values()
        if each.kind is each.VAR_KEYWORD and "Unpack" in str(each.annotation)
    ]
    assert hidden == []


def test_help_reads_as_a_user_writes_the_call() -> None:
    text = pydoc.plain(pydoc.render_doc(Stepfast.start))
    assert "key: 'str | None' = None" in text
    assert "priority: 'int' = ..." in text


@pytest.mark.parametrize("decorator", ["task", "workflow"])
def test_the_decorators_name_their_options(decorator: str) -> None:
    app = Stepfast("sqlite://")
    told = inspect.getdoc(getattr(Stepfast, decorator)) or ""
    assert {name for name in options.WorkflowKeywords.__annotations__ if f"``{name}``" not in told} == set()
    assert "max_attempts" in pydoc.plain(pydoc.render_doc(getattr(app, decorator)))
