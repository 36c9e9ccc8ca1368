"""A Postgres whose texts are sorted as people of a language do: what is in an order is in the same as on SQLite, which
sorts by code points, and whoever goes on after the last that came misses nothing.

A server that sorts like that is not at hand everywhere: the binaries that the tests fetch have such collations, but
make no database with one. So all columns of the tables are given one, which is the same to every comparison.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.model import queue_config
from stepfast.model.records import Claimed, Lane
from stepfast.model.rows import NO_CALL
from tests.store.conftest import EVERYWHERE, Stores, only_on
from tests.store.scene import Scene, failed_try, new_run, step, under_way, value
from tests.store.test_reading import definition
from tests.store.test_schedules import spec

pytestmark = [EVERYWHERE, only_on("postgres12", "sqlite")]

NAMES = ["a", "B", "_b", "Ä", "b", "A", "ä", "z", "Z", "10", "2", "a b", "a-b", "ab", "~", "/x"]
BRANCHES = ["", "10.2", "10.10", "1/0", "1.0", "1.0/2", "2", "10", "~undo", "1", "0/1", "0.1", "9.9/9"]
NAMESPACE = "collated"
"""Not the usual one, whose tables are used again by other tests."""
ASKED = ("known_workers", "sleeps", "activity", "dags_shown")
WANTED = ("en-US-x-icu", "en_US.utf8", "en_US")


async def collate(connection: Any) -> None:
    """Give each column of the tables a collation of a language. Of the views, which stand on them, those are made anew
    that statements ask."""
    schema = f"'{NAMESPACE}'::regnamespace"
    known = "SELECT collname::text FROM pg_collation WHERE collname::text = ANY($1) AND collencoding IN (-1, 6) "
    known += "ORDER BY array_position($1, collname::text) LIMIT 1"
    collation = await connection.fetchval(known, WANTED)
    asked = [
        (name, await connection.fetchval(f"SELECT pg_get_viewdef('{NAMESPACE}.{name}'::regclass)")) for name in ASKED
    ]
    views = await connection.fetch(
        f"SELECT oid::regclass FROM pg_class WHERE relnamespace = {schema} AND relkind = 'v'"
    )
    for (view,) in views:
        await connection.execute(f"DROP VIEW IF EXISTS {view} CASCADE")
    columns = await connection.fetch(
        "SELECT c.oid::regclass, quote_ident(a.attname) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        f"WHERE c.relnamespace = {schema} AND c.relkind = 'r' AND a.attnum > 0 AND a.atttypid = 'text'::regtype"
    )
    for table, column in columns:
        await connection.execute(f'ALTER TABLE {table} ALTER COLUMN {column} TYPE text COLLATE "{collation}"')
    for name, text in asked:
        await connection.execute(f"CREATE VIEW {NAMESPACE}.{name} AS {text}")
    await connection.execute(f"INSERT INTO {NAMESPACE}.queues (name) VALUES ('a'), ('B')")
    found = await connection.fetch(f"DELETE FROM {NAMESPACE}.queues WHERE name > 'a' RETURNING name")
    assert [row["name"] for row in found] == ["B"], "sorted by a language"
    await connection.execute(f"DELETE FROM {NAMESPACE}.queues")


@pytest.fixture
async def scene(stores: Stores) -> Scene:
    """On tables whose texts are sorted by a language; on SQLite, where there is no such thing, as they are."""
    store = await stores.open(NAMESPACE)
    await store.migrate()
    if stores.url.kind != "sqlite":
        connection = await asyncpg.connect(stores.url.text)
        try:
            await collate(connection)
        finally:
            await connection.close()
    return await stores.scene(store, NAMESPACE)


async def test_lists_are_in_the_order_of_code_points(scene: Scene) -> None:
    store = scene.store
    await store.put_definitions([definition(name) for name in NAMES])
    run = await scene.running()
    await scene.flush(*(value(run, name, "1") for name in NAMES))
    await scene.flush(*(under_way(run, branch=branch, position=n) for branch in BRANCHES for n in (10, 9)))
    for name in NAMES:
        await store.put_schedule(spec(name))
        await store.change_queue(name, queue_config.pause)
    assert [found.name for found in await store.definitions()] == sorted(NAMES)
    assert [key for key, _, _ in await store.values(run.id)] == sorted(NAMES)
    assert [found.name for found in await store.schedules()] == sorted(NAMES)
    assert [found.name for found in await store.queues()] == sorted(NAMES)
    places = [(found.branch, found.position) for found in await store.progress(run.id)]
    assert places == sorted((branch, n) for branch in BRANCHES for n in (10, 9))


async def test_pages_hold_everything_once(scene: Scene) -> None:
    """Their order is that of the index; who reads them sorts what they bring."""
    run, places = await scene.running(), {(branch, n) for branch in BRANCHES for n in range(5)}
    await scene.flush(*(step(run, n, branch=branch, seq=0) for branch, n in places))
    await scene.flush(*(failed_try(run, n, branch=branch) for branch, n in places))
    records: list[Any] = []
    while page := await scene.store.steps(run.id, _place(records[-1]) if records else ("", -1), 7):
        records += page
    assert sorted(map(_place, records)) == sorted(places)
    calls: list[Any] = []
    while more := await scene.store.activity(run.id, calls[-1].key if calls else NO_CALL, 7):
        calls += more
    assert sorted(_place(call) for call in calls) == sorted([*places, *places])
    tries = [(found.branch, found.position) for found in await scene.store.tries(run.id)]
    assert tries == sorted(places)


def _place(row: Any) -> tuple[str, int]:
    return row.branch, row.position


async def test_every_lane_is_found_and_claimed_from(scene: Scene) -> None:
    """The lanes are walked through along an index, from one name to the next."""
    lanes = {Lane(queue, workflow, 0) for queue in NAMES for workflow in ("order", "mail")}
    await scene.store.start([new_run(lane.workflow, queue=lane.queue) for lane in lanes])
    assert set(await scene.lanes()) == lanes
    assert len({(run.queue, run.workflow) for run in await scene.claim(100, lanes=sorted(lanes))}) == len(lanes)


async def test_a_run_is_replayed_whatever_the_order_of_its_records(scene: Scene, stores: Stores) -> None:
    """A claim brings its first records along, the rest comes in pages, and all of them answer."""
    called: list[int] = []

    def once(n: int) -> int:
        called.append(n)
        return n

    async with Stepfast(
        stores.url.text, namespace=NAMESPACE, settings=Settings(history_records=7, inline_wait=0)
    ) as app:

        @app.workflow
        async def order(ctx: Context) -> int:
            async def item(ctx: Context, n: int) -> int:
                first = await ctx.step("one", once, n)
                await ctx.wait_signal("go")
                return first + await ctx.step("two", once, 100)

            return sum(await ctx.map(item, range(40)))

        run = await app.start(order)
        await app.drain()
        await asyncio.gather(*(run.signal("go") for _ in range(40)))
        await app.drain()
        assert await run.result(timeout=20) == sum(range(40)) + 4000
        assert sorted(called) == [*range(40), *[100] * 40], "none was called twice"
        exported = (await run.export())["steps"]
        assert [(row["branch"], row["position"]) for row in exported] == sorted(
            (row["branch"], row["position"]) for row in exported
        )


async def test_calls_of_one_moment_are_told_in_one_order(scene: Scene, run: Claimed, stores: Stores) -> None:
    await scene.flush(*(failed_try(run, branch=branch) for branch in BRANCHES))
    await scene.rows.fetch("UPDATE [tries] SET started_at = 1, completed_at = 1")
    async with Stepfast(stores.url.text, namespace=NAMESPACE) as app:
        told = await app.get(run.id).activity()
    assert [call.branch for call in told] == sorted(BRANCHES)
