"""Wake-ups from other processes: never required, but they come (rules 11 and 38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stepfast.model.records import Lane
from stepfast.store import Store
from stepfast.store.answers import Wakeups
from tests.store.conftest import SHARED, only_on
from tests.store.scene import new_run

pytestmark = only_on(*SHARED)
"""A database in memory is its process's alone."""


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Queue[Wakeups]]:
    """What a listener hears after its first word, which only says that it listens."""
    heard: asyncio.Queue[Wakeups] = asyncio.Queue()
    task = asyncio.create_task(store.listen(heard.put_nowait))
    try:
        assert (await next_word(heard)).anything
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_word(heard: asyncio.Queue[Wakeups]) -> Wakeups:
    async with asyncio.timeout(30):
        return await heard.get()


async def test_a_listener_learns_of_what_another_process_put_in_line(store: Store, twin: Store) -> None:
    """On Postgres it is told the lane; on SQLite that something was committed."""
    lane = Lane("vip", "order", 3)
    async with listening(store) as heard:
        await twin.start([new_run(queue="vip", priority=3)])
        await twin.notify(Wakeups(frozenset({lane}), False))
        news = await next_word(heard)
        assert news.lanes == {lane} or (news.anything and store.dialect == "sqlite")
        assert store.can_wake


async def test_every_change_is_heard_not_only_the_first(store: Store, twin: Store) -> None:
    async with listening(store) as heard:
        for _ in range(5):
            await twin.start([new_run()])
            await twin.notify(Wakeups(frozenset({Lane("order", "order", 0)}), True))
            assert (await next_word(heard)).ended


async def test_more_lanes_than_fit_still_wake(store: Store, twin: Store) -> None:
    lanes = frozenset(Lane(f"queue {n} {'x' * 60}", "order", 0) for n in range(500))
    async with listening(store) as heard:
        await twin.start([new_run()])
        await twin.notify(Wakeups(lanes, True))
        assert (await next_word(heard)).anything


async def test_two_listeners_of_one_store_both_hear(store: Store, twin: Store) -> None:
    async with listening(store) as first, listening(store) as second:
        await twin.start([new_run()])
        await twin.notify(Wakeups(frozenset({Lane("order", "order", 0)}), True))
        for heard in (first, second):
            assert (await next_word(heard)).ended
