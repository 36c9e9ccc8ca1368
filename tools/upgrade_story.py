"""The runs of `make test-upgrade`: begun by the code of one commit, and finished by that of another.

python tools/upgrade_story.py migrate|begin|finish URL [ids]

Which code that is, `PYTHONPATH` says. Only calls that are promised are made here, so that any commit can be asked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from stepfast import Context, DagContext, Settings, Stepfast, step

PATIENCE = 30.0
EXPECTED = {
    "order": ["charged o-1", "shipped", True, 84],
    "patient": "slept",
    "undone": "compensated",
    "graph": {"reserve": "r-1", "ok": True, "send": "sent r-1"},
    "plain": 42,
}


@step(retries=2)
async def charge(order: str) -> str:
    return f"charged {order}"


async def take_back(output: str, *args: Any) -> None: ...


def declare(app: Stepfast) -> None:
    """One workflow of each kind, each with something to wait for."""

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow(name="order")
    async def order(ctx: Context, order: str) -> list[Any]:
        receipt = await ctx.step(charge, order)
        shipped = await ctx.step("ship", lambda: "shipped")
        approved = await ctx.wait_signal("approved", type=bool)
        return [receipt, shipped, approved, await ctx.call(double, 42)]

    @app.workflow(name="patient")
    async def patient(ctx: Context) -> str:
        await ctx.sleep(1)
        await ctx.wait_signal("go")
        return await ctx.step("wake", lambda: "slept")

    @app.workflow(name="undone", max_attempts=1)
    async def undone(ctx: Context) -> None:
        await ctx.options(compensate=take_back).step(charge, "o-2")
        await ctx.wait_signal("go")
        raise ValueError("on purpose")

    graph = app.dag("graph")

    @graph.step
    async def reserve(ctx: DagContext) -> str:
        return "r-1"

    graph.approval("ok", after=["reserve"])

    @graph.step(after=["ok"])
    async def send(ctx: DagContext) -> str:
        return f"sent {ctx.outputs['reserve']}"


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something, within bounds."""
    async with asyncio.timeout(PATIENCE):
        while not await met():
            await asyncio.sleep(0.05)


async def begin(app: Stepfast) -> dict[str, str]:
    """Start a run of each kind, and work until each waits for somebody; the last one waits in line."""
    runs = {
        "order": await app.start("order", "o-1", key="o-1", tags=["a"]),
        "patient": await app.start("patient"),
        "undone": await app.start("undone"),
        "graph": await app.start("graph", {"cents": 5}),
    }

    async def all_wait() -> bool:
        infos = [await run.info() for name, run in runs.items() if name != "graph"]
        steps = {each.name: each.status for each in await runs["graph"].steps()}
        return {info.status for info in infos} == {"waiting"} and steps.get("reserve") == "completed"

    async with app.worker():
        await until(all_wait)
    runs["plain"] = await app.start("double", 21, delay=1)
    return {name: run.id for name, run in runs.items()}


async def finish(app: Stepfast, ids: dict[str, str]) -> dict[str, Any]:
    """Give each what it waits for, work until all have ended, and read everything that can be read."""
    runs = {name: app.get(run_id) for name, run_id in ids.items()}
    await runs["order"].signal("approved", True)
    await runs["patient"].signal("go")
    await runs["undone"].signal("go")
    await runs["graph"].signal("ok", True)

    async def all_ended() -> bool:
        statuses = [await run.status() for run in runs.values()]
        return all(status in ("completed", "failed", "compensated") for status in statuses)

    async with app.worker():
        await until(all_ended)
    found: dict[str, Any] = {}
    for name, run in runs.items():
        info = await run.info()
        await run.steps(), await run.activity()
        found[name] = info.status if name == "undone" else await run.result(timeout=PATIENCE)
    assert len(await app.runs()) >= len(runs)
    return found


async def main(what: str, url: str, *rest: str) -> None:
    """Do one part, and say what came of it as JSON."""
    app = Stepfast(url, settings=Settings(lease=5, sweep_interval=0.5, poll_interval=0.2, inline_wait=0.05))
    declare(app)
    async with app:
        if what == "migrate":
            print(json.dumps(await app.migrate()))
        elif what == "begin":
            print(json.dumps(await begin(app)))
        else:
            found = await finish(app, json.loads(rest[0]))
            assert found == EXPECTED, f"came out as {found}"
            print(json.dumps("as expected"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
