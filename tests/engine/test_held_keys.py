"""A key that somebody's open transaction holds: a start with it waits, and no other start waits with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import AppClosed, Run, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.databases import connected
from tests.support.workflows import task

SOON = 6.0
"""Seconds within which a start that nothing holds up is back, also on a busy machine; a held one waits for longer."""


@pytest.fixture
def url(postgres_url: str) -> str:
    """Only here: on SQLite there is one lock for all who write."""
    return postgres_url


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    app = make_app()
    declare(app)
    return app


def declare(app: Stepfast) -> None:
    task(app, "work")


class Holder:
    """Somebody with a transaction open in which keys were used."""

    def __init__(self, connection: Any, app: Stepfast) -> None:
        self._connection = connection
        self._app = app
        self._transaction = connection.transaction()

    async def begin(self) -> None:
        await self._transaction.start()

    async def hold(self, key: str) -> Run[Any]:
        return await self._app.start("work", 1, key=key, connection=self._connection)

    async def end(self, how: str) -> None:
        await (self._transaction.commit() if how == "commit" else self._transaction.rollback())


@asynccontextmanager
async def holder(app: Stepfast, url: str) -> AsyncIterator[Holder]:
    await app.start("work", 0, key="before")  # what is told to the database once is told
    async with connected(url) as connection:
        somebody = Holder(connection, app)
        await somebody.begin()
        yield somebody


@asynccontextmanager
async def begun(call: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.ensure_future(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def backends(url: str, for_seconds: float = 0) -> int:
    """How many sessions of this database wait for a lock, and have been at it for so long."""
    async with connected(url) as connection:
        return int(
            await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
                "AND clock_timestamp() - xact_start >= make_interval(secs => $1)",
                for_seconds,
            )
        )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


async def until_somebody_waits(url: str) -> None:
    """For longer than a start may wait where others are behind it."""

    async def waits() -> bool:
        return await backends(url, for_seconds=0.2) > 0

    await until(waits)


def starting() -> int:
    """How many tasks of starts there are."""
    return sum(task.get_name() == "stepfast-start" and not task.done() for task in asyncio.all_tasks())


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_a_start_with_a_held_key_waits_alone(app: Stepfast, url: str, how: str) -> None:
    async with holder(app, url) as somebody:
        theirs = await somebody.hold("k1")
        async with begun(app.start("work", 1, key="k1")) as first:
            await until_somebody_waits(url)
            for n in range(5):
                async with asyncio.timeout(SOON):
                    await app.start("work", 2, key=f"k2-{n}")
            assert not first.done()
            await somebody.end(how)
            async with asyncio.timeout(SOON):
                run = await first
            assert (run.id == theirs.id) == (how == "commit")
            assert (await run.info()).key == "k1"
            assert run.id == (await app.start("work", 1, key="k1")).id
    assert starting() == 0


async def test_starts_sent_together_with_held_ones_do_not_wait_for_them(app: Stepfast, url: str) -> None:
    """More keys are held than there are connections to wait on, and they come before the free one."""
    async with holder(app, url) as somebody:
        theirs = [await somebody.hold(f"k{n}") for n in range(7)]
        held = asyncio.gather(*(app.start("work", 1, key=f"k{n}") for n in range(7)))
        async with begun(held):
            async with asyncio.timeout(SOON):
                await app.start("work", 2, key="z")
                many = await app.start_many("work", [1, 2], keys=["z", "zz"])
            assert len(many) == 2 and not held.done()
            await somebody.end("commit")
            async with asyncio.timeout(SOON * 2):
                assert [run.id for run in await held] == [run.id for run in theirs]


async def test_many_with_a_held_key_among_them_wait_and_are_all_or_none(app: Stepfast, url: str) -> None:
    async with holder(app, url) as somebody:
        theirs = await somebody.hold("k1")
        async with begun(app.start_many("work", [1, 2], keys=["k1", "k0"])) as many:
            await until_somebody_waits(url)
            async with asyncio.timeout(SOON):
                await app.start("work", 2, key="k2")
            assert not many.done()
            assert [run.key for run in await app.runs()] == ["k2", "before"]
            await somebody.end("commit")
            async with asyncio.timeout(SOON):
                assert (await many)[0].id == theirs.id


async def test_a_caller_who_is_cancelled_while_the_key_is_held_leaves_nothing(app: Stepfast, url: str) -> None:
    async with holder(app, url) as somebody:
        await somebody.hold("k1")
        for _ in range(3):  # more than there are places to wait
            async with begun(app.start("work", 1, key="k1")) as first:
                await until_somebody_waits(url)
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    async with asyncio.timeout(SOON):
                        await first

        async def quiet() -> bool:
            return starting() == 0 and await backends(url) == 0

        await until(quiet)
        await somebody.end("rollback")
        assert [run.key for run in await app.runs()] == ["before"]


async def test_closing_the_application_ends_the_wait(app: Stepfast, url: str) -> None:
    async with holder(app, url) as somebody:
        await somebody.hold("k1")
        async with begun(app.start("work", 1, key="k1")) as first:
            await until_somebody_waits(url)
            async with asyncio.timeout(SOON * 2):
                await app.close()
                with pytest.raises(AppClosed):
                    await first
            assert starting() == 0
