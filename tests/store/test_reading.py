"""What is read for people: runs, steps, activity, definitions; also where rows are no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepfast.model.ids import new_id
from stepfast.model.names import LOGS
from stepfast.model.records import Claimed, StreamItem, StreamItems, ValueSet
from stepfast.model.rows import NO_CALL, ActivityRow, Definition
from stepfast.settings import Settings
from stepfast.store import Store
from tests.store.scene import DAY, MINUTE, Scene, completed, failed, failed_try, move, opened, step, under_way, waiting
from tests.store.test_children import continued, successor_of


async def test_unknown_ids_are_answered_with_nothing(scene: Scene) -> None:
    nobody = new_id()
    store = scene.store
    assert await store.run(nobody) is None
    assert await store.outcomes([nobody]) == []
    assert (await store.steps(nobody), await store.progress(nobody), await store.activity(nobody)) == ([], [], [])
    assert await store.retry(nobody) is None
    await store.give_back(nobody, [(nobody, 1)])
    await store.unregister(nobody)
    await store.worker_state(nobody, "stopping")


async def test_outcomes_are_of_ended_runs_only(scene: Scene) -> None:
    await scene.start_many(6)
    done, broken, cancelled, sleeps, busy = await scene.claim(5)
    await scene.flush(
        completed(done, "42"),
        failed(broken, reason="timeout", error='{"type":"T"}'),
        move(cancelled, "cancelled", reason="cancelled"),
        waiting(sleeps),
    )
    ids = [row.id for row in await scene.store.runs()]
    found = {outcome.id: outcome for outcome in await scene.store.outcomes([*ids, new_id()])}
    assert set(found) == {done.id, broken.id, cancelled.id}
    assert (found[done.id].status, found[done.id].output, found[done.id].format) == ("completed", "42", 1)
    assert (found[broken.id].reason, found[broken.id].error) == ("timeout", '{"type":"T"}')
    assert busy.id in ids
    assert await scene.store.outcomes([]) == []


# -- lists ------------------------------------------------------------------------------------


async def test_pages_go_newest_first_and_hold_everything_once(scene: Scene) -> None:
    ids = await scene.start_many(23)
    pages = []
    before = None
    while page := await scene.store.runs(before=before, limit=10):
        pages.append([row.id for row in page])
        before = pages[-1][-1]
    assert [len(page) for page in pages] == [10, 10, 3]
    assert [run_id for page in pages for run_id in page] == sorted(ids, reverse=True)


@pytest.mark.parametrize("filters", [{"workflow": "mail"}, {"status": "failed"}, {"tag": "red"}])
async def test_pages_of_a_filter_hold_everything_once_too(scene: Scene, filters: dict[str, Any]) -> None:
    ids = await scene.start_many(7, "mail", tags=("red",))
    await scene.start_many(7, "order", tags=("blue",))
    await scene.flush(*(failed(run) for run in await scene.claim(20) if run.id in ids))
    found: list[str] = []
    while page := await scene.store.runs(before=found[-1] if found else None, limit=3, **filters):
        found += [row.id for row in page]
    assert found == sorted(ids, reverse=True)


async def test_each_filter_narrows_and_they_combine(scene: Scene) -> None:
    wanted = await scene.start("mail", queue="vip", key="k", tags=("red", "hot"))
    [run] = await scene.claim()
    await scene.flush(failed(run, reason="timeout"))
    await scene.start("order", queue="vip", key="other", tags=("red",))
    other = await scene.start("mail", queue="mail")
    exact: dict[str, str] = {
        "workflow": "mail", "status": "failed", "queue": "vip", "tag": "hot", "reason": "timeout", "key": "k",
    }  # fmt: skip
    assert [row.id for row in await scene.store.runs(**exact)] == [wanted]  # type: ignore[arg-type]
    assert await scene.store.count_runs(**exact) == 1
    for name in exact:
        assert await scene.store.runs(**(exact | {name: "something else"})) == [], name  # type: ignore[arg-type]
        assert await scene.store.count_runs(**(exact | {name: "something else"})) == 0, name
        assert wanted in {row.id for row in await scene.store.runs(**{name: exact[name]})}, name  # type: ignore[arg-type]
    assert [row.id for row in await scene.store.runs(workflow="mail", status="queued")] == [other]
    assert len(await scene.store.runs(queue="vip")) == 2
    assert len(await scene.store.runs(tag="red")) == 2
    assert len(await scene.store.runs(tag="red", workflow="order")) == 1


@pytest.mark.parametrize("filters", [{}, {"workflow": "mail"}, {"status": "failed"}, {"tag": "red"}])
async def test_a_list_tells_as_much_of_a_run_as_a_look_at_it(scene: Scene, filters: dict[str, Any]) -> None:
    shape: dict[str, Any] = {
        "queue": "q", "priority": 3, "max_attempts": 2, "timeout_ms": 4, "deadline_ms": DAY, "tags": ("red",),
    }  # fmt: skip
    await scene.flush(failed(await scene.running(workflow="mail", **shape), reason="timeout"))
    [listed] = await scene.store.runs(**filters)
    row = await scene.info(listed.id)
    listed.now_ms = row.now_ms
    assert listed == row
    assert (row.timeout_ms, row.deadline_ms) == (4, DAY)


@pytest.mark.parametrize("status", ["queued", "running", "waiting", "paused", "completed", "failed", "cancelled"])
async def test_runs_are_found_by_every_status(scene: Scene, status: str) -> None:
    wanted, _ = await scene.start(), await scene.start("mail")
    for row in await scene.store.runs():
        await scene.rows.set(row.id, "status", status if row.id == wanted else "compensating")
        if status == "running":
            await scene.rows.set(row.id, "worker", scene.worker)
    assert [row.id for row in await scene.store.runs(status=status)] == [wanted]
    assert [row.id for row in await scene.store.runs(status=status, workflow="order")] == [wanted]
    assert await scene.store.runs(status=status, workflow="mail") == []
    assert await scene.store.count_runs(status=status) == 1


# -- the activity log ---------------------------------------------------------------------------------


async def test_the_activity_log_tells_every_call_in_start_order(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(
        step(run, 1, "2", duration_ms=10, arguments='["b"]'), failed_try(run, 0, 1, duration_ms=900, arguments='["a"]'),
        failed_try(run, 0, 2, duration_ms=500), step(run, 0, "1", duration_ms=300, attempts=3), step(other, 0),
    )  # fmt: skip
    log = await scene.store.activity(run.id)
    log.sort(key=lambda row: (row.position, row.number))
    assert [(row.position, row.number, row.status) for row in log] == [
        (0, 1, "failed"),
        (0, 2, "failed"),
        (0, 3, "completed"),
        (1, 1, "completed"),
    ]
    assert [row.completed_at - row.started_at for row in log] == [900, 500, 300, 10]
    assert (log[0].arguments, log[0].output, log[3].arguments, log[3].output) == ('["a"]', None, '["b"]', "2")
    assert log[0].error is not None and log[3].error is None


async def test_calls_of_the_same_millisecond_are_told_in_the_order_of_the_code(scene: Scene, run: Claimed) -> None:
    await scene.flush(*(step(run, position) for position in (3, 0, 2, 1)))
    assert [row.position for row in await scene.store.activity(run.id)] == [0, 1, 2, 3]


async def test_the_activity_log_is_told_in_pages(scene: Scene, run: Claimed) -> None:
    await scene.flush(*(step(run, n, branch=branch) for branch in ("", "1") for n in range(3)), failed_try(run, 1))
    whole = await scene.store.activity(run.id)
    paged: list[ActivityRow] = []
    while page := await scene.store.activity(run.id, paged[-1].key if paged else NO_CALL, limit=2):
        assert len(page) <= 2
        paged += page
    assert paged == whole and len({row.key for row in whole}) == 7


async def test_steps_are_told_in_pages(scene: Scene, run: Claimed) -> None:
    await scene.flush(*(step(run, n, branch=branch) for branch in ("", "1") for n in range(5)))
    page = await scene.store.steps(run.id, limit=7)
    assert [(r.branch, r.position) for r in page] == [("", 0), ("", 1), ("", 2), ("", 3), ("", 4), ("1", 0), ("1", 1)]
    rest = await scene.store.steps(run.id, ("1", 1), 7)
    assert [(r.branch, r.position) for r in rest] == [("1", 2), ("1", 3), ("1", 4)]


async def test_steps_that_were_recorded_later(scene: Scene, run: Claimed) -> None:
    await scene.flush(*(step(run, number) for number in range(5)))
    numbers = [record.seq for record in await scene.store.steps(run.id)]
    later = await scene.store.steps_since(run.id, numbers[1], 2)
    assert [record.seq for record in later] == numbers[2:4]
    assert await scene.store.steps_since(run.id, numbers[4]) == []


async def test_lines_beyond_the_bound_are_counted_once(scene: Scene, run: Claimed) -> None:
    """A flush whose reply was lost comes again; the next claim counts on."""

    def logged(*numbers: int | None, claim: int = run.claim) -> StreamItems:
        items = [
            StreamItem(run.id, LOGS, "~~", claim, number, 1, f'"{number}"', 1) if number is not None
            else StreamItem(run.id, LOGS, "~~", claim, 10, 1, None, 1)
            for number in numbers
        ]  # fmt: skip
        return StreamItems(run.id, claim, 100, 10**6, items, most_lines=3)

    await scene.flush(logged(0, 1))
    for _ in range(2):
        await scene.flush(logged(2, 3, 4, None))
    rows = (await scene.store.stream_pages([(run.id, LOGS, 0, 100)]))[run.id, LOGS]
    assert [row.value for row in rows] == ['"0"', '"1"', '"2"']
    assert await scene.store.dropped_lines(run.id) == 7
    assert await scene.store.stream_sizes(run.id) == {LOGS: 3}
    part = await scene.store.glance(5).stream_part(run.id, LOGS, 1, 3, 100)
    assert [(each.number, each.value) for each in part] == [(2, '"1"'), (3, '"2"')]


async def test_values_that_are_waited_for(scene: Scene, run: Claimed) -> None:
    nobody, successor = new_id(), successor_of(run)
    await scene.flush(ValueSet(run.id, run.claim, "a", "1"))
    asked = await scene.store.awaited_values([(run.id, "a"), (run.id, "b"), (nobody, "a")])
    assert {(row.run_id, row.key): (row.value, row.over, row.status) for row in asked} == {
        (run.id, "a"): ("1", False, "running"), (run.id, "b"): (None, False, "running"),
        (nobody, "a"): (None, True, None),
    }  # fmt: skip
    await scene.flush(continued(run, successor))
    [row] = await scene.store.awaited_values([(run.id, "b")])
    assert (row.over, row.continuation) == (True, successor.id)


async def test_progress_and_steps_of_runs_do_not_mix(scene: Scene) -> None:
    first, second = await scene.running(), await scene.running()
    await scene.flush(step(first, 0, '"mine"'), under_way(second, 0))
    assert await scene.store.progress(first.id) == []
    assert await scene.store.steps(second.id) == []


# -- definitions -------------------------------------------------------------------------------------------


def definition(name: str = "order", version: str = "v1", queue: str = "order") -> Definition:
    return Definition(name, version, "workflow", queue, '{"max_attempts":3}', '{"type":"object"}')


async def test_lists_leave_out_what_is_large_in_bytes(scene: Scene) -> None:
    """Whatever its characters take: three bytes each, here."""
    most = Settings().list_payload_limit
    small, large = (json.dumps("€" * (most // 3 + more), ensure_ascii=False) for more in (-1, 1))
    for text in (small, large):
        await scene.flush(completed(await scene.running(input=text), text))
    assert len(small.encode()) <= most < len(large.encode()) and len(large) < most
    listed = await scene.store.runs()
    assert [(row.input, row.output, row.large_output) for row in listed] == [(None, None, True), (small, small, False)]


async def test_definitions_may_be_stored_again_and_again(scene: Scene) -> None:
    for _ in range(3):
        await scene.store.put_definitions([definition("order"), definition("mail")])
    assert sorted(d.name for d in await scene.store.definitions()) == ["mail", "order"]
    assert await scene.rows.fetch("SELECT count(*) FROM [definitions]") == [(2,)]
    [order] = [d for d in await scene.store.definitions() if d.name == "order"]
    assert order == definition("order")


async def test_a_changed_definition_of_one_version_replaces_the_old(scene: Scene) -> None:
    await scene.store.put_definitions([definition(queue="old")])
    await scene.store.put_definitions([definition(queue="new")])
    assert [d.queue for d in await scene.store.definitions()] == ["new"]


async def test_the_version_seen_last_is_the_current_one(scene: Scene) -> None:
    await scene.store.put_definitions([definition(version="v1")])
    await scene.rows.fetch("UPDATE [definitions] SET seen_at = seen_at - ?", MINUTE)
    await scene.store.put_definitions([definition(version="v2")])
    assert [d.version for d in await scene.store.definitions()] == ["v2"]
    await scene.rows.fetch("UPDATE [definitions] SET seen_at = seen_at - ?", MINUTE)
    await scene.store.put_definitions([definition(version="v1")])
    assert [d.version for d in await scene.store.definitions()] == ["v1"]


async def test_no_definitions_is_an_empty_list(scene: Scene) -> None:
    await scene.store.put_definitions([])
    assert await scene.store.definitions() == []


VIEWS = {
    "runs_readable": 1, "steps_readable": 2, "activity_readable": 2, "activity": 2, "sleeps": 0, "workers_readable": 1,
    "progress_readable": 0, "values_readable": 0,
}  # fmt: skip
"""And how many rows each then has: when a sleep was over cannot be told any more."""
BROKEN = '{"broken'


async def break_all(scene: Scene) -> str:
    """A run, two of its records, a try and a worker hold what is no JSON where JSON should be."""
    run = await scene.running()
    await scene.flush(step(run, 0), opened(run, 1, '{"for":1}'), failed_try(run, 2), completed(run))
    for table, columns in {
        "runs": ("input", "output", "error", "tags"), "steps": ("output", "error", "arguments"),
        "tries": ("error", "arguments"), "workers": ("queues", "workflows"),
    }.items():  # fmt: skip
        for column in columns:
            await scene.rows.fetch(f"UPDATE [{table}] SET {column} = ?", BROKEN)
    return run.id


async def test_the_views_survive_rows_that_are_no_json(scene: Scene) -> None:
    await break_all(scene)
    for view, count in VIEWS.items():
        rows = await scene.rows.fetch(f"SELECT * FROM [{view}]")
        assert len(rows) == count, view
        if count:
            assert any("broken" in str(value) for row in rows for value in row), "what it holds is shown"


async def test_a_list_survives_tags_that_are_none(scene: Scene, store: Store) -> None:
    broken, whole = await scene.start(tags=("a", "b")), await scene.start(tags=("a",))
    await scene.rows.set(broken, "tags", BROKEN)
    shown = {row.id: row.tags for row in await store.runs(tag="a")}
    assert shown == {whole: ["a"], broken: [BROKEN]}
    await scene.rows.set(broken, "tags", '{"a": 1}')
    assert (await scene.info(broken)).tags == ['{"a": 1}']


async def test_a_run_goes_on_as_another_whatever_its_tags_are(scene: Scene, store: Store) -> None:
    continuations = {}
    for tags in (BROKEN, '"b"', '["b"]'):
        run = await scene.running()
        await scene.rows.set(run.id, "tags", tags)
        continuations[tags] = successor_of(run)
        await scene.flush(continued(run, continuations[tags]))
        assert (await scene.info(run.id)).reason == "continued"
        await scene.flush(completed((await scene.claim())[0]))
    assert [row.id for row in await store.runs(tag="b")] == [continuations['["b"]'].id]


async def test_errors_that_passed_through_a_codec_are_shown_as_null(scene: Scene, run: Claimed) -> None:
    """They are no JSON; who asks for a part of one would meet an error."""
    await scene.flush(step(run, 0), failed_try(run, 1), completed(run))
    for table in ("runs", "steps", "tries"):
        await scene.rows.fetch(f"UPDATE [{table}] SET error = ?", "bm8gSlNPTg==")
    for view in ("runs_readable", "steps_readable", "activity_readable"):
        assert {row[0] for row in await scene.rows.fetch(f"SELECT error FROM [{view}]")} == {None}, view


async def test_what_is_json_is_shown_as_before(scene: Scene) -> None:
    run = await scene.running(input='{"id": 1}')
    await scene.flush(step(run, 0, '{"a": [1]}'), opened(run, 1, '{"until":1000}'), completed(run))
    [(shown,)] = await scene.rows.fetch("SELECT input FROM [runs_readable]")
    assert shown == '{"id": 1}'
    [(ended,)] = await scene.rows.fetch("SELECT ended_at FROM [sleeps]")
    assert ended == 1000
