"""What a type checker knows of the face. Never run: ``make check`` reads it with mypy and with pyright."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import stepfast
from stepfast import (
    Activity,
    Again,
    Backoff,
    Context,
    Done,
    Results,
    Run,
    RunInfo,
    ScheduleInfo,
    StepCall,
    Stepfast,
    StepInfo,
    SyncContext,
    Workflow,
    step,
)
from stepfast.engine.transaction import TransactionCall
from stepfast.sync import SyncRun

app = Stepfast("sqlite://")


@dataclass
class Order:
    id: str
    cents: int


# -- steps -------------------------------------------------------------------------------------------------------


@step
async def reserve(order: Order) -> int:
    return order.cents


@step(retries=5, timeout=10, backoff=Backoff(base=0.5, factor=2, max=30, jitter=True), name="charge a card")
async def charge(order: Order, *, twice: bool = False) -> str:
    return order.id


@step(timeout=timedelta(seconds=1))
def print_label(order: Order, copies: int = 1) -> bytes:
    return order.id.encode() * copies


async def ship(order: Order) -> UUID:
    return UUID(int=order.cents)


async def write_rows(connection: sqlite3.Connection, order: Order, note: str = "") -> int:
    return order.cents


async def write_to_anything(connection: Any, order: Order) -> None: ...


def write_plainly(connection: sqlite3.Connection, order: Order) -> bool:
    return True


@step(retries=2)
async def declared_write(connection: object, order: Order) -> int:
    return order.cents


async def look_again(page: int) -> Again | Done[UUID]:
    return Done(UUID(int=page)) if page else Again(page + 1, after=60)


def is_paid(order: Order) -> Again | Done[bool]:
    return Done(bool(order))


async def is_there(order: Order) -> UUID | None:
    return None


async def packed(ctx: Context, order: Order) -> UUID:
    return await ctx.step(ship, order)


def add_tax(order: Order, rate: float) -> float:
    return order.cents * rate


async def called_directly(order: Order) -> None:
    assert_type(await reserve(order), int)
    assert_type(await charge(order, twice=True), str)
    assert_type(print_label(order, 2), bytes)


# -- workflows ---------------------------------------------------------------------------------------------------


@app.workflow(deadline=timedelta(days=30), max_attempts=3)
async def checkout(ctx: Context, order: Order) -> str:
    assert_type(ctx.step(charge, order), StepCall[str])
    assert_type(await ctx.step(charge, order), str)
    assert_type(await ctx.step(charge, order, twice=True), str)
    assert_type(await ctx.step(reserve, order), int)
    assert_type(await ctx.step(print_label, order, copies=2), bytes)
    assert_type(await ctx.step(ship, order), UUID)
    assert_type(await ctx.step(add_tax, order, 1.2), float)
    assert_type(await ctx.step("add tax", add_tax, order, 1.2), float)
    assert_type(await ctx.step("charge", charge, order), str)
    assert_type(await ctx.step("ship", ship, order), UUID)
    assert_type(await ctx.step("count", lambda: 5), int)
    assert_type(await ctx.options(retries=3).step(charge, order), str)
    assert_type(await ctx.options(name="n", timeout=1).step("label", add_tax, order, 1.2), float)
    assert_type(await asyncio.gather(ctx.step(ship, order), ctx.step(reserve, order)), tuple[UUID, int])
    assert_type(
        await asyncio.create_task(ctx.gather(ctx.step(ship, order), ctx.step(reserve, order))), tuple[UUID, int]
    )
    assert_type(await ctx.remote("pay", order, type=int), int)
    assert_type(await ctx.remote("pay", order, type=Order, retries=3, timeout=60, compensate="refund"), Order)
    assert_type(await ctx.remote("pay"), Any)
    await ctx.remote("pay", type=int | None, group="payments", partition="north", backoff=Backoff(base=1))
    assert_type(ctx.run_id, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.uuid(), UUID)
    assert_type(ctx.random(), float)
    assert_type(ctx.options(retries=3), Context)
    assert_type(await ctx.options(retries=3).options(timeout=1).step(reserve, order), int)
    assert_type(ctx.transaction(write_rows, order), TransactionCall[int])
    assert_type(await ctx.transaction(write_rows, order), int)
    assert_type(await ctx.transaction("write", write_rows, order, note="n"), int)
    assert_type(await ctx.transaction(write_plainly, order), bool)
    assert_type(await ctx.transaction("count", lambda connection: 5), int)
    await ctx.transaction(write_to_anything, order)
    assert_type(await ctx.transaction(declared_write, order), int)
    assert_type(await ctx.options(retries=3).transaction(write_rows, order), int)
    assert_type(await ctx.wait_until(is_there, order, every=60), UUID)
    assert_type(await ctx.wait_until("is it there?", is_there, order), UUID)
    assert_type(await ctx.wait_until("is it so?", lambda: 5, every=1), int)
    assert_type(await ctx.options(timeout=5).wait_until(is_there, order, timeout=timedelta(days=1)), UUID)
    found = await ctx.map(packed, [order], limit=2, min_successful=0.9, max_failures=3)
    assert_type(found, Results[UUID])
    assert_type(found.succeeded, list[UUID])
    assert_type(await ctx.map(packed, [order], limit=2), list[UUID])
    assert_type(await ctx.gather(ctx.step(ship, order), ctx.step(ship, order), limit=1), Results[UUID])
    assert_type(await ctx.wait_until(look_again, 0, every=Backoff(base=1), max_checks=20), UUID)
    assert_type(await ctx.wait_until("is it paid?", is_paid, order), bool)
    assert_type(stepfast.current(), Context | SyncContext | None)
    assert_type(await ctx.branches().branch("call-1", packed, order), UUID)
    ctx.progress("70 of 100", {"done": 70})
    await ctx.progress("80 of 100")
    return await ctx.step(charge, order)


@app.workflow
async def without_input(ctx: Context) -> int:
    return await ctx.step("one", lambda: 1)


@app.workflow
def in_a_thread(ctx: SyncContext, order: Order) -> bytes:
    assert_type(ctx.step(charge, order), str)
    assert_type(ctx.step("add tax", add_tax, order, 1.2), float)
    assert_type(ctx.step(ship, order), UUID)
    assert_type(ctx.options(retries=1), SyncContext)
    assert_type(ctx.options(retries=1).step(reserve, order), int)
    assert_type(ctx.transaction(write_rows, order), int)
    assert_type(ctx.transaction("write", write_plainly, order), bool)
    assert_type(ctx.options(retries=1).transaction(write_rows, order), int)
    assert_type(ctx.options(retries=1).wait_until(is_there, order), UUID)
    assert_type(ctx.wait_until("is it there?", is_there, order), UUID)
    assert_type(ctx.wait_until(look_again, 0, every=Backoff(base=1), max_checks=20), UUID)
    assert_type(ctx.wait_until(is_paid, order), bool)
    return ctx.step(print_label, order)


@app.workflow(queue="threads")
def in_a_thread_with_options(ctx: SyncContext, order: Order) -> list[int]:
    return [ctx.step(reserve, order)]


# -- tasks -------------------------------------------------------------------------------------------------------


@app.task
async def send_mail(order: Order) -> bool:
    return True


@app.task(max_attempts=5, timeout=60, queue="mail", backoff=Backoff())
async def send_mail_with_options(order: Order) -> list[str]:
    return [order.id]


@app.task
def crunch(number: int) -> float:
    return number / 2


@app.task(name="tick")
async def tick() -> str:
    return "tock"


assert_type(checkout, Workflow[Order, str])
assert_type(without_input, Workflow[None, int])
assert_type(in_a_thread, Workflow[Order, bytes])
assert_type(in_a_thread_with_options, Workflow[Order, list[int]])
assert_type(send_mail, Workflow[Order, bool])
assert_type(send_mail_with_options, Workflow[Order, list[str]])
assert_type(crunch, Workflow[int, float])
assert_type(tick, Workflow[None, str])


# -- starting and reading ------------------------------------------------------------------------------------------


async def trigger(order: Order) -> None:
    run = await app.start(checkout, order, key="o-1", priority=3, delay=timedelta(seconds=1), tags=["a"])
    assert_type(run, Run[str])
    assert_type(await run.result(), str)
    assert_type(await run.result(timeout=30), str)
    assert_type(await app.start(send_mail, order), Run[bool])
    assert_type(await (await app.start(send_mail_with_options, order)).result(), list[str])
    assert_type(await (await app.start(in_a_thread, order)).result(), bytes)
    assert_type(await (await app.start(crunch, 5)).result(), float)
    assert_type(await (await app.start(tick)).result(), str)
    assert_type(await (await app.start(without_input)).result(), int)
    assert_type(await app.start("checkout", {"id": "o-2"}, queue="vip", at=None, expires_in=60), Run[Any])
    assert_type(await app.start_many(checkout, [order, order], keys=["a", "b"]), list[Run[str]])
    assert_type(await app.start_many("checkout", [{}]), list[Run[Any]])
    assert_type(app.get(run.id), Run[Any])
    assert_type(await app.find(checkout, key="a"), Run[str])
    assert_type(await app.find("checkout", key="a"), Run[Any])
    assert_type(await run.status(), str)
    assert_type(await run.info(), RunInfo)
    assert_type(await run.steps(), list[StepInfo])
    assert_type(await run.activity(), list[Activity])
    assert_type(await app.runs(workflow=checkout, status="failed", after=await run.info(), limit=5), list[RunInfo])
    assert_type(await app.start(checkout, order, key="o-1", debounce=5, debounce_max=timedelta(minutes=1)), Run[str])
    app.schedule("nightly", checkout, cron="0 3 * * *", tz="Europe/Berlin", input=order, missed="all", overlap="skip")
    app.schedule("often", "checkout", every=timedelta(minutes=1), jitter=5, priority=3)
    assert_type(await app.put_schedule("once", checkout, every=60, input=order), ScheduleInfo)
    assert_type(await app.schedules(), list[ScheduleInfo])
    assert_type(await app.trigger("nightly"), Run[Any])
    assert_type(await app.backfill("nightly", datetime.now(UTC), datetime.now(UTC)), list[Run[Any]])
    await run.retry()
    async with app, app.worker(queues=["mail"], concurrency=10, lease=30, poll_interval=1.0):
        await app.drain()


def trigger_without_a_loop(order: Order) -> None:
    assert_type(app.sync.start(checkout, order, key="k"), SyncRun[str])
    assert_type(app.sync.start(checkout, order).result(timeout=5), str)
    assert_type(app.sync.start("checkout", {}).result(), Any)
    assert_type(app.sync.start_many(crunch, [1, 2]), list[SyncRun[float]])
    assert_type(app.sync.get("0197a1b2-0000-7000-8000-000000000000"), SyncRun[Any])
    assert_type(app.sync.runs(status="failed"), list[RunInfo])
    assert_type(app.sync.prune(timedelta(days=30), dry_run=True), int)
    assert_type(app.sync.get("0197a1b2-0000-7000-8000-000000000000").steps(), list[StepInfo])
    app.sync.pause_queue(5)  # type: ignore[arg-type]
