"""Workflows that wait; copied into the folder of each test, as if a user had written them there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from stepfast import Context, Settings, Stepfast, SyncContext

app = Stepfast(settings=Settings(inline_wait=0))


@app.workflow
async def approval(ctx: Context) -> str:
    ok = await ctx.wait_signal("approved", type=bool, timeout=timedelta(days=1))
    return "yes" if ok else "no"


@app.workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep(timedelta(hours=1))
    return "rested"


@app.workflow
async def tide(ctx: Context) -> bool:
    return await ctx.wait_until(is_high, every=timedelta(hours=1), timeout=timedelta(days=1))


def is_high() -> bool:
    return Path("high").exists()


@app.workflow
async def convoy(ctx: Context) -> list[str]:
    first = await ctx.start(approval)
    return [await first.result(), await ctx.call(approval)]


@app.workflow(max_attempts=1)
async def saga(ctx: Context, end: str) -> str:
    await ctx.options(compensate=free).step("reserve", reserve, "berth 7")
    await ctx.options(compensate=free).step("reserve", reserve, "pilot")
    if end == "fail":
        raise ValueError("storm")
    return str(await ctx.wait_signal("sail"))


async def reserve(what: str) -> str:
    return what


async def free(reserved: str, what: str) -> None:
    if Path("jammed").exists():
        raise ConnectionError(f"{reserved} does not answer")


@app.workflow
async def voyage(ctx: Context, left: int) -> str:
    await ctx.set("left", left)
    if left:
        ctx.continue_as(left - 1)
    return "home"


@app.workflow
async def race(ctx: Context) -> str:
    winner, _ = await ctx.first(dock=ctx.branch(dock), late=ctx.sleep(timedelta(hours=1)))
    await ctx.sleep(timedelta(hours=1))
    return winner


async def dock(ctx: Context) -> str:
    return await ctx.step("tie up", reserve, "quay")


@app.workflow
async def pledge(ctx: Context) -> str:
    winner, _ = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(timedelta(days=1)))
    await ctx.sleep(timedelta(hours=1))
    return winner


@app.workflow
def sync_nap(ctx: SyncContext) -> str:
    slept = ctx.step("make the bed", lambda: "bed")
    ctx.sleep(timedelta(hours=1))
    return slept


@app.workflow
async def parcel(ctx: Context) -> int:
    callback = await ctx.callback("arrived", type=int, heartbeat=timedelta(hours=1))
    await ctx.set("token", callback.token)
    return await callback.result()


@app.workflow
async def moored(ctx: Context) -> str:
    event = await ctx.wait_event("ship.moored", key="elbe")
    return str(event.data)


@app.workflow
async def counter(ctx: Context) -> int:
    question = await ctx.wait_question("next", type=int)
    await question.answer(question.value + 1)
    return question.value
