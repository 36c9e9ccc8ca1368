"""An order as a declared graph: steps that run side by side, a manager who is asked, and the way back when it fails.

The first order goes through. The second fails on purpose, at the courier: what was done is undone from the end to the
beginning, label and parcel side by side, and the refund even has to be tried twice. The third is so large that a
manager is asked, who says no. The fourth is cancelled while it waits for him.

    python examples/order_fulfillment.py
    STEPFAST_URL=postgresql://… python examples/order_fulfillment.py
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from itertools import groupby
from typing import Any

from stepfast import Backoff, DagContext, NonRetryableError, Run, RunCancelled, RunFailed, Settings, Stepfast, step

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0))
fulfil = app.dag("order-fulfillment")


class World:
    """What the steps change: a shelf, an account, and a payment service that fails once."""

    def __init__(self) -> None:
        self.reserved: set[str] = set()
        self.charged: dict[str, int] = {}
        self.away = 1


world = World()


async def release_stock(ctx: DagContext) -> None:
    """Undoes `reserve_stock`; `ctx.output` is what that returned."""
    world.reserved.discard(ctx.input["id"])  # safe to repeat: a crash in between calls it again
    print(f"  undo of {ctx.step_name}: {ctx.input['item']} is back on {ctx.output}")


@fulfil.step(compensate=release_stock)
async def reserve_stock(ctx: DagContext) -> str:
    world.reserved.add(ctx.input["id"])
    return "shelf 7"


@fulfil.step(retries=3)
async def check_fraud(ctx: DagContext) -> float:
    return 0.0  # no suspicion; a zero is passed on like any other result


@fulfil.step(after=[check_fraud], when=lambda ctx: ctx.input["cents"] >= 100_000)
async def ask_manager(ctx: DagContext) -> None:
    print(f"  a mail to the manager: {ctx.input['item']} for {ctx.input['cents'] / 100:.2f}?")


fulfil.approval("manager_ok", after=[ask_manager], timeout=timedelta(days=2))


@step(retries=5, backoff=Backoff(base=0.05))
async def refund_card(ctx: DagContext) -> None:
    """Undoes `charge_card`. Declared as a step, it has its own retries."""
    if world.away:
        world.away -= 1
        raise ConnectionError("the payment service does not answer")
    world.charged.pop(ctx.output, None)
    print(f"  undo of {ctx.step_name}: {ctx.output} refunded")


@fulfil.step(after=[reserve_stock, check_fraud, "manager_ok"], retries=5, compensate=refund_card)
async def charge_card(ctx: DagContext) -> str:
    assert ctx.outputs["check_fraud"] < 0.5
    receipt = f"receipt {ctx.input['id']}"
    world.charged[receipt] = ctx.input["cents"]
    return receipt


def unpack(ctx: DagContext) -> None:
    print(f"  undo of {ctx.step_name}: {ctx.output} is opened again")


@fulfil.step(after=[charge_card], compensate=unpack)
def pack(ctx: DagContext) -> str:
    return f"parcel {ctx.input['id']}"


async def void_label(ctx: DagContext) -> None:
    print(f"  undo of {ctx.step_name}: {ctx.output} is void")


@fulfil.step(after=[charge_card], compensate=void_label)
async def print_label(ctx: DagContext) -> str:
    return f"label for {ctx.input['where']}"


@fulfil.step(after=[pack, print_label])
async def ship(ctx: DagContext) -> str:
    if ctx.input["where"] == "the moon":
        raise NonRetryableError("no courier goes there")
    return f"{ctx.outputs['pack']} is on its way to {ctx.input['where']}"


def order(number: int, item: str, cents: int, where: str = "Ada") -> dict[str, Any]:
    return {"id": f"o-{number}", "item": item, "cents": cents, "where": where}


async def tell(run: Run[dict[str, Any]]) -> None:
    """How it ended, and how each step did."""
    try:
        print("result:", (await run.result(timeout=30))["ship"])
    except RunFailed as error:
        print(f"failed ({error.reason}):", error.message)
    except RunCancelled:
        print("cancelled")
    print(" ", await run.status())
    for status, steps in groupby(sorted(await run.steps(), key=lambda s: s.status), lambda s: s.status):
        print(f"    {status}:", ", ".join(s.name for s in steps))


async def asked(run: Run[dict[str, Any]]) -> None:
    """Wait until the run waits for the manager."""
    while not any(s.detail == "signal:manager_ok" for s in await run.steps()):
        await asyncio.sleep(0.02)


async def main() -> None:
    async with app, app.worker():
        await tell(await app.start(fulfil, order(1, "teapot", 4900)))
        await tell(await app.start(fulfil, order(2, "samovar", 19900, "the moon")))

        large = await app.start(fulfil, order(3, "piano", 990000))
        await asked(large)
        await large.signal("manager_ok", False)
        await tell(large)

        dear = await app.start(fulfil, order(4, "organ", 4990000))
        await asked(dear)
        await dear.cancel()
        await tell(dear)
    print("charged in the end:", ", ".join(world.charged))
    print("off the shelf in the end:", ", ".join(sorted(world.reserved)))


if __name__ == "__main__":
    asyncio.run(main())
