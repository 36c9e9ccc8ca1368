"""A glance: how runs are found by those who only watch, and what cannot happen while they do."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.model.records import Claimed
from stepfast.model.rows import Definition
from stepfast.store.mysql.driver import Part, Statement
from stepfast.store.readonly import BaseGlance, FoundRuns, TookTooLong
from stepfast.store.run_lists import Filters
from tests.store.conftest import only_on
from tests.store.graph_scene import CHAIN, Dag, graph_of
from tests.store.scene import DAY, MINUTE, Scene, child_of, completed, failed, failed_try, joint, signal, step, waiting

NOTHING = Filters(None, None, None, None, None, None, 50, None, None, None)


@pytest.fixture
async def glance(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> BaseGlance:
    """One that remembers no answer: these tests change what they have asked for."""
    made = scene.store.glance(5.0)
    monkeypatch.setattr(made.remembered, "get", lambda key, ask: ask())
    return made


async def found(glance: BaseGlance, far: int = 1000, **filters: Any) -> FoundRuns:
    return await glance.find(NOTHING._replace(**filters), far)


async def ids(glance: BaseGlance, far: int = 1000, **filters: Any) -> list[str]:
    return (await found(glance, far, **filters)).ids


async def test_runs_are_found_by_what_they_are(scene: Scene, glance: BaseGlance) -> None:
    assert await found(glance) == ([], None)
    done = await scene.running(tags=("eu",))
    await scene.flush(completed(done))
    broken = await scene.running(workflow="mail", queue="slow")
    await scene.flush(failed(broken, reason="timeout"))
    asleep = await scene.running(workflow="mail")
    await scene.flush(waiting(asleep, delay_ms=DAY))
    held = await scene.running(workflow="report", tags=("eu",))
    late = await scene.start("report", delay_ms=DAY)
    ready = await scene.start("order", tags=("eu",))
    everything = sorted([done.id, broken.id, asleep.id, held.id, late, ready], reverse=True)
    assert await ids(glance) == everything
    assert await ids(glance, limit=2) == everything[:2]
    assert await ids(glance, before=everything[1]) == everything[2:]
    assert await ids(glance, status="completed") == [done.id]
    assert await ids(glance, status="failed") == await ids(glance, reason="timeout") == [broken.id]
    assert await ids(glance, status="waiting") == [asleep.id]
    assert await ids(glance, status="running") == [held.id]
    assert await ids(glance, status="queued") == sorted([late, ready], reverse=True)
    assert await ids(glance, status="queued", workflow="report") == [late]
    assert await ids(glance, workflow="mail") == sorted([broken.id, asleep.id], reverse=True)
    assert await ids(glance, workflow="mail", status="failed", queue="slow") == [broken.id]
    assert await ids(glance, tag="eu") == sorted([done.id, held.id, ready], reverse=True)
    assert await ids(glance, tag="eu", status="running") == [held.id]
    await scene.rows.shift(done.id, "created_at", -DAY)
    assert await ids(glance, older=MINUTE) == [done.id]
    assert done.id not in await ids(glance, since=MINUTE)
    assert (await glance.find(NOTHING, 1000, oldest_first=True)).ids == everything[::-1]
    for status in ("failed", "running", "queued"):
        turned = await glance.find(NOTHING._replace(status=status), 1000, oldest_first=True)
        assert turned.ids == (await ids(glance, status=status))[::-1]
    listed = await glance.runs(status="queued", oldest_first=True, limit=1)
    assert [row.id for row in listed] == [min(late, ready)]
    assert [row.id for row in await glance.runs(before=everything[1])] == everything[2:]
    assert [row.id for row in await glance.named([done.id, ready])] == sorted([done.id, ready], reverse=True)


async def test_a_look_ends_where_it_was_told_to_and_says_where_that_was(scene: Scene, glance: BaseGlance) -> None:
    runs = sorted(await scene.start_many(6, tags=("t",)), reverse=True)
    rare = await scene.start("mail", tags=("t",))
    await scene.rows.set(rare, "workflow", "rare")
    await scene.rows.set(rare, "id", "01000000-0000-7000-8000-000000000001")
    await scene.rows.fetch(
        "UPDATE [run_tags] SET run_id = ? WHERE run_id = ?", "01000000-0000-7000-8000-000000000001", rare
    )
    rare = "01000000-0000-7000-8000-000000000001"
    for filters in ({"reason": "x"}, {"tag": "t", "workflow": "rare"}):
        assert await found(glance, 4, **filters) == ([], runs[3])
        expected = [rare] if "tag" in filters else []
        assert await found(glance, 4, before=runs[3], **filters) == (expected, None)
    assert await glance.find(NOTHING._replace(reason="x"), 3, oldest_first=True) == ([], runs[4])
    assert await found(glance, 6, limit=6) == (runs, None)
    await scene.rows.fetch("UPDATE [runs] SET status = 'failed', place = NULL")
    assert await found(glance, 4, status="failed", reason="x") == ([], runs[3])
    assert await found(glance, 7, status="failed", reason="x") == ([], rare)
    assert await found(glance, 8, status="failed", workflow="rare") == ([rare], None)


async def test_a_key_is_found_whichever_workflow_has_it(scene: Scene, glance: BaseGlance) -> None:
    await scene.store.put_definitions([Definition(name, "v1", "task", name, "{}", None) for name in ("order", "mail")])
    first, second = await scene.start(key="k"), await scene.start("mail", key="k")
    await scene.start(key="other")
    debounced = await scene.start("mail")
    await scene.rows.set(debounced, "debounced", "k")
    begun = await scene.start()
    await scene.rows.set(begun, "debounced", "k")
    await scene.rows.set(begun, "started_at", 1)
    assert await ids(glance, key="k") == sorted([first, second, debounced, begun], reverse=True)
    assert await ids(glance, key="k", workflow="mail") == sorted([second, debounced], reverse=True)
    assert await ids(glance, key="k", status="failed") == []


async def test_dag_runs_are_found_as_they_are_shown(scene: Scene, dag: Dag, glance: BaseGlance) -> None:
    assert await ids(glance) == [dag.id]  # steps are none
    assert await ids(glance, status="running") == [dag.id]
    later = await Dag(scene, graph_of(CHAIN)).start()
    await scene.rows.fetch(
        "UPDATE [runs] SET place = NULL, visible_at = ? WHERE dag_id = ? AND place IS NOT NULL", 4 * 10**12, later.id
    )
    assert await ids(glance, status="queued") == [later.id]
    assert await ids(glance, status="queued", workflow="other") == []
    assert await ids(glance, status="running") == [dag.id]
    assert [row.status for row in await glance.named([later.id, dag.id])] == ["queued", "running"]


async def test_ids_are_found_by_how_they_end(scene: Scene, glance: BaseGlance) -> None:
    first, *_, last = await scene.start_many(5)
    assert await glance.ids_ending_with(first.replace("-", "")[-10:], 100, 10) == [first]
    assert await glance.ids_ending_with(first.replace("-", "")[-10:], 4, 10) == []
    assert await glance.ids_ending_with(last.replace("-", "")[-16:], 4, 10) == [last]


async def test_texts_are_found_in_inputs_that_can_be_looked_into(scene: Scene, glance: BaseGlance) -> None:
    texts = ('say "hi"', 'say \\"hi\\"')
    small = await scene.start(input='{"a":"say \\"hi\\""}')
    large = await scene.start(input='"' + "x" * 100 + '"')
    sealed = await scene.start(input="c2VhbGVk", format=2)
    other = await scene.start(input='{"a":1}')
    looked = await glance.with_inputs([small, large, sealed, other], texts, 50)
    assert looked == {small: 0, large: 1, sealed: 2}


async def test_families_letters_and_records(scene: Scene, glance: BaseGlance) -> None:
    parent = await scene.running()
    children = [child_of(parent, n) for n in range(4)]
    await scene.flush(joint(parent, 0, starts=children), step(parent, 1, '"' + "x" * 2000 + '"', arguments="[1]"))
    told = await glance.children([parent.id, children[0].id], 3)
    assert len(told) == 3 and {of for of, _ in told} == {parent.id}
    assert {child for _, child in told} <= {child.id for child in children}
    await scene.rows.set(children[1].id, "parent_id", children[0].id)
    assert await glance.ancestors(children[1].id, 10) == [children[0].id, parent.id]
    assert await glance.ancestors(children[1].id, 1) == [children[0].id]
    await scene.store.send(signal(parent.id, "go", '"' + "y" * 50 + '"'))
    await scene.store.send(signal(parent.id, "stop", "1"))
    go, stop = await glance.unread_signals(parent.id, 10, 20)
    assert (go.name, go.size, go.value, go.delivered) == ("go", 52, None, True)
    assert (stop.name, stop.size, stop.value) == ("stop", 1, "1")
    assert len(await glance.unread_signals(parent.id, 1, 20)) == 1
    first, second = await glance.lean_steps(parent.id)
    assert (first.record.output, first.output_size) == ("1", 1)
    assert (second.record.output, second.output_size, second.record.arguments) == (None, 2002, "[1]")
    assert len(await glance.lean_steps(parent.id, limit=1)) == 1
    payloads = await glance.step_payloads(parent.id, "", 1)
    assert payloads is not None and len(payloads[0] or "") == 2002 and payloads[1:] == ("[1]", None, 1)
    assert await glance.step_payloads(parent.id, "", 7) is None


async def test_failed_tries_without_what_is_large(scene: Scene, run: Claimed, glance: BaseGlance) -> None:
    large = '{"type":"E","message":"' + "x" * 5000 + '","traceback":null}'
    await scene.flush(failed_try(run, 0, 1), failed_try(run, 0, 2, error=large), failed_try(run, 3, 1))
    assert [(t.position, t.number, t.error is None) for t in await glance.failed_tries(run.id)] == [
        (0, 1, False), (0, 2, True), (3, 1, False),
    ]  # fmt: skip
    assert [t.position for t in await glance.failed_tries(run.id, ("", 0))] == [3]
    assert len(await glance.failed_tries(run.id, limit=1)) == 1


async def test_depths_and_sizes(scene: Scene, glance: BaseGlance) -> None:
    await scene.running()
    await scene.flush(waiting(await scene.running(workflow="mail"), delay_ms=DAY))
    await scene.start("report", delay_ms=DAY)
    assert sorted(await glance.depths(100)) == [
        ("mail", "waiting", 1),
        ("order", "running", 1),
        ("report", "delayed", 1),
    ]
    sizes = {size.name: size for size in await glance.sizes()}
    assert {"runs", "steps", "audit", "meta"} <= sizes.keys()
    whole = await glance.whole_size()
    assert (whole or sizes["runs"].bytes or 0) > 8000


async def test_sizes_are_those_of_one_namespace(sqlite_url: str) -> None:
    async with Stepfast(sqlite_url, "shop") as app, Stepfast(sqlite_url, "shop_eu") as other:
        names, others = [
            [size.name for size in await (await each.store()).glance(5.0).sizes()] for each in (app, other)
        ]
    assert names == others


async def test_what_the_store_reads_a_glance_reads_too_and_writes_nothing(scene: Scene, glance: BaseGlance) -> None:
    run = await scene.running()
    await scene.flush(step(run, 0))
    row = await glance.run(run.id)
    assert row is not None and row.status == "running"
    assert [record.name for record in await glance.steps(run.id)] == ["step 0"]
    assert (await glance.census(10)).runs["running"] == 1
    assert [worker.id for worker in await glance.workers()] == [scene.worker]
    assert (await glance.queues(), await glance.schedules(), await glance.audit()) == ([], [], [])
    assert (await glance.statistics(1000, 10, 10, 10)).looked_at == 1
    gate, _ = await glance.measure("order", None)
    assert gate.name == "order"
    with pytest.raises(AssertionError, match="writes nothing"):
        await glance.cancel(run.id)
    assert (await scene.info(run.id)).asked is None


async def test_a_question_is_given_up_in_time(scene: Scene) -> None:
    """And the next one is answered: nothing is left behind on the connection."""
    glance: Any = scene.store.glance(0.2)
    if glance.dialect == "mysql":
        glance._driver._sql["slow"] = Statement((Part("SELECT sleep(60)", ()),), None)
    else:
        slow = "SELECT pg_sleep(60)" if glance.dialect == "postgres" else (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        )  # fmt: skip
        glance._sql = glance._sql | {"slow": slow}
    async with asyncio.timeout(30):
        with pytest.raises(TookTooLong, match=r"more than 0\.2 s for this question"):
            await glance._fetch("slow")
    glance._patience = 30
    assert await glance.find(NOTHING, 10) == ([], None)
    await scene.start()


async def test_a_question_does_not_wait_in_line_without_end(scene: Scene) -> None:
    glance: Any = scene.store.glance(0.1)
    if glance.dialect != "sqlite":
        while not glance._room.locked():
            await glance._room.acquire()
        async with asyncio.timeout(30):
            with pytest.raises(TookTooLong):
                await glance._fetch("glance_sizes", "", *([[]] if glance.dialect == "mysql" else []))
        glance._room.release()
    else:
        go_on = threading.Event()
        slow = asyncio.ensure_future(glance._onlooker().do(lambda _: go_on.wait(30)))
        asked = asyncio.ensure_future(glance._fetch("glance_sizes", ""))
        await asyncio.sleep(0.2)
        go_on.set()
        assert await slow
        with pytest.raises(TookTooLong):
            await asked
    glance._patience = 30
    assert await glance.find(NOTHING, 10) == ([], None)
    await scene.start()


WALKS = ("glance_runs", "glance_of_workflow", "glance_at_rest", "glance_tagged", "audit_page", "audit_of")
SMALL = re.compile(r"SCAN stepfast_(definitions|audit)$")
"""A row per workflow; and a table that is its own index."""


@only_on("memory")
@pytest.mark.enough_on("memory")
async def test_on_sqlite_whoever_watches_goes_along_an_index(scene: Scene) -> None:
    """SQLite plans without knowing how many rows there are, so that an empty table tells how a full one is read. What
    walks from the newest run back does not sort: it stops when it has enough."""
    store: Any = scene.store
    looks = [name for name in store._sql if name.startswith(("glance_", "audit_")) and name != "glance_sizes"]
    assert len(looks) > 20
    for name in looks:
        sql = store._sql[name]
        given = [None] * (max(map(int, re.findall(r"\?(\d+)", sql)), default=0) or sql.count("?"))
        plan = [row[3] for row in await scene.rows.fetch(f"EXPLAIN QUERY PLAN {sql}", *given)]
        whole = [line for line in plan if line.startswith("SCAN stepfast_") and " USING " not in line]
        assert not [line for line in whole if not SMALL.match(line)], (name, plan)
        assert name not in WALKS or not [line for line in plan if "TEMP B-TREE" in line], (name, plan)
