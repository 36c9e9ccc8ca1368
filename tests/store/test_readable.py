"""The views for people, and the lists: one row that cannot be read does not keep the others from being shown."""

from __future__ import annotations

from stepfast.store import Store
from tests.store.scene import Scene, completed, failed_try, opened, step
from tests.store.test_children import continued, successor_of

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


async def test_errors_that_passed_through_a_codec_are_shown_as_null(scene: Scene) -> None:
    """They are no JSON; who asks for a part of one would meet an error."""
    run = await scene.running()
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
