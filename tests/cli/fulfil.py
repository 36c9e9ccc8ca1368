"""Declared graphs; copied into the folder of each test, as if a user had written them there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from stepfast import Backoff, DagContext, NonRetryableError, Settings, Stepfast

app = Stepfast(settings=Settings(inline_wait=0))
order = app.dag("order")


async def free(ctx: DagContext) -> None:
    pass


async def refund(ctx: DagContext) -> None:
    pass


@order.step(retries=3, backoff=Backoff(base=0.001), compensate=free)
async def reserve(ctx: DagContext) -> str:
    if ctx.attempt < 2:
        raise ConnectionError("the shelf does not answer")
    return "berth 7"


@order.step
def check(ctx: DagContext) -> int:
    return 0


@order.step(after=[reserve, check], timeout=30, compensate=refund)
async def charge(ctx: DagContext) -> str:
    return "receipt"


@order.step(after=[charge], retries=1, when=lambda ctx: ctx.input == "gift")
async def wrap(ctx: DagContext) -> str:
    return "paper"


order.approval("boss_ok", after=[charge], timeout=timedelta(days=1))


@order.step(after=[wrap, "boss_ok"], retries=0)
async def ship(ctx: DagContext) -> str:
    if ctx.input == "piano":
        raise NonRetryableError("too heavy")
    return "shipped"


line = app.dag("line")


@line.step(retries=3, backoff=Backoff(base=600, jitter=False), catch={NonRetryableError: "mend"})
async def knock(ctx: DagContext) -> None:
    if ctx.input == "key":
        raise NonRetryableError("no key")
    if not Path("open").exists():
        raise ConnectionError("nobody opens")


@line.step
async def mend(ctx: DagContext) -> None:
    pass


wide = app.dag("wide")
wide.declare(lambda ctx: 0, name="first")
for number in range(20):
    wide.declare(lambda ctx: 1, name=f"item {number}", after=["first"])
wide.declare(lambda ctx: 2, name="last", after=[f"item {number}" for number in range(20)], at_least=2)
