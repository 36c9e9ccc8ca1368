"""A shop whose runs come to every kind of end: what the pages of the console are tried and pictured with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stepfast import Backoff, Context, DagContext, NonRetryableError, Rate, Settings, Stepfast, step


@dataclass
class Order:
    id: str
    cents: int
    parcels: int = 1
    mail: str = "ada@example.org"


@dataclass
class World:
    """What lies outside of the shop, and can be arranged by a test."""

    take: Callable[[float], None] = lambda seconds: None
    """Lets a step last, where time can be moved."""
    bank_away: int = 0
    """So many calls of the bank fail."""
    remote_dispatcher: asyncio.Event = field(default_factory=asyncio.Event)
    """Parcels are fetched when it is set."""


class CardDeclined(NonRetryableError):
    """The bank says no."""


def make_shop(world: World, url: str = "sqlite://") -> Stepfast:
    app = Stepfast(url, settings=Settings(inline_wait=0))
    _mail(app, world)
    _checkout(app, world)
    _fulfilment(app, world)
    _import(app, world)
    return app


def _mail(app: Stepfast, world: World) -> None:
    app.queue("mail", concurrency=20, rate=Rate(100, per=60))

    @app.task(queue="mail", name="send-mail", max_attempts=2)
    async def send_mail(to: str) -> str:
        world.take(0.7)
        if to.startswith("bounce"):
            raise ConnectionError(f"the mailbox of {to} does not answer")
        return f"sent to {to}"

    @app.task(name="nightly-report")
    async def report(day: str) -> dict[str, Any]:
        world.take(41)
        return {"day": day, "orders": 312, "cents": 4_193_300}

    app.schedule("nightly-report", report, cron="0 3 * * *", tz="Europe/Berlin", input="yesterday")


def _checkout(app: Stepfast, world: World) -> None:
    def release(reservation: str, order: Order) -> None:
        world.take(0.4)

    @step(compensate=release)
    async def reserve_stock(order: Order) -> str:
        world.take(1.3)
        return f"shelf 7, {order.id}"

    async def refund(receipt: str, order: Order) -> None:
        world.take(1.1)

    @step(retries=3, backoff=Backoff(base=2, jitter=False), compensate=refund)
    async def charge_card(order: Order) -> str:
        world.take(0.9)
        if order.cents == 66_600:
            raise CardDeclined("the bank declined the card")
        if world.bank_away:
            world.bank_away -= 1
            raise ConnectionError("the bank does not answer")
        return f"receipt {order.id}"

    async def fetch(parcel: str) -> str:
        world.take(1.6)
        await world.remote_dispatcher.wait()
        return f"fetched {parcel}"

    async def pack(ctx: Context, number: int) -> str:
        await ctx.step("wrap", lambda: world.take(2.1))
        return await ctx.step("hand over", fetch, f"parcel {number}")

    @app.workflow(deadline=timedelta(days=30))
    async def checkout(ctx: Context, order: Order) -> str:
        await ctx.step(reserve_stock, order)
        receipt = await ctx.step(charge_card, order)
        await ctx.set("progress", {"done": 0.5, "receipt": receipt})
        if order.cents >= 100_000 and not await ctx.wait_signal("approved", type=bool, timeout=timedelta(days=3)):
            raise NonRetryableError("a manager refused the order")
        await ctx.map(pack, list(range(order.parcels)))
        await ctx.call("send-mail", order.mail)
        return receipt


def _fulfilment(app: Stepfast, world: World) -> None:
    dag = app.dag("order-fulfilment")

    async def back_on_shelf(ctx: DagContext) -> None:
        world.take(0.5)

    async def refund(ctx: DagContext) -> None:
        world.take(0.8)

    @dag.step(compensate=back_on_shelf)
    async def reserve_stock(ctx: DagContext) -> str:
        world.take(1.2)
        return "shelf 7"

    @dag.step(retries=3)
    async def check_fraud(ctx: DagContext) -> float:
        world.take(2.4)
        return 0.02

    dag.approval("manager_ok", after=["check_fraud"], timeout=timedelta(days=2))

    @dag.step(after=["reserve_stock", "manager_ok"], retries=2, compensate=refund)
    async def charge_card(ctx: DagContext) -> str:
        world.take(1.7)
        return "receipt"

    @dag.step(after=["charge_card"])
    async def pack(ctx: DagContext) -> None:
        world.take(3.1)

    @dag.step(after=["charge_card"], when=lambda ctx: ctx.input["gift"])
    async def wrap_gift(ctx: DagContext) -> None:
        world.take(1.5)

    @dag.step(after=["charge_card"])
    async def invoice(ctx: DagContext) -> str:
        world.take(0.6)
        return "invoice 2031"

    @dag.step(after=["pack", "wrap_gift"])
    async def ship(ctx: DagContext) -> str:
        world.take(2.2)
        if ctx.input["to"] == "nowhere":
            raise NonRetryableError("there is no courier to nowhere")
        return "shipped"

    @dag.step(after=["ship", "invoice"])
    async def close_order(ctx: DagContext) -> str:
        world.take(0.3)
        return "closed"


def _import(app: Stepfast, world: World) -> None:
    def download(number: int) -> int:
        world.take(0.3)
        return 40 + number

    async def page(ctx: Context, number: int) -> int:
        rows = await ctx.step(download, number)
        await ctx.step("index", lambda: world.take(0.2))
        return rows

    @app.workflow(name="import-catalogue")
    async def import_catalogue(ctx: Context, pages: int) -> int:
        counted = await ctx.map(page, list(range(pages)), limit=4)
        await ctx.step("publish", lambda: world.take(4.0))
        return sum(counted)
