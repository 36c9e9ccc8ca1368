"""What a context tells of its run, and that it says the same on every replay."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfast import Backoff, Context, Run, Stepfast, SyncContext
from stepfast.model.ids import new_id
from stepfast.worker.threads import Clockwork
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.engine import Calls, Gate, drained, eventually, interrupt

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


async def nothing() -> None: ...


async def test_a_context_knows_its_run(app: Stepfast) -> None:
    """The handler gets its input; run_id, attempt and workflow are told."""

    @app.workflow(name="the order")
    async def order(ctx: Context, input: str) -> list[Any]:
        return [ctx.run_id, ctx.attempt, ctx.workflow, input]

    run = await drained(app, order, "in")
    assert await run.result() == [run.id, 1, "the order", "in"]


async def test_step_keys_are_distinct_and_the_same_on_every_try(app: Stepfast, calls: Calls) -> None:
    """An idempotency key for effects outside."""
    keys: dict[str, set[str]] = {"first": set(), "second": set()}

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        async def work(name: str) -> None:
            keys[name].add(ctx.step_key)
            if name == "second" and calls.hit(name) < 4:
                raise ValueError("again")

        announced = ctx.step_key
        await ctx.step(work, "first")
        assert keys["first"] == {announced}
        await ctx.options(retries=1, backoff=AT_ONCE).step(work, "second")

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert calls["second"] == 4
    assert [len(found) for found in keys.values()] == [1, 1]
    assert keys["first"] != keys["second"]
    assert all(run.id in key for found in keys.values() for key in found)


async def test_random_and_uuid_are_the_same_on_every_replay(app: Stepfast) -> None:
    """Rule 17: and differ from draw to draw, and from run to run."""
    gate = Gate()
    seen: dict[str, list[list[Any]]] = {}

    @app.workflow
    async def order(ctx: Context) -> None:
        drawn = [ctx.uuid(), ctx.random(), ctx.uuid(), ctx.random()]
        await ctx.step(nothing)
        drawn += [ctx.uuid(), ctx.random()]
        seen.setdefault(ctx.run_id, []).append(drawn)
        await ctx.step(gate.passing)

    first, second = await app.start(order), await app.start(order)
    async with app.worker(shutdown_grace=0):
        await eventually(lambda: gate.arrivals == 2)
    gate.open()
    await app.drain()
    for run in (first, second):
        assert await run.status() == "completed"
        live, replayed = seen[run.id]
        assert live == replayed
    [one, other] = [seen[run.id][0] for run in (first, second)]
    assert len({*one, *other}) == 12
    assert all(isinstance(value, uuid.UUID) and value.version == 4 for value in one[::2])
    assert all(0 <= value < 1 for value in one[1::2])


async def test_drawing_inside_a_step_changes_nothing_outside(app: Stepfast) -> None:
    """Rule 17: on replay the step is not called, so its draws must not count."""
    gate = Gate()
    seen: list[uuid.UUID] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        async def draw() -> str:
            return str(ctx.uuid())

        await ctx.step(draw)
        seen.append(ctx.uuid())
        await ctx.step(gate.passing)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.status() == "completed"
    live, replayed = seen
    assert live == replayed
    assert (await run.steps())[0].output != str(live)


async def test_draws_inside_a_step_are_the_same_on_every_try(app: Stepfast) -> None:
    seen: list[list[uuid.UUID]] = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async def draw() -> None:
            seen.append([ctx.uuid(), ctx.uuid()])
            if len(seen) < 2:
                raise ValueError("again")

        await ctx.options(retries=1, backoff=AT_ONCE).step(draw)

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]


async def test_now_is_the_database_time_of_the_newest_record(app: Stepfast) -> None:
    """Rule 17: before the first record the time the run began; the same on every replay."""
    gate = Gate()
    seen: list[list[datetime]] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        times = [ctx.now()]
        for _ in range(2):
            await ctx.step(nothing)
            times.append(ctx.now())
        seen.append(times)
        await ctx.step(gate.passing)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    info, steps = await run.info(), await run.steps()
    live, replayed = seen
    assert live == replayed == [info.started_at, steps[0].completed_at, steps[1].completed_at]
    assert live[0].tzinfo is UTC


async def test_now_after_parallel_steps_is_that_of_the_last_to_end(app: Stepfast) -> None:
    """Rule 17: whatever the order in which a replay reads their records."""
    gate, hold = Gate(), asyncio.Event()
    seen: list[datetime] = []

    async def slow() -> None:
        await hold.wait()

    async def quick(run_id: str) -> None: ...

    async def release_when_recorded(run_id: str) -> None:
        await eventually(lambda: _recorded(app, run_id, "quick"))
        before = (await app.get(run_id).info()).read_at
        await eventually(lambda: _past(app, run_id, before))  # so that the two records differ in time
        hold.set()

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step(slow), ctx.step(quick, ctx.run_id))
        seen.append(ctx.now())
        await ctx.step(gate.passing)

    run = await app.start(order)
    async with app.worker(shutdown_grace=0):
        await release_when_recorded(run.id)
        await gate.reached()
    gate.open()
    await app.drain()
    assert await run.status() == "completed"
    live, replayed = seen
    assert live == replayed == max(s.completed_at for s in (await run.steps())[:2] if s.completed_at)


async def _past(app: Stepfast, run_id: str, moment: datetime) -> bool:
    return (await app.get(run_id).info()).read_at > moment


async def _recorded(app: Stepfast, run_id: str, name: str) -> bool:
    return name in [s.name for s in await app.get(run_id).steps()]


async def test_a_plain_def_workflow_is_told_the_same(app: Stepfast) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> list[Any]:
        facts = [ctx.run_id, ctx.attempt, ctx.workflow, ctx.step_key.startswith(ctx.run_id)]
        return [*facts, ctx.uuid() != ctx.uuid(), 0 <= ctx.random() < 1, ctx.now().tzinfo is UTC]

    run = await drained(app, order)
    assert await run.result() == [run.id, 1, "order", True, True, True, True]


# -- what a run draws by chance cannot be guessed from what is known of it, and stays what it is (rule 17


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
