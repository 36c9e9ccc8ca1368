"""Waiting for someone outside who is told a token: a payment provider, a person with a link, a job elsewhere.

A checkout mails a link and waits for the provider, which calls back over HTTP. The provider repeats its request,
because it may have lost the reply. Another payment is declined, a link is never used, and a job that died is noticed by
its heartbeat.

    pip install 'stepfast[web]' httpx
    python examples/payment_link.py
    STEPFAST_URL=postgresql://… python examples/payment_link.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from stepfast import CallbackFailed, CallbackTimeout, Context, Run, Stepfast
from stepfast.web import callbacks

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))
web = Starlette(routes=[Mount("/paid", routes=callbacks(app))])


@dataclass
class Order:
    """The input of a run: how long its link is good, and how often a provider that works on it says so."""

    id: str
    good_for: float = 3600
    says_so_every: float | None = None


@dataclass
class Receipt:
    """What the provider sends."""

    cents: int


links: dict[str, str] = {}


async def send_link(order: str, url: str) -> None:
    """The step that hands the token out. Its recorded arguments have a hash in the token's place."""
    links[order] = url


@app.workflow
async def checkout(ctx: Context, order: Order) -> str:
    """No slot is held while it waits."""
    payment = await ctx.callback("payment", type=Receipt, timeout=order.good_for, heartbeat=order.says_so_every)
    await ctx.step(send_link, order.id, f"/paid/{payment.token}")
    try:
        receipt = await payment.result()
    except CallbackFailed as failed:
        return f"{order.id}: not paid, {failed.message}"
    except CallbackTimeout:
        return f"{order.id}: not paid in time"
    return f"{order.id}: paid {receipt.cents / 100:.2f}"


async def begin(order: Order) -> Run[str]:
    """Start a checkout, and wait until its link is sent."""
    run = await app.start(checkout, order)
    while order.id not in links:
        await asyncio.sleep(0.01)
    return run


async def main() -> None:
    """Four orders, and a provider that only knows addresses."""
    provider = httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="https://shop.example")
    async with app, app.worker(), provider:
        books = await begin(Order("books"))
        odd = await provider.post(links["books"], json={"value": {"cents": "many"}})
        print(odd.status_code, odd.json()["error"].partition(": ")[2])
        for _ in range(2):
            print((await provider.post(links["books"], json={"value": {"cents": 4900}})).json())
        print(await books.result(timeout=30))
        other = await provider.post(links["books"], json={"value": {"cents": 1}})
        print(other.status_code, other.json()["state"])

        piano = await begin(Order("piano"))
        await provider.post(links["piano"], json={"error": "declined"})
        print(await piano.result(timeout=30))

        lamp = await begin(Order("lamp", good_for=0.2))
        print(await lamp.result(timeout=30))

        house = await begin(Order("house", says_so_every=0.5))
        for _ in range(3):
            await asyncio.sleep(0.2)
            await provider.post(f"{links['house']}/beat")
        print(await house.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
