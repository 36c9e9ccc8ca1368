"""Code that changes while runs are in flight, and runs that outlive any history.

Three deploys of one workflow, on one database. A run is started by the first, and waits. The second would put a step in
front of what is recorded; `check` says so before anybody deploys it. The third asks `ctx.patched` instead: the old run
goes on the old way, new runs take the new one. Then a run without an end: it goes on as a new run with
`ctx.continue_as` before its history grows long.

    python examples/code_changes.py
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass

from stepfast import Context, Settings, Stepfast

URL = "sqlite:///shop.db"  # in the folder the example runs in, a temporary one
SETTINGS = Settings(inline_wait=0)


def charge(order: str) -> str:
    """A step."""
    return f"charged {order}"


def reserve(order: str) -> str:
    """The step that was forgotten at first."""
    return f"reserved {order}"


def first_deploy() -> Stepfast:
    """What is running now."""
    app = Stepfast(URL, settings=SETTINGS)

    @app.workflow
    async def checkout(ctx: Context, order: str) -> list[str]:
        done = [await ctx.step(charge, order)]
        await ctx.wait_signal("packed")
        return done

    return app


def second_deploy() -> Stepfast:
    """A step more, before one that is recorded."""
    app = Stepfast(URL, settings=SETTINGS)

    @app.workflow
    async def checkout(ctx: Context, order: str) -> list[str]:
        done = [await ctx.step(reserve, order)]
        done.append(await ctx.step(charge, order))
        await ctx.wait_signal("packed")
        return done

    return app


def third_deploy() -> Stepfast:
    """The same, but only for runs that have not gone on from here by the old code."""
    app = Stepfast(URL, settings=SETTINGS)

    @app.workflow
    async def checkout(ctx: Context, order: str) -> list[str]:
        done = []
        if ctx.patched("reserve first"):
            done.append(await ctx.step(reserve, order))
        done.append(await ctx.step(charge, order))
        await ctx.wait_signal("packed")
        return done

    return app


async def change() -> None:
    """Three deploys, two runs."""
    async with first_deploy() as app:
        old = await app.start("checkout", "o-1")
        await app.drain()
        print("the old run is", await old.status())
    for deploy in (second_deploy, third_deploy):
        async with deploy() as app:
            for found in await app.check():  # stepfast check shop:app
                print(f"{deploy.__name__}: {found.verdict}", f"({found.detail.partition(' (')[0]})")
    async with third_deploy() as app:
        new = await app.start("checkout", "o-2")
        for run in (app.get(old.id), new):
            await run.signal("packed")
        await app.drain()
        for name, run in (("old", app.get(old.id)), ("new", new)):
            print(f"{name} run: {', '.join(await run.result(timeout=30))}")


# --- a run without an end ---------------------------------------------------------------------------------------------


@dataclass
class Meter:
    """What one run hands to the next: all that is worth keeping."""

    readings: int = 0
    total: int = 0


async def endless() -> None:
    """The chain ends when it is told to, so that the example does."""
    app = Stepfast("sqlite://", settings=SETTINGS)

    @app.workflow
    async def watch_meter(ctx: Context, meter: Meter) -> Meter:
        for _ in range(3):  # a thousand, in earnest
            value = await ctx.wait_signal("reading", type=int)
            if value < 0:
                return meter
            meter = Meter(meter.readings + 1, meter.total + value)
        return ctx.continue_as(meter)  # signals that were not taken go along

    async with app:
        run = await app.start(watch_meter, Meter())
        for value in (5, 7, 11, 13, 17, 19, 23, -1):
            await run.signal("reading", value)
        await app.drain()
        meter = await run.result(timeout=30)  # of the last run of the chain
        print(f"{meter.readings} readings, {meter.total} in all")
        links = {link.origin: link for link in await app.runs(workflow="watch_meter")}
        link = links.get(None)
        while link is not None:  # from the first to the last
            print(f"  a run with {len(await app.get(link.id).this.steps())} records: {link.reason or link.status}")
            link = links.get(link.id)


async def main() -> None:
    """Both stories."""
    await change()
    await endless()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="stepfast-changes-") as folder, contextlib.chdir(folder):
        asyncio.run(main())
