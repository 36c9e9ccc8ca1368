"""Hostile settings: every wait is released at once, a lease lasts a second, and nobody is told of anything. Whatever a
workflow does, it gives the same result."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ChildFailed,
    Context,
    RetryLater,
    Run,
    Settings,
    SignalTimeout,
    Stepfast,
    SyncContext,
    WaitTimeout,
)
from tests.engine.conftest import MakeApp
from tests.support.engine import Calls
from tests.support.waiting import deafen, rows_of
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")

HOSTILE = Settings(inline_wait=0, lease=1, poll_interval=0.1, sweep_interval=0.2)
AT_ONCE = Backoff(base=0.01, jitter=False)
LONG = 40.0

Helped = Callable[[Run[Any]], Awaitable[None]]


# -- the workflows ------------------------------------------------------------------------------------------------


def register(app: Stepfast, calls: Calls) -> None:
    """One of each kind."""

    @app.task(name="double")
    async def double(number: int) -> int:
        return number * 2

    fails = task(app, "fails", error=ValueError("on purpose"), max_attempts=2, backoff=AT_ONCE)

    @app.workflow(name="retries", backoff=AT_ONCE)
    async def retries(ctx: Context) -> list[int]:
        def flaky(name: str) -> int:
            number = calls.hit(f"{ctx.run_id} {name}")
            if number < 3:
                raise RetryLater(0.01)
            return number

        first = await ctx.options(retries=2).step("by the step", flaky, "step")
        return [first, await ctx.step("by the attempt", flaky, "attempt")]

    @app.workflow(name="sleeps")
    async def sleeps(ctx: Context) -> str:
        for _ in range(3):
            await ctx.sleep(0.02)
        return "slept"

    @app.workflow(name="signals")
    async def signals(ctx: Context) -> list[Any]:
        got = [await ctx.wait_signal("go", type=int) for _ in range(5)]
        try:
            await ctx.wait_signal("never", timeout=0.05)
        except SignalTimeout:
            got.append(-1)
        return got

    @app.workflow(name="checks")
    async def checks(ctx: Context) -> list[int]:
        found = await ctx.wait_until("third time", lambda: _third(calls.hit(ctx.run_id)), every=0.01)
        try:
            await ctx.wait_until("never", lambda: None, every=0.01, timeout=0.05)
        except WaitTimeout:
            return [min(found, 3)]
        return []

    @app.workflow(name="children")
    async def children(ctx: Context) -> list[int]:
        handles = [await ctx.start(double, n) for n in range(5)]
        called = await ctx.call(double, 100)
        results = await ctx.gather(*(handle.result() for handle in handles))
        try:
            await ctx.call(fails)
        except ChildFailed:
            return [*results, called]
        return []

    @app.workflow(name="branches")
    async def branches(ctx: Context) -> list[Any]:
        async def line(ctx: Context, number: int) -> int:
            await ctx.sleep(0.01 * (number % 3))
            doubled = await ctx.step("double", lambda: number * 2)
            return doubled + await ctx.call(double, number)

        mapped = await ctx.map(line, range(6), limit=3)
        both = await ctx.gather(ctx.branch(line, 10), ctx.step("plain", lambda: "plain"))
        winner, _ = await ctx.first(early=ctx.sleep(0.01), late=ctx.sleep(3600), signal=ctx.wait_signal("never"))
        return [*mapped, *both, winner]

    @app.workflow(name="values")
    async def values(ctx: Context) -> str:
        for share in (0.1, 0.5, 0.9):
            await ctx.set("progress", share)
            await ctx.sleep(0.01)
        ctx.progress("nearly there")
        await ctx.set("progress", 1)
        return "set"

    @app.workflow(name="blocking")
    def blocking(ctx: SyncContext) -> list[Any]:
        first = ctx.step("first", lambda: 1)
        ctx.sleep(0.02)
        child = ctx.start(double, 4)
        got = ctx.wait_signal("go", type=int)
        return [first, child.result(), ctx.call(double, 5), got]

    @app.workflow(name="continues")
    async def continues(ctx: Context, left: int) -> str:
        await ctx.sleep(0.01)
        await ctx.step("work", lambda: None)
        if left:
            ctx.continue_as(left - 1)
        return "at last"

    @app.workflow(name="everything")
    async def everything(ctx: Context) -> list[Any]:
        async def waiting(ctx: Context, number: int) -> Any:
            got = await ctx.wait_signal("go", type=int)
            await ctx.sleep(0.01)
            return got + await ctx.call(double, number)

        async def working(ctx: Context, number: int) -> int:
            total = 0
            for turn in range(3):
                total += await ctx.step("work", lambda: number)
                await ctx.set(f"line {number}", turn)
                await ctx.sleep(0.005)
            return total

        lines = await ctx.gather(*(ctx.branch(working, n) for n in range(4)), ctx.branch(waiting, 7))
        found = await ctx.wait_until("third time", lambda: _third(calls.hit(ctx.run_id)), every=0.01)
        winner, _ = await ctx.first(signal=ctx.wait_signal("go"), child=ctx.call(double, 1))
        return [*lines, min(found, 3), winner in ("signal", "child"), str(ctx.uuid()) == str(ctx.uuid())]


def _third(number: int) -> int | None:
    return number if number >= 3 else None


async def _send_five(run: Run[Any]) -> None:
    for number in range(5):
        await run.signal("go", number)


async def _send_one(run: Run[Any]) -> None:
    await run.signal("go", 9)


async def _nobody(_run: Run[Any]) -> None: ...


KINDS: dict[str, tuple[Any, Helped, Any]] = {
    "retries": (None, _nobody, [3, 3]),
    "sleeps": (None, _nobody, "slept"),
    "signals": (None, _send_five, [0, 1, 2, 3, 4, -1]),
    "checks": (None, _nobody, [3]),
    "children": (None, _nobody, [0, 2, 4, 6, 8, 200]),
    "branches": (None, _nobody, [0, 4, 8, 12, 16, 20, 40, "plain", "early"]),
    "values": (None, _nobody, "set"),
    "blocking": (None, _send_one, [1, 8, 10, 9]),
    "continues": (3, _nobody, "at last"),
    "everything": (None, _send_one, [0, 3, 6, 9, 23, 3, True, False]),
}
"""Name → input, what is done from outside meanwhile, result."""


@pytest.fixture
async def apps(make_app: MakeApp, calls: Calls) -> list[Stepfast]:
    """Two that work, and one that starts and asks; none hears of another."""
    made = [make_app(settings=HOSTILE) for _ in range(3)]
    for app in made:
        register(app, calls)
        await deafen(app)
    return made


@asynccontextmanager
async def workers(apps: list[Stepfast]) -> AsyncIterator[None]:
    async with apps[0].worker(concurrency=3), apps[1].worker(concurrency=3):
        yield


# -- each by itself -----------------------------------------------------------------------------------------------


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_transaction_is_committed_once(apps: list[Stepfast], url: str) -> None:
    async def write_async(connection: Any, number: int) -> int:
        await connection.execute("INSERT INTO ledger (number) VALUES ($1)", number)
        return number

    async def write_on_mariadb(connection: Any, number: int) -> int:
        await connection.cursor().execute("INSERT INTO ledger (number) VALUES (%s)", (number,))
        return number

    def write(connection: Any, number: int) -> int:
        connection.execute("INSERT INTO ledger (number) VALUES (?)", (number,))
        return number

    call = {"mysql": write_on_mariadb, "sqlite": write}.get(url.partition(":")[0], write_async)
    for app in apps:

        @app.workflow(name="writes")
        async def writes(ctx: Context, first: int) -> int:
            for number in range(first, first + 5):
                await ctx.transaction("write", call, number)
                await ctx.sleep(0.005)
            return first

    async with rows_of(apps[2]) as rows:
        await rows.fetch("CREATE TABLE ledger (number integer)")
        async with workers(apps):
            runs = await apps[2].start_many("writes", list(range(0, 50, 5)))
            assert [await run.result(timeout=LONG) for run in runs] == list(range(0, 50, 5))
        written = await rows.fetch("SELECT number FROM ledger ORDER BY number")
    assert [number for (number,) in written] == list(range(50))


# -- all at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "life",
    [
        # What steady workers do, those that come and go do too, and each kind is tried alone.
        pytest.param("steady workers", marks=pytest.mark.thorough),
        "workers that come and go",
    ],
)
@pytest.mark.timeout(120)
@pytest.mark.enough_on("postgres")
async def test_all_kinds_at_once_give_the_same_results(apps: list[Stepfast], life: str) -> None:
    """Four of each, over two workers with three slots each."""
    outside = apps[2]

    async def one(kind: str) -> tuple[str, Any]:
        input_, help_, _ = KINDS[kind]
        run = await outside.start(kind, input_)
        await help_(run)
        return kind, await run.result(timeout=100)

    kinds = [kind for kind in KINDS for _ in range(4)]
    if life == "steady workers":
        async with workers(apps):
            results = await asyncio.gather(*map(one, kinds))
    else:
        leaving = asyncio.create_task(_come_and_go(apps))
        async with apps[1].worker(concurrency=3):
            results = await asyncio.gather(*map(one, kinds))
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    expected = {kind: result for kind, (_, _, result) in KINDS.items()}
    if life == "workers that come and go":
        # A call whose worker left before its record was committed is made again; it may be the fourth then.
        results = [(kind, [min(n, 3) for n in got] if kind == "retries" else got) for kind, got in results]
    wrong = [(kind, result) for kind, result in results if result != expected[kind]]
    assert wrong == []
    counted = {kind: len(await outside.runs(workflow=kind, status="completed", limit=100)) for kind in KINDS}
    assert counted == {kind: 16 if kind == "continues" else 4 for kind in KINDS}


async def _come_and_go(apps: list[Stepfast]) -> None:
    """One worker after the other, each stopped in the middle of whatever it does."""
    for turn in itertools.count():
        async with apps[0].worker(concurrency=3, shutdown_grace=0):
            await asyncio.sleep(0.1 + 0.1 * (turn % 3))
