"""Ended runs: which of them may go, and what goes with them (rules 26, 35)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stepfast.model.records import Claimed, NewRun, RunShape
from stepfast.model.retention import Keep, Removal, needed_by
from stepfast.store import Store
from stepfast.store.flows.retention import DEPENDENT
from tests.store.conftest import Stores, only_on
from tests.store.graph_scene import CHAIN, Dag, graph_of
from tests.store.scene import (
    DAY,
    Scene,
    child_of,
    completed,
    failed,
    failed_try,
    joint,
    move,
    new_run,
    signal,
    step,
    under_way,
    value,
    waiting,
)

MONTH = Keep(30 * DAY, 90 * DAY)
FIRST = "00000000-0000-0000-0000-000000000000"
OF_RUNS = ("dag_id", "parent_id", "origin_id")
NAMES_A_RUN = {*(("runs", name) for name in OF_RUNS), ("schedules", "last_run"), ("checkpoints", "run")}
"""Columns of rows that name a run and do not go with it."""


async def old(scene: Scene, run_id: str, days: int = 31) -> str:
    for column in ("created_at", "completed_at"):
        await scene.rows.shift(run_id, column, -days * DAY)
    return run_id


async def ended(scene: Scene, days: int = 31, how: Any = completed, **start: Any) -> Claimed:
    """A run that ended so many days ago."""
    run = await scene.running(**start)
    await scene.flush(how(run))
    await old(scene, run.id, days)
    return run


async def found(store: Store, keep: Keep = MONTH, after: str = FIRST) -> list[str]:
    """What ended long enough ago and is needed by nobody."""
    page = await store.ended_page(after, 100, keep, 100)
    ended = await store.ended([run.id for run in page.runs])
    assert page.runs == [msgspec.structs.replace(run, links_gone=None) for run in ended]
    return [run.id for run in page.runs if needed_by(run) is None]


async def sweep(store: Store, keep: Keep = MONTH) -> Removal:
    """Remove what may go, once."""
    gone = await store.remove(await store.ended(await found(store, keep)))
    assert gone is not None
    return gone


async def left(scene: Scene) -> set[str]:
    return {str(row[0]) for row in await scene.rows.fetch("SELECT id FROM [runs]")}


async def test_ended_runs_are_found_when_their_time_is_over(scene: Scene) -> None:
    done = await ended(scene)
    await ended(scene, 29)
    await ended(scene, 89, failed)
    lost = await ended(scene, 91, failed)
    cancelled = await ended(scene, 31, lambda run: move(run, "cancelled", reason="cancelled"))
    live = await scene.running()
    await scene.rows.shift(live.id, "created_at", -400 * DAY)
    assert await found(scene.store) == [done.id, lost.id, cancelled.id]
    assert await found(scene.store, Keep(None, 90 * DAY)) == [lost.id]
    assert await found(scene.store, Keep(30 * DAY, None)) == [done.id, cancelled.id]
    assert await found(scene.store, Keep(30 * DAY, 30 * DAY, "failed")) != [done.id]
    assert await found(scene.store, after=done.id) == [lost.id, cancelled.id]


async def test_a_look_says_where_it_ended_and_how_old_what_it_saw_is(scene: Scene) -> None:
    first, second = [await ended(scene, days) for days in (50, 40)]
    page = await scene.store.ended_page(FIRST, 2, MONTH, 1)
    assert ([run.id for run in page.runs], page.last, page.seen) == ([first.id], second.id, 2)
    assert page.oldest_ms // DAY == 50 and page.newest_ms // DAY == 40
    beyond = await scene.store.ended_page(second.id, 2, MONTH, 1)
    assert (beyond.runs, beyond.last, beyond.seen) == ([], None, 0)
    assert not page.busy and not beyond.busy
    await scene.running()
    assert (await scene.store.ended_page(FIRST, 2, MONTH, 1)).busy, "a worker has a run"


async def test_all_that_belongs_to_a_run_goes_with_it_and_nothing_else(scene: Scene) -> None:
    """Rule 35: and its key is free again."""
    other = await scene.running(tags=("a", "b"), key="k-2")
    await scene.flush(step(other), failed_try(other), under_way(other, 1), value(other, "v", "1"))
    await scene.store.send(signal(other.id))
    before = await scene.rows.dump()
    run = await scene.running(tags=("a", "c"), key="k-1")
    await scene.flush(step(run), failed_try(run), under_way(run, 1), value(run, "v", "1"))
    await scene.store.send(signal(run.id))
    await scene.flush(completed(run))
    await old(scene, run.id)
    assert (await scene.store.weigh([run.id]))[run.id].rows == 1
    gone = await sweep(scene.store)
    assert gone.runs == [run.id]
    assert await scene.rows.dump() == before
    assert await scene.start(key="k-1") != run.id


async def test_every_table_with_the_id_of_a_run_is_known_to_the_remover(scene: Scene) -> None:
    """Whoever makes a table whose rows belong to runs adds it to `DEPENDENT`, or says here that they do not."""
    if scene.store.dialect == "postgres":
        rows = await scene.rows.fetch(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c "
            "JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = 'stepfast' AND t.table_type = 'BASE TABLE'"
        )
    elif scene.store.dialect == "mysql":
        rows = await scene.rows.fetch(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c "
            "JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE'"
        )
    else:
        rows = await scene.rows.fetch(
            "SELECT t.name, c.name FROM sqlite_master t CROSS JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
        )
    columns = {(str(table).removeprefix("stepfast_"), str(column)) for table, column in rows}
    named = {(t, c) for t, c in columns if "run" in c.split("_") or c in ("dag_id", "parent_id", "origin_id")}
    assert {table for table, _ in named - NAMES_A_RUN} == set(DEPENDENT)


async def test_the_steps_of_a_dag_run_go_with_it(scene: Scene, dag: Dag) -> None:
    stay = await Dag(scene, graph_of(CHAIN)).start()
    await scene.rows.fetch(
        "UPDATE [runs] SET status = 'completed', completed_at = created_at WHERE id = ? OR dag_id = ?", dag.id, dag.id
    )
    await old(scene, dag.id)
    gone = await sweep(scene.store)
    assert gone.runs == [dag.id] and len(gone.steps) == 3
    assert len(await left(scene)) == 4
    assert set((await stay.dag_steps()).keys()) == {"a", "b", "c"}


@pytest.mark.parametrize("parent", ["waiting", "failed", "completed", "gone"])
async def test_a_child_stays_while_its_parent_may_still_ask_for_it(scene: Scene, parent: str) -> None:
    """Rule 26: a parent that goes on, or that may be retried, would wait for ever for a child that is gone."""
    mother, [child] = await scene.family()
    await scene.flush(completed(child))
    await old(scene, child.id)
    if parent == "waiting":
        await scene.flush(waiting(mother, None, wakes=0))
    else:
        await scene.flush(failed(mother) if parent == "failed" else completed(mother))
    if parent == "gone":
        assert await scene.store.delete(mother.id) is not None
    gone = await sweep(scene.store)
    assert gone.runs == ([child.id] if parent in ("completed", "gone") else [])
    for seen in await scene.store.ended([child.id]):
        assert "its parent" in str(needed_by(seen))


async def test_children_that_were_kept_for_their_parent_are_found_when_it_is_gone(scene: Scene) -> None:
    mother, children = await scene.family(3)
    await scene.flush(*(completed(child) for child in children[:2]), failed(mother))
    for run_id in (mother.id, *(child.id for child in children[:2])):
        await old(scene, run_id, 91)
    assert await found(scene.store) == [mother.id]
    gone = await sweep(scene.store)
    assert set(await scene.store.ended_kin(gone, MONTH, 10)) == {child.id for child in children[:2]}
    assert len(await scene.store.ended_kin(gone, MONTH, 1)) == 1
    assert await scene.store.ended_kin(gone, Keep(None, None), 10) == []


async def went_on(scene: Scene, run: Claimed) -> Claimed:
    """It ends, and goes on as another."""
    continuation = NewRun(new_run().id, RunShape("order", "v1", "order"), "{}", origin=run.id)
    await scene.flush(move(run, "completed", reason="continued", output=f'"{continuation.id}"', successor=continuation))
    [claimed] = await scene.claim()
    assert claimed.id == continuation.id
    return claimed


async def test_a_chain_is_found_by_its_first_run_for_as_long_as_it_goes_on(scene: Scene) -> None:
    """Those in its middle go, so that a chain without an end does not keep all its links."""
    first = await scene.running(key="customer-7")
    links = [first]
    for _ in range(4):
        links.append(await went_on(scene, links[-1]))
    for link in links[:4]:
        await old(scene, link.id)
    gone = await sweep(scene.store)
    assert gone.runs == [link.id for link in links[1:4]]
    assert await left(scene) == {first.id, links[4].id}
    assert await scene.store.continuation(first.id) == links[4].id
    assert await scene.start(key="customer-7") == first.id
    last = await went_on(scene, links[4])
    await old(scene, links[4].id)
    assert (await sweep(scene.store)).runs == [links[4].id], "links join on both sides"
    await scene.flush(completed(last))
    await old(scene, last.id)
    gone = await sweep(scene.store)
    assert gone.runs == [last.id]
    assert await scene.store.ended_kin(gone, MONTH, 10) == [first.id]


async def test_what_was_retried_since_it_was_found_stays(scene: Scene) -> None:
    run = await ended(scene, 91, failed)
    seen = await scene.store.ended(await found(scene.store))
    await scene.store.retry(run.id)
    assert await scene.store.remove(seen) == Removal([], [], [])
    [again] = await scene.claim()
    await scene.flush(failed(again))
    await old(scene, run.id, 91)
    assert await scene.store.remove(seen) == Removal([], [], []), "it is another end"


async def test_one_run_is_deleted_unless_it_goes_on_or_is_needed(scene: Scene) -> None:
    run = await scene.running(key="k")
    assert await scene.store.delete(run.id) is None
    await scene.flush(step(run), completed(run))
    gone = await scene.store.delete(run.id)
    assert gone is not None and needed_by(gone) is None
    assert await left(scene) == set()
    assert await scene.store.delete(run.id) is None
    _, [child] = await scene.family()
    await scene.flush(completed(child))
    needed = await scene.store.delete(child.id)
    assert needed is not None and "goes on" in str(needed_by(needed))
    assert child.id in await left(scene)


@only_on("postgres")
async def test_a_locked_run_is_left_for_the_next_time_and_two_workers_do_not_do_it_at_once(
    stores: Stores, scene: Scene, twin: Store
) -> None:
    one, two = await ended(scene), await ended(scene)
    seen = await scene.store.ended([one.id, two.id])
    await scene.rows.fetch("BEGIN")
    await scene.rows.fetch("SELECT 1 FROM [runs] WHERE id = ? FOR NO KEY UPDATE", one.id)
    await scene.rows.fetch("SELECT 1 FROM [turns] WHERE name = 'removal' FOR NO KEY UPDATE")
    async with asyncio.timeout(10):
        assert await twin.remove(seen, alone=True) is None
        gone = await twin.remove(seen)
    assert gone is not None and gone.runs == [two.id]
    await scene.rows.fetch("ROLLBACK")
    gone = await twin.remove(seen, alone=True)
    assert gone is not None and gone.runs == [one.id]


async def test_a_parent_that_is_gone_is_no_trouble_to_a_child_that_ends(scene: Scene) -> None:
    mother = await scene.running()
    await scene.flush(joint(mother, 0, starts=[child_of(mother)]))
    [child] = await scene.claim()
    await scene.flush(completed(mother))
    await scene.store.delete(mother.id)
    await scene.flush(completed(child))
    await scene.deliver()
    assert await scene.rows.fetch("SELECT 1 FROM [mailbox]") == []


@only_on("postgres")
async def test_a_start_whose_key_is_freed_while_it_looks_gets_a_run_of_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 35: between finding a key taken and reading by whom, the run that had it may be removed."""
    run = await scene.running(key="k")
    await scene.flush(completed(run))
    starts = scene.store._starts  # type: ignore[attr-defined]
    resolve, deleted = starts._resolve_keys, list[Any]()

    async def late(connection: Any, runs: Any, owners: Any) -> Any:
        if not deleted:
            deleted.append(await scene.store.delete(run.id))
        return await resolve(connection, runs, owners)

    monkeypatch.setattr(starts, "_resolve_keys", late)
    again = await scene.start(key="k")
    assert deleted[0] is not None and again != run.id and await left(scene) == {again}
