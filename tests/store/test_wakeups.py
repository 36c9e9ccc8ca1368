"""Wake-ups: never required, but they come (rule 11, 38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.model.records import Lane
from holdfast.store import Store
from holdfast.store.protocol import Wakeups
from tests.store.scene import Scene, new_run


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Queue[Wakeups]]:
    """What a listener hears; ready when the first word has come, which says that it listens."""
    heard: asyncio.Queue[Wakeups] = asyncio.Queue()
    task = asyncio.create_task(store.listen(heard.put_nowait))
    async with asyncio.timeout(30):
        await heard.get()
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hear(heard: asyncio.Queue[Wakeups], wanted: Wakeups) -> None:
    async with asyncio.timeout(30):
        while await heard.get() != wanted:
            pass


async def test_a_listener_hears_what_is_told_in_its_own_process(store: Store) -> None:
    news = Wakeups(frozenset({Lane("vip", "order", 3), Lane("a", "mail", 0)}), False)
    async with listening(store) as heard:
        await store.notify(news)
        await hear(heard, news)
        assert store.can_wake


async def test_a_listener_learns_of_what_another_store_wrote(scene: Scene, twin: Store) -> None:
    """On Postgres by what it says, on SQLite by the commit itself."""
    async with listening(scene.store) as heard:
        await twin.start([new_run()])
        await twin.notify(Wakeups(frozenset({Lane("order", "order", 0)}), True))
        async with asyncio.timeout(30):
            assert (await heard.get()).ended


async def test_many_lanes_at_once_still_wake(store: Store) -> None:
    lanes = frozenset(Lane(f"queue {n} {'x' * 60}", "order", 0) for n in range(500))
    async with listening(store) as heard:
        await store.notify(Wakeups(lanes, True))
        async with asyncio.timeout(30):
            assert (await heard.get()).ended


async def test_two_listeners_of_one_store_both_hear(store: Store) -> None:
    news = Wakeups(frozenset({Lane("vip", "order", 3)}), True)
    async with listening(store) as first, listening(store) as second:
        await store.notify(news)
        await hear(first, news)
        await hear(second, news)
