"""Reaping on Postgres: a run is locked first, and only then it is decided whether its worker is dead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast.store.postgres.store import PostgresStore
from tests.store.conftest import Stores
from tests.store.scene import Scene


@pytest.fixture(params=["postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url"))


class Between:
    """A connection on which something happens between the moment the look for lost runs sees the tables and the moment
    it locks a row: the look is opened as a cursor, which keeps its sight."""

    def __init__(self, connection: Any, sql: str, happens: Any) -> None:
        self._connection = connection
        self._sql = sql
        self._happens = happens
        self.locked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, sql: str, *arguments: Any) -> Any:
        if sql != self._sql:
            return await self._connection.fetch(sql, *arguments)
        cursor = await self._connection.cursor(sql, *arguments)
        await self._happens()
        rows = await cursor.fetch(100)
        self.locked = [str(row["id"]) for row in rows]
        return rows


async def test_a_run_that_changed_hands_meanwhile_is_not_taken_from_a_living_worker(
    scene: Scene, stores: Stores
) -> None:
    """Reaped by another, and claimed by a worker that has come since: the look does not know that worker."""
    store = scene.store
    assert isinstance(store, PostgresStore)
    victim = await scene.add_worker()
    run = await scene.running(worker=victim)
    await scene.rows.silence(victim)
    other = await stores.scene(await stores.open())
    newcomer: list[str] = []

    async def change_hands() -> None:
        assert (await other.store.reap(other.worker, 10, 5)).moved == 1
        newcomer.append(await other.add_worker())
        assert [taken.id for taken in await other.claim(worker=newcomer[0])] == [run.id]

    kept, seen = store._kept["sweep"], []
    use = kept.use

    @asynccontextmanager
    async def use_between() -> AsyncIterator[Any]:
        async with use() as connection:
            between = Between(connection, store._sql["lock_lost"], change_hands)
            seen.append(between)
            yield between

    kept.use = use_between  # type: ignore[method-assign]
    reaping = await scene.store.reap(scene.worker, 10, 5)
    assert seen[0].locked == [run.id], "the trap: it was locked as lost"
    assert reaping.moved == 0
    row = await scene.info(run.id)
    assert (row.worker, row.losses, row.status) == (newcomer[0], 1, "running")
