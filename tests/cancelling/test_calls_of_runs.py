"""Every call of a context, given up by the code of its run or cancelled with it, a number of turns of the event loop
after it was made: the run ends, and no task is left while the worker works on (rule 47)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context as Variables
from typing import Any

import pytest

from stepfast import Context, InvalidState, Run, RunCancelled, Settings, Stepfast, step
from tests.cancelling.trials import no_task_left
from tests.support.engine import PATIENCE

SHORT = 0.01
SETTINGS = Settings(sweep_interval=0.1, poll_interval=0.1, backoff_base=0.01, inline_wait=1)

Call = Callable[[Context], Awaitable[Any]]


@step
async def quick() -> None:
    await asyncio.sleep(0.002)


@step(timeout=5)
async def bounded() -> None:
    await asyncio.sleep(0.002)


@step(timeout=5)
def plain() -> None: ...


@step(retries=1)
async def fails() -> None:
    raise ValueError("again")


async def several(ctx: Context, _: int = 0) -> None:
    await ctx.step(quick)
    await ctx.sleep(SHORT)
    await ctx.step(bounded)


async def listens(ctx: Context) -> None:
    await ctx.wait_signal("never", timeout=0.05)


async def sends(ctx: Context) -> None:
    for item in range(3):
        ctx.stream("out").send(item)
        await ctx.step(quick)


def writes_plainly(connection: Any) -> None: ...


async def writes(connection: Any) -> None:
    await connection.fetchval("SELECT 1")


def calls_of(app: Stepfast) -> dict[str, Call]:
    @app.workflow(name="child")
    async def child(ctx: Context) -> None:
        await ctx.sleep(SHORT)

    write: Any = writes_plainly if app.url.text.startswith("sqlite") else writes

    return {
        "step": lambda ctx: ctx.step(quick),
        "bounded": lambda ctx: ctx.step(bounded),
        "plain": lambda ctx: ctx.step(plain),
        "fails": lambda ctx: ctx.step(fails),
        "transaction": lambda ctx: ctx.transaction(write),
        "bounded transaction": lambda ctx: ctx.options(timeout=5).transaction(write),
        "sleep": lambda ctx: ctx.sleep(SHORT),
        "signal": lambda ctx: ctx.wait_signal("s", timeout=SHORT),
        "question": lambda ctx: ctx.wait_question("q", timeout=SHORT),
        "check": lambda ctx: ctx.wait_until("check", lambda: None, every=SHORT, timeout=0.03),
        "call": lambda ctx: ctx.call(child),
        "start": lambda ctx: ctx.start(child),
        "gather": lambda ctx: ctx.gather(ctx.step(quick), ctx.sleep(SHORT), ctx.call(child), ctx.branch(listens)),
        "map": lambda ctx: ctx.map(several, [1, 2, 3], limit=2),
        "first": lambda ctx: ctx.first(a=ctx.branch(listens), b=ctx.step(bounded), c=ctx.wait_signal("s")),
        "first of waits": lambda ctx: ctx.first(a=ctx.branch(several), b=ctx.wait_signal("s"), c=ctx.sleep(0.02)),
        "remote": lambda ctx: ctx.remote("nobody", timeout=SHORT),
        "set": lambda ctx: ctx.set("key", 1),
        "stream": sends,
    }


class Turns:
    """Acts after so many turns of the event loop, unless it is over by then."""

    def __init__(self, left: int, act: Callable[[], object]) -> None:
        self._left = left
        self._act = act
        self.over = False
        self._turn()

    def _turn(self) -> None:
        """Outside of the call: what it does is not done by the code of a step."""
        if self.over:
            return
        if self._left:
            self._left -= 1
            asyncio.get_running_loop().call_soon(self._turn, context=Variables())
        else:
            self.over = True
            self._act()


async def given_up(call: Awaitable[Any], turns: int) -> None:
    """As a timeout of the code does it."""
    task = asyncio.current_task()
    assert task is not None
    limit = Turns(turns, task.cancel)
    try:
        await call
    except asyncio.CancelledError:
        if not task.cancelling():
            raise
        task.uncancel()
    except Exception:
        pass
    finally:
        limit.over = True


async def play(app: Stepfast, way: str, turns: list[int]) -> None:
    """Make each call so many turns long."""
    calls, cancel = calls_of(app), asyncio.Event()

    @app.workflow(name="run", max_attempts=1)
    async def run_of(ctx: Context, given: tuple[str, int]) -> None:
        what, number = given
        if way == "given up":
            await given_up(calls[what](ctx), number)
        else:
            limit = Turns(number, cancel.set)
            try:
                await calls[what](ctx)
            except Exception:
                pass
            finally:
                limit.over = True
                cancel.set()

    async with app.worker():
        await (await app.start(run_of, ("step", 10_000))).result(timeout=PATIENCE)
        before = asyncio.all_tasks()
        for what in calls:
            for number in turns:
                cancel.clear()
                run: Run[Any] = await app.start(run_of, (what, number))
                try:
                    if way == "cancelled":
                        await cancel.wait()
                        await run.cancel()
                    await run.result(timeout=PATIENCE)
                except (InvalidState, RunCancelled):
                    pass
                await no_task_left(before, f"{what} was {way} after {number} turns")


@pytest.mark.parametrize("way", ["given up", "cancelled"])
async def test_some_turns(url: str, way: str) -> None:
    async with Stepfast(url, settings=SETTINGS) as app:
        await play(app, way, random.Random(3).sample([*range(12), 20, 40, 80, 160, 320], 3))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["given up", "cancelled"])
async def test_all_turns(url: str, way: str) -> None:
    async with Stepfast(url, settings=SETTINGS) as app:
        await play(app, way, sorted({int(1.12**n) for n in range(80)}))
