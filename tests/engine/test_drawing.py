"""What a run draws by chance cannot be guessed from what is known of it, and stays what it is (rule 17)."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, Run, Stepfast
from stepfast.model.ids import new_id
from stepfast.worker.threads import Clockwork
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.engine import drained, eventually

pytestmark = pytest.mark.enough_on("sqlite")


async def nothing() -> None: ...


def declare(app: Stepfast) -> dict[str, Any]:
    """A workflow that starts a child, and a dag; each gives back what it drew."""

    @app.workflow
    async def child(ctx: Context) -> list[Any]:
        return [str(ctx.uuid()), ctx.random()]

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        async def draw() -> str:
            return str(ctx.uuid())

        return [str(ctx.uuid()), ctx.random(), await ctx.step(draw), *await ctx.call(child)]

    graph = app.dag("graph")

    @graph.step
    async def one(ctx: Any) -> list[Any]:
        return [str(ctx.uuid()), ctx.random()]

    return {"parent": parent, "graph": graph}


@pytest.mark.parametrize("name", ["parent", "graph"])
async def test_the_id_of_a_run_does_not_tell_what_it_draws(
    make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one id, in two namespaces: a token made by one cannot be worked out from what is seen of it."""
    fixed, drawn = new_id(), []
    for namespace in ("here", "there"):
        app = make_app(namespace=namespace)
        with monkeypatch.context() as patch:
            patch.setattr(Clockwork, "new_id", lambda _: fixed)
            run = await app.start(declare(app)[name])
        assert run.id == fixed
        await app.drain()
        drawn.append(await run.result())
    here, there = (each["one"] if isinstance(each, dict) else each for each in drawn)
    assert not {*here} & {*there}


async def test_a_retry_draws_the_same(app: Stepfast) -> None:
    seen = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        seen.append([ctx.uuid(), ctx.random()])
        if len(seen) == 1:
            raise ValueError("once")

    run = await drained(app, order)
    await run.retry()
    await app.drain()
    assert seen[0] == seen[1]


async def test_from_the_start_is_from_another_secret(app: Stepfast) -> None:
    seen = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        seen.append(ctx.uuid())
        raise ValueError("always")

    run = await drained(app, order)
    await run.retry(from_start=True)
    await app.drain()
    assert len(set(seen)) == 2


async def test_the_secret_is_in_no_view_and_no_answer(app: Stepfast) -> None:
    workflows = declare(app)
    runs = [await app.start(workflows["parent"]), await app.start(workflows["graph"])]
    many = await app.start_many("child", [None] * 3)
    await app.drain()
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    try:
        secrets = {seed for (seed,) in await rows.fetch("SELECT seed FROM [runs]")}
        assert len(await rows.fetch("SELECT id FROM [runs]")) == len([*runs, *many]) + 2  # a child, a step
        assert all(len(seed) == 32 for seed in secrets)
        shown = [str(row) for view in VIEWS for row in await rows.fetch(f"SELECT * FROM [{view}]")]
    finally:
        await rows.close()
    for run in runs:
        shown += [repr(await run.info()), repr(await run.steps()), repr(await run.activity())]
    shown.append(repr(await app.runs()))
    assert shown
    assert not [text for text in shown for seed in secrets if seed in text]


VIEWS = ("runs_readable", "steps_readable", "activity_readable", "activity", "workers_readable")


async def test_a_check_draws_what_the_run_drew(app: Stepfast) -> None:
    """Or a run that goes by its chance would seem to diverge."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(name=str(ctx.uuid())).step(nothing)
        await ctx.wait_signal("go")

    run = await app.start(order)
    async with app.worker():
        await eventually(lambda: waits(run))
    [found] = await app.check()
    assert found.verdict == "fits"


async def waits(run: Run[Any]) -> bool:
    return (await run.info()).waiting_for == "signal:go"
