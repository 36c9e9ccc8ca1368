"""Checkpoints of graphs and sessions of agents: written twice they are there once, and what is deleted is gone."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from stepfast.store import Store
from stepfast.store.flows.checkpoints import CheckpointRow, WriteRow, checkpoint_id, value_id
from tests.store.scene import Scene

THREAD, NS = "t-1", "inner"


def checkpoint(name: str, versions: str, thread: str = THREAD, run: str | None = None, ns: str = NS) -> CheckpointRow:
    return CheckpointRow(checkpoint_id(thread, ns, name), thread, ns, name, None, run, versions, f'"{name}"', 1)


async def names(store: Store, *place: str | None, most: int = 9, before: str | None = None) -> list[str]:
    thread, ns = (*place, None, None)[:2]
    return [row.checkpoint for row in await store.checkpoints(thread, ns, before, None, most)]


async def test_a_checkpoint_that_is_put_twice_is_there_once(store: Store) -> None:
    for value in ("1", "2"):  # the reply to the first was lost; what a version has does not change
        await store.put_checkpoint(checkpoint("c-1", '{"x": 1.5, "y": "v"}'), [("x", 1.5, value), ("y", "v", '"é"')])
    found = await store.checkpoint(checkpoint_id(THREAD, NS, "c-1"))
    assert found == checkpoint("c-1", '{"x": 1.5, "y": "v"}')
    ids = [value_id(THREAD, NS, "x", 1.5), value_id(THREAD, NS, "y", "v"), value_id(THREAD, NS, "z", 1)]
    assert await store.checkpoint_values(ids) == {ids[0]: ("1", 1), ids[1]: ('"é"', 1)}
    writes = [WriteRow(found.id, task, path, 0, "x", "1", 1) for task, path in (("b", "p1"), ("a", "p2"))]
    for _ in range(2):
        await store.put_checkpoint_writes(THREAD, writes, replace=False)
    await store.put_checkpoint_writes(THREAD, [writes[0]._replace(value="2")], replace=False)
    assert await store.checkpoint_writes([found.id]) == writes
    await store.put_checkpoint_writes(THREAD, [writes[0]._replace(value="2")], replace=True)
    assert [row.value for row in await store.checkpoint_writes([found.id])] == ["2", "1"]


async def test_pages_go_from_the_newest_on_also_over_equal_names(store: Store) -> None:
    for thread, ns, name in (
        ("a", "", "c-2"),
        ("a", "", "c-10"),
        ("a", "n", "c-2"),
        ("b", "", "C-2"),
        ("b", "", "c-2"),
    ):
        await store.put_checkpoint(checkpoint(name, "{}", thread, ns=ns), [])
    assert await names(store, "a", "") == ["c-2", "c-10"]  # by their characters
    assert await names(store, "a") == ["c-2", "c-2", "c-10"]
    assert await names(store, "a", before="c-2") == ["c-10"]
    pages: list[CheckpointRow] = []
    while page := await store.checkpoints(None, None, None, pages[-1] if pages else None, 2):
        pages += page
    assert [row.checkpoint for row in pages] == ["c-2", "c-2", "c-2", "c-10", "C-2"]
    assert len({row.id for row in pages}) == 5


async def test_what_others_need_outlives_a_deletion(store: Store, scene: Scene) -> None:
    kept, gone = '{"x": 1, "y": 2}', '{"x": 1, "y": 1}'
    await store.put_checkpoint(checkpoint("c-1", gone, run="r-1"), [("x", 1, "1"), ("y", 1, "1")])
    await store.put_checkpoint(checkpoint("c-2", kept), [("y", 2, "2")])
    await store.copy_thread(THREAD, "t-2", await store.checkpoints(THREAD, None, None, None, 9))
    for row in (checkpoint("c-1", gone), checkpoint("c-2", kept)):
        await store.put_checkpoint_writes(THREAD, [WriteRow(row.id, "t", "", 0, "x", "1", 1)], False)
    await store.delete_checkpoints_of_runs(["r-1"])  # in the copy, too
    ids = {value_id(thread, NS, *key) for thread in (THREAD, "t-2") for key in (("x", 1), ("y", 1), ("y", 2))}
    assert set(await store.checkpoint_values(ids)) == ids - {value_id(t, NS, "y", 1) for t in (THREAD, "t-2")}
    assert [await names(store, thread) for thread in (THREAD, "t-2")] == [["c-2"], ["c-2"]]
    await store.delete_threads([THREAD])
    assert await store.delete_old_threads(3_600_000, 9) == 0
    assert await store.delete_old_threads(0, 9) == 1
    for table in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        assert await scene.rows.fetch(f"SELECT count(*) FROM [{table}]") == [(0,)], table


async def test_a_session_has_each_batch_once_and_gives_each_item_once(store: Store, scene: Scene) -> None:
    async def texts() -> list[str]:
        return [row.value for row in reversed(await store.session_items("s", 99))]

    batches = [str(uuid4()) for _ in range(5)]
    await asyncio.gather(
        *(store.add_session_items("s", batch, [f"{batch} 1", f"{batch} 2"], 1) for batch in batches * 2)
    )
    found = await texts()
    assert len(found) == 10 and [text[-1] for text in found] == ["1", "2"] * 5
    takers = [str(uuid4()) for _ in range(4)]
    taken: list[Any] = await asyncio.gather(*(store.take_session_item("s", taker, 1) for taker in takers * 2))
    assert {row.value for row in taken} == set(found[-4:])
    assert [row.value for row in taken[:4]] == [row.value for row in taken[4:]]  # asked again: the same
    await store.forget_session_item("s", takers[0])
    await store.add_session_items("s", str(uuid4()), ["last"], 1)
    assert await texts() == [*found[:6], "last"]
    await store.delete_sessions(["s", "none"])
    assert await scene.rows.fetch("SELECT count(*) FROM [session_items]") == [(0,)]
