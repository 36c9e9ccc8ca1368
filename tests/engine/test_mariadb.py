"""What a run needs in its life, on MariaDB: the part of it that `make test` tries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, Stepfast, step
from tests.remote_steps.conftest import echoing_worker
from tests.support.engine import PATIENCE


@pytest.fixture
def url(mariadb_url: str) -> str:
    return mariadb_url


@step
async def double(number: int) -> int:
    return 2 * number


async def book(connection: Any, number: int) -> int:
    cursor = connection.cursor()
    await cursor.execute("INSERT INTO bookings (number) VALUES (%s)", (number,))
    await cursor.execute("SELECT sum(number) FROM bookings")
    return int((await cursor.fetchone())[0])


async def test_a_run_lives_on_mariadb(app: Stepfast) -> None:
    @app.workflow
    async def part(ctx: Context, number: int) -> int:
        return await ctx.step(double, number)

    @app.workflow
    async def whole(ctx: Context, number: int) -> list[Any]:
        parts = await ctx.gather(*(ctx.call(part, each) for each in range(number)))
        await ctx.sleep(0.01)
        said = await ctx.wait_signal("go", type=str)
        return [said, await ctx.transaction(book, number), *parts]

    async with app, app.worker():
        store: Any = await app.store()
        await store._with_connection(lambda c: c.cursor().execute("CREATE TABLE bookings (number integer)"))
        run = await app.start(whole, 3, key="once")
        assert (await app.start(whole, 3, key="once")).id == run.id
        await run.signal("go", "now")
        assert await run.result(timeout=PATIENCE) == ["now", 3, 0, 2, 4]


async def test_a_dag_lives_on_mariadb(app: Stepfast) -> None:
    dag = app.dag("sum")

    @dag.step
    async def one(ctx: Any) -> int:
        return int(ctx.input)

    @dag.step(after=[one])
    async def two(ctx: Any) -> int:
        return int(ctx.outputs["one"]) + 1

    async with app, app.worker():
        runs = await asyncio.gather(*(app.start(dag, number) for number in range(3)))
        assert [(await run.result(timeout=PATIENCE))["two"] for run in runs] == [1, 2, 3]


async def test_a_remote_step_is_sent_in_the_same_commit_on_mariadb(app: Stepfast, url: str) -> None:
    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.remote("echo", 7, type=int)

    async with app, app.worker(), echoing_worker(url):
        run = await app.start(shop)
        assert await run.result(timeout=PATIENCE) == 7
