"""An order that takes back what it did: each step says how it is undone, and a failed or cancelled run undoes them.

The first order goes through. The second fails at the courier, for good: card and shelf are undone, last one first, and
the refund even has to be tried twice. The third is cancelled while it waits for the customer. The fourth cannot be
undone entirely; the rest of its undos run all the same, and it says which one is left to a person.

    python examples/order_saga.py
    STEPFAST_URL=postgresql://… python examples/order_saga.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from stepfast import (
    Backoff,
    Context,
    NonRetryableError,
    Run,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    step,
)

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0))


@dataclass
class Order:
    """The input of a run."""

    id: str
    item: str
    cents: int
    where: str = "at home"


class World:
    """What the steps change: a shelf, and an account at a payment service that is away for a moment."""

    def __init__(self) -> None:
        self.reserved: set[str] = set()
        self.charged: dict[str, int] = {}
        self.away = 1


world = World()


def put_back(place: str, order: Order) -> None:
    """Undoes `reserve`. It gets what `reserve` returned, then what it was called with."""
    if order.item == "piano":
        raise NonRetryableError("nobody can lift it")
    world.reserved.discard(order.id)  # safe to repeat: a crash in between calls it again
    print(f"  undo: {order.item} is back at {place}")


@step(retries=5, backoff=Backoff(base=0.05))
async def refund(receipt: str, order: Order) -> None:
    """Undoes `charge`. Declared as a step, it brings its own retries along."""
    if world.away:
        world.away -= 1
        raise ConnectionError("the payment service does not answer")
    world.charged.pop(receipt, None)
    print(f"  undo: {order.cents / 100:.2f} refunded ({receipt})")


@step(compensate=put_back)
def reserve(order: Order) -> str:
    """Off the shelf."""
    world.reserved.add(order.id)
    return "shelf 7"


@step(retries=3, backoff=Backoff(base=0.05), compensate=refund)
async def charge(order: Order) -> str:
    """The money comes in."""
    receipt = f"receipt {order.id}"
    world.charged[receipt] = order.cents
    return receipt


async def send(order: Order) -> str:
    """The last one needs no undo: nothing comes after it."""
    if order.where == "on the moon":
        raise NonRetryableError("no courier goes there")
    return f"{order.item} is on its way to {order.where}"


@app.workflow
async def buy(ctx: Context, order: Order) -> str:
    """No `try` and no `except`: the way back is declared with the steps."""
    await ctx.step(reserve, order)
    await ctx.step(charge, order)
    if order.where == "to be told":
        order.where = await ctx.wait_signal("address", type=str)
    return await ctx.step(send, order)


async def tell(run: Run[str]) -> None:
    """How it ended, and what is recorded of it."""
    try:
        print("result:", await run.result(timeout=30))
    except RunFailed as error:
        print(f"failed ({error.reason}):", error.message)
    except RunCancelled:
        print("cancelled")
    info = await run.info()
    print(f"  {info.status}, {info.reason}:", ", ".join(f"{s.name} {s.status}" for s in await run.steps()))


async def main() -> None:
    """Four orders."""
    async with app, app.worker():
        await tell(await app.start(buy, Order("o-1", "teapot", 4900)))
        await tell(await app.start(buy, Order("o-2", "samovar", 19900, "on the moon")))

        waits = await app.start(buy, Order("o-3", "kettle", 2900, "to be told"))
        while await waits.status() != "waiting":
            await asyncio.sleep(0.02)
        await waits.cancel()
        await tell(waits)

        await tell(await app.start(buy, Order("o-4", "piano", 990000, "on the moon")))
    print("charged in the end:", ", ".join(world.charged))
    print("off the shelf in the end:", ", ".join(sorted(world.reserved)))


if __name__ == "__main__":
    asyncio.run(main())
