"""What people are told of remote steps, and what an application pays that has none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from stepfast import Run
from stepfast.cli.graph import write_standing
from stepfast.cli.show import write_steps
from stepfast.info import with_claims
from stepfast.monitoring.explain import explain, why
from stepfast.store.store import Store
from stepfast.transports import started_remote_steps
from tests.remote_steps.conftest import QUICK, Home, enough_joined, joined, start_shop
from tests.support.engine import eventually
from tests.support.workflows import calling


async def said_of(home: Home, run: Run[Any]) -> str:
    steps = with_claims(await run.steps(), await started_remote_steps(home.app, run.id))
    return why(await run.info(), await (await home.app.store()).workers(), steps, [])


async def waits_for(run: Run[Any], what: str) -> bool:
    return bool((await run.info()).waiting_for == what)


@enough_joined
async def test_show_says_why_a_run_waits_and_whether_somebody_has_begun(home: Home) -> None:
    app = home.app = home.make(settings=replace(QUICK, inline_wait=0.0))
    begun, go = asyncio.Event(), asyncio.Event()
    shop = calling(app, lambda ctx: ctx.remote("echo", 1, retries=2), name="shop")
    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        begun.set()
        await go.wait()
        return input

    run = await app.start(shop)
    async with app.worker():
        await eventually(lambda: waits_for(run, "remote:echo"))
        await eventually(lambda: home.count_tasks(1))
        said = await said_of(home, run)
        assert said.startswith("It waits for remote step 'echo': attempt 1 of 3 was sent to group 'echo' at 20")
        assert "UTC; no worker has begun it (" in said
        assert said.endswith("see whether one of that group is running on the transport's tables.")
        async with worker:
            await asyncio.wait_for(begun.wait(), 20)
            assert "UTC; a worker has begun it (" in await said_of(home, run)
            go.set()
            assert await run.result(timeout=20) == 1
            await home.nothing_is_left()


@joined
async def test_show_says_of_a_step_of_a_graph_where_it_is_and_how_long_it_was_queued(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    app = home.app = home.make(settings=replace(QUICK, inline_wait=0.0))
    fulfil = app.dag("fulfil")
    fulfil.remote("echo", retries=2)
    run = await app.start(fulfil)
    async with app.worker():
        await eventually(lambda: waits_for(run, "remote:echo"))
        await eventually(lambda: home.count_tasks(1))
        said = await explain(app, await run.info(), await run.steps(), [], [])
        assert "'echo': it waits for remote step 'echo': attempt 1 of 3 was sent to group 'echo' at 20" in said
        assert "UTC; no worker has begun it (" in said
        (step_id,) = await home.tables.tasks()
        await home.answer(step_id.rpartition(":")[0], output="1", started_at=await home.tables.now() + 60_000)
        await run.result(timeout=20)
    (step,) = await run.steps()
    assert step.queue_wait is not None and step.queue_wait > 59
    write_standing(fulfil.graph, [step], await run.info())
    assert "of it queued" in capsys.readouterr().out


@joined
async def test_show_tells_how_long_a_step_was_queued(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = await start_shop(home.app, 1)
    async with home.app.worker():
        await eventually(lambda: home.count_tasks(1))
        await home.answer(run.id, output="1", started_at=await home.tables.now() + 60_000)
        await run.result(timeout=20)
    (step,) = await run.steps()
    assert step.queue_wait is not None and step.queue_wait > 59
    write_steps([step], await run.info())
    assert "of it queued" in capsys.readouterr().out


# -- what it costs ---------------------------------------------------------------------------------------------------


@joined
async def test_an_application_without_remote_steps_pays_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for remote steps, beside the one question of every tick, and nothing is made in the database."""
    await home.tables.fetch("DROP TABLE [tasks], [results]")
    asked: list[str] = []
    app = home.make(settings=replace(QUICK, sweep_interval=0.02, poll_interval=0.02))
    store = await app.store()
    for name in dir(Store):
        if name.endswith("_remote"):
            monkeypatch.setattr(store, name, lambda *_, name=name: asked.append(name))
    shop = calling(app, lambda ctx: ctx.step("one", lambda: 1), name="shop")
    run = await app.start(shop)
    async with app.worker() as worker:
        assert await run.result(timeout=20) == 1
        ticks = worker.duties.sweeper.ticks
        await eventually(lambda: worker.duties.sweeper.ticks > ticks + 5)
        assert not worker.duties.remote_dispatcher._needed.is_set()
    assert asked == []
    assert (await home.tables.fetch("SELECT to_regclass('durable_transport_tasks')::text"))[0][0] is None


@joined
async def test_the_courier_rests_when_no_remote_step_waits(home: Home) -> None:
    app = home.make(settings=replace(QUICK, sweep_interval=0.02, poll_interval=0.02))

    run = await start_shop(app, 1)
    async with app.worker() as worker:
        await home.answer(run.id, output="1")
        assert await run.result(timeout=20) == 1
        remote_dispatcher, store = worker.duties.remote_dispatcher, await app.store()
        await eventually(lambda: not remote_dispatcher._needed.is_set())
        rounds = 0

        async def count(*_: Any) -> list[Any]:
            nonlocal rounds
            rounds += 1
            return []

        ticks = worker.duties.sweeper.ticks
        store.open_remote = count  # type: ignore[method-assign,assignment]
        await eventually(lambda: worker.duties.sweeper.ticks > ticks + 5)
        assert rounds <= 1
