"""The application of these tests; copied into the folder of each, as if a user had written it there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from stepfast import Backoff, Context, Stepfast

app = Stepfast()
log = logging.getLogger("shop")


@dataclass
class Order:
    id: str
    cents: int


@app.task
async def double(order: Order) -> int:
    return order.cents * 2


@app.task(max_attempts=1)
async def refuse(text: str) -> None:
    raise ValueError(text)


@app.task(backoff=Backoff(base=600, jitter=False))
async def later(text: str) -> None:
    raise ValueError(text)


@app.task
async def nothing() -> None:
    log.info("nothing to do")


@app.workflow
async def checkout(ctx: Context, order: Order) -> dict[str, int]:
    total = await ctx.step("add tax", lambda cents: cents + 1, order.cents)
    charged = await ctx.step("charge", charge, total)
    return {"charged": charged}


async def charge(cents: int) -> int:
    log.info("charging")
    return cents


@app.workflow
async def stubborn(ctx: Context) -> None:
    await ctx.options(retries=3, backoff=Backoff(base=600, jitter=False)).step("knock", knock)


async def knock() -> None:
    raise ConnectionError("nobody opens")


@app.task
async def hold() -> str:
    """Until somebody makes a file named `release`."""
    log.info("holding")
    while not Path("release").exists():
        await asyncio.sleep(0.01)
    return "released"
