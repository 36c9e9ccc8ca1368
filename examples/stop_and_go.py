"""What operators do to runs: hold them, let them go on, end them, begin anew.

The same as `stepfast pause`, `resume`, `cancel` and `retry`. An import is held between two steps and goes on where it
was. A parent is cancelled with its children. A run with something to undo is cancelled while a step of it is being
executed: the step finishes, is recorded, and is undone with the rest; then the whole is started anew.

    python examples/stop_and_go.py
    STEPFAST_URL=postgresql://… python examples/stop_and_go.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from stepfast import Context, InvalidState, Run, RunCancelled, Settings, Stepfast, step

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"), settings=Settings(inline_wait=0))

done: list[str] = []
under_way = asyncio.Event()
may_end = asyncio.Event()


async def load(part: int) -> int:
    """A step that takes as long as the story needs."""
    under_way.set()
    await may_end.wait()
    done.append(f"load {part}")
    return part


@app.workflow
async def import_parts(ctx: Context, parts: int) -> int:
    """One part after the other."""
    return sum([await ctx.step(load, part) for part in range(parts)])


@app.workflow
async def wait_for_word(ctx: Context) -> str:
    """A child that would wait for ever."""
    return await ctx.wait_signal("word", type=str)


@app.workflow
async def family(ctx: Context) -> list[str]:
    """A parent of three."""
    children = [await ctx.start(wait_for_word) for _ in range(3)]
    return list(await ctx.gather(*(child.result() for child in children)))


async def unrent(machine: str) -> None:
    """The undo."""
    done.append(f"{machine} given back")


@step(compensate=unrent)
async def rent() -> str:
    """The step to be undone."""
    under_way.set()
    await may_end.wait()
    return "a machine"


@app.workflow
async def compute(ctx: Context) -> str:
    """It rents something, and so must not simply stop."""
    machine = await ctx.step(rent)
    return await ctx.step("compute", lambda: f"computed on {machine}")


async def until(run: Run[Any], status: str) -> None:
    """Wait until the run stands so."""
    while await run.status() != status:
        await asyncio.sleep(0.02)


async def hold() -> None:
    """Pause and resume."""
    run = await app.start(import_parts, 3)
    await under_way.wait()
    await run.pause()
    print("a step is being executed, so it is still", await run.status())
    may_end.set()
    await until(run, "paused")
    print("then it is paused, after:", ", ".join(done))
    await run.resume()
    print("result:", await run.result(timeout=30), "after:", ", ".join(done))
    try:
        await run.pause()
    except InvalidState as error:
        print("refused:", str(error).partition("; ")[2])


async def end_a_family() -> None:
    """Children are cancelled with their parent."""
    parent = await app.start(family)
    await until(parent, "waiting")
    await parent.cancel()
    try:
        await parent.result(timeout=30)
    except RunCancelled:
        print("the parent is", await parent.status())
    while any(child.status != "cancelled" for child in await app.runs(workflow=wait_for_word)):
        await asyncio.sleep(0.02)
    print("its children too")


async def end_and_begin_anew() -> None:
    """A step in flight is let finish, recorded, and undone."""
    under_way.clear()
    may_end.clear()
    done.clear()
    run = await app.start(compute)
    await under_way.wait()
    await run.cancel()
    may_end.set()
    await until(run, "compensated")
    print("undone:", ", ".join(done))
    anew = await run.retry(from_start=True)
    print("anew:", await anew.result(timeout=30), "| linked:", (await anew.info()).origin == run.id)


async def main() -> None:
    """Three stories."""
    async with app, app.worker():
        await hold()
        await end_a_family()
        await end_and_begin_anew()


if __name__ == "__main__":
    asyncio.run(main())
