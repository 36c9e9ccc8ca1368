"""An order, paid for and shipped: retries, errors that no retry can help, keys, and what can be read afterwards.

python examples/order_checkout.py                     # SQLite in memory
STEPFAST_URL=postgresql://… python examples/order_checkout.py
"""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass

from stepfast import Backoff, Context, NonRetryableError, RunFailed, StepFailed, Stepfast, step

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))


@dataclass
class Order:
    """What the customer wants."""

    id: str
    item: str
    cents: int
    card: str = "valid"


class PaymentService:
    """Somebody else's service: slow to wake up, and it knows idempotency keys."""

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}
        self._naps = 2

    async def charge(self, card: str, cents: int, key: str) -> str:
        """Charge once per key, however often it is asked."""
        if self._naps:
            self._naps -= 1
            raise ConnectionError("the payment service is waking up")
        if card == "declined":
            raise NonRetryableError("the card was declined")
        return self.charges.setdefault(key, f"receipt-{len(self.charges) + 1} over {cents} cents")


payments = PaymentService()


@step(retries=5, timeout=10, backoff=Backoff(base=0.05, factor=2, max=30))
async def charge(order: Order, key: str) -> str:
    """Tried up to six times. The key is the same each time, so the customer pays once."""
    return await payments.charge(order.card, order.cents, key)


def reserve(item: str) -> str:
    """A plain function is a step too; it runs in a thread."""
    return f"shelf 7, {item}"


async def release(item: str) -> None:
    """The way back, when the card was declined."""


async def ship(order: Order, shelf: str) -> str:
    """The last step."""
    return f"{order.item} is on its way from {shelf}"


@app.workflow(max_attempts=3)
async def checkout(ctx: Context, order: Order) -> str:
    """What a failed step raises is recorded as well, so the way back is durable too."""
    shelf = await ctx.step(reserve, order.item)
    try:
        receipt = await ctx.step(charge, order, ctx.step_key)
    except StepFailed as error:
        await ctx.step(release, order.item)
        raise NonRetryableError(f"order {order.id}: {error.message}") from None
    message = await ctx.step(ship, order, shelf)
    return f"{message} ({receipt})"


async def main() -> None:
    """Two orders; one of them sent twice, one of them with a bad card."""
    tag = uuid.uuid4().hex[:8]  # so that the example can be run again on the same database
    async with app, app.worker(concurrency=10):
        order = Order(f"o-1-{tag}", "teapot", 4900)
        run = await app.start(checkout, order, key=order.id, tags=["example"])
        again = await app.start(checkout, order, key=order.id, tags=["example"])
        print("one run for one key:", run.id == again.id)
        print("result:", await run.result(timeout=30))
        for call in await run.activity():
            print(f"  {call.name:<8} try {call.attempt} {call.status:<10}", call.error.message if call.error else "")
        print("charged:", len(payments.charges), "time")

        bad = await app.start(checkout, Order(f"o-2-{tag}", "samovar", 19900, card="declined"))
        try:
            await bad.result(timeout=30)
        except RunFailed as error:
            print("failed, as it should:", error.message)
        print("steps:", ", ".join(f"{s.name} {s.status}" for s in await bad.steps()))


if __name__ == "__main__":
    asyncio.run(main())
