"""Waiting for something outside that cannot tell: it is asked now and then, and the slot is free in between.

A bank is asked whether a payment has arrived. However often it is asked, one record is left: the final answer. Then
three ways not to wait for the next time: the bank's web hook sends a signal, an operator says `resume`, and an operator
holds the run for as long as the bank is under repair. The last payment never comes, and the wait gives up.

    python examples/poll_outside.py
    STEPFAST_URL=postgresql://… python examples/poll_outside.py
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from stepfast import Context, Run, Settings, Stepfast, WaitTimeout

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0))


@dataclass
class Invoice:
    """The input of a run: what to wait for, and how often to ask."""

    id: str
    every: timedelta
    at_most: timedelta = timedelta(days=14)


@dataclass
class Payment:
    """What the bank says, once it has something to say."""

    invoice: str
    cents: int


asked: Counter[str] = Counter()
arrived: dict[str, Payment] = {}


async def look_up(invoice: str) -> Payment | None:
    """The check. None, False, an empty list: not yet. Anything else is the answer."""
    asked[invoice] += 1
    if invoice == "quick" and asked[invoice] == 3:
        return Payment(invoice, 4900)
    return arrived.get(invoice)


@app.workflow
async def wait_for_payment(ctx: Context, invoice: Invoice) -> str:
    """What the check answers with is what the wait gives."""
    try:
        payment = await ctx.options(retries=5).wait_until(
            look_up, invoice.id, every=invoice.every, timeout=invoice.at_most
        )
    except WaitTimeout:
        return f"{invoice.id}: no payment"
    return f"{invoice.id}: {payment.cents / 100:.2f}"


async def until(so: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so."""
    while not await so():
        await asyncio.sleep(0.02)


async def start_and_wait(name: str) -> Run[str]:
    """A run that has asked once, and would ask again in an hour."""
    run = await app.start(wait_for_payment, Invoice(name, every=timedelta(hours=1)))

    async def waits() -> bool:
        return asked[name] == 1 and await run.status() == "waiting"

    await until(waits)
    return run


async def main() -> None:
    """Five invoices."""
    async with app, app.worker():
        quick = await app.start(wait_for_payment, Invoice("quick", every=timedelta(seconds=0.2)))
        print(await quick.result(timeout=30), f"after {asked['quick']} questions, {len(await quick.steps())} record")

        hooked = await start_and_wait("hooked")
        print("it waits for:", (await hooked.info()).waiting_for)
        arrived["hooked"] = Payment("hooked", 12000)
        await hooked.signal("bank has news")  # from the web hook's handler; any signal makes the run ask now
        print(await hooked.result(timeout=30))

        hurried = await start_and_wait("hurried")
        arrived["hurried"] = Payment("hurried", 700)
        await hurried.resume()  # from a person: stepfast resume RUN
        print(await hurried.result(timeout=30))

        held = await start_and_wait("held")
        await held.pause()
        await held.signal("bank has news")
        print("held:", await held.status(), f"after {asked['held']} question")
        arrived["held"] = Payment("held", 300)
        await held.resume()
        print(await held.result(timeout=30))

        never = await app.start(wait_for_payment, Invoice("never", timedelta(seconds=0.2), timedelta(seconds=0.5)))
        print(await never.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
