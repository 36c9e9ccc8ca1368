"""Events reach every run that waits for them, in their order, once, and start one run each (rule 69)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from stepfast import (
    ConfigurationError,
    Context,
    DagContext,
    Event,
    EventTimeout,
    RunFailed,
    Stepfast,
    SyncContext,
)
from stepfast.run import Run
from stepfast.testing import Lab, crash_everywhere
from stepfast.worker import event_dispatcher
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED, WAITS, MakeApp
from tests.support.crashing import crash_at
from tests.support.databases import in_transaction
from tests.support.engine import PATIENCE, Calls, Gate, eventually, finished, interrupt

pytestmark = ON_BOTH


async def waits(run: Run[Any], number: int = 1) -> None:
    """Until so many calls of a run wait for events, and it would be woken."""

    async def so_many() -> bool:
        return sum(step.kind == "event" and step.status == "waiting" for step in await run.steps()) >= number

    await eventually(so_many)


def reader(app: Stepfast, count: int, **how: Any) -> Any:
    @app.workflow(name="reader")
    async def read(ctx: Context) -> list[Any]:
        found = [await ctx.wait_event("paid", **how) for _ in range(count)]
        return [[event.id, event.key, event.data] for event in found]

    return read


@contextlib.asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """A connection of the caller's with an open transaction, to be committed or rolled back by `end`."""
    if url.startswith("mysql"):
        async with in_transaction(url) as theirs:
            yield theirs, theirs.commit, theirs.rollback
        return
    if not url.startswith("sqlite"):
        connection = await asyncpg.connect(url)
        block = connection.transaction()
        await block.start()
        try:
            yield connection, block.commit, block.rollback
        finally:
            await connection.close()
        return
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as file:

        async def end(how: Callable[[], None]) -> None:
            how()

        yield file, lambda: end(file.commit), lambda: end(file.rollback)


@WAITS
async def test_a_run_takes_events_in_their_order(app: Stepfast) -> None:
    """Those that came before it waited, those that came between, and those that came while it waits."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        first = await ctx.wait_event("paid", key="a")
        found = [(await ctx.wait_event("paid", type=int)).data for _ in range(3)]
        with pytest.raises(EventTimeout, match="no event 'paid' with the key 'b' came within"):
            await ctx.wait_event("paid", key="b", timeout=0.01)
        return [first.data, first.id, first.key, first.published_at.tzinfo is not None, *found]

    await app.publish("paid", 0, key="a")  # before the run
    await asyncio.sleep(0.002)
    run = await app.start(order)
    await app.publish("paid", 1, key="b")
    await app.publish("other", 2, key="a")
    async with app.worker():
        await waits(run)
        named = await app.publish("paid", 3, key="a", id="e-3")
        await app.publish("paid", 4, key="a")
        await app.publish("paid", "odd")
        assert named == "e-3"
        await app.publish("paid", 5)
        assert await run.result(timeout=PATIENCE) == [3, "e-3", "a", True, 1, 4, 5]


@RELEASED
async def test_an_event_wakes_a_run_that_gave_its_slot_back(app: Stepfast, make_app: MakeApp) -> None:
    """Published by another process; the same id is the same event."""
    read, other = reader(app, 2, key="k"), make_app()
    async with app.worker():
        runs = [await app.start(read) for _ in range(3)]
        for run in runs:
            await waits(run)
        for name in ("e", "e", "f"):
            await other.publish("paid", name, key="k", id=name)
        for run in runs:
            assert await run.result(timeout=PATIENCE) == [["e", "k", "e"], ["f", "k", "f"]]


async def test_a_transaction_of_the_caller_publishes(app: Stepfast, url: str, calls: Calls) -> None:
    """With its commit, and not without. What is committed later, though published before, is taken later."""
    read = reader(app, 2)

    @app.task
    async def ship(data: Any) -> None:
        calls.hit(str(data))

    app.on("paid", ship)
    run = await app.start(read)
    async with transaction(url) as (connection, _, rollback):
        await app.publish("paid", "lost", id="x", connection=connection)
        await rollback()
    async with transaction(url) as (connection, commit, _), app.worker():
        await waits(run)
        await app.publish("paid", "slow", id="slow", connection=connection)
        if not url.startswith("sqlite"):
            await app.publish("paid", "quick", id="quick")
            await eventually(lambda: calls["quick"])
        await commit()
        if url.startswith("sqlite"):
            await app.publish("paid", "quick", id="quick")
        found = [each for each, _, _ in await run.result(timeout=PATIENCE)]
        assert found == (["slow", "quick"] if url.startswith("sqlite") else ["quick", "slow"])
        await eventually(lambda: calls["slow"])
    assert calls == {"slow": 1, "quick": 1}


async def test_concurrent_publishers_are_read_in_one_order(app: Stepfast, make_app: MakeApp, url: str) -> None:
    """Some commit at once, some late: every run takes all of it, in the same order, and one run is started for each."""
    read, other = reader(app, 18), make_app()
    reader(other, 18)
    for each in (app, other):

        @each.task(name="ship")
        async def ship(data: int) -> int:
            return data

        each.on("paid", ship)

    async def publish(first: int) -> None:
        for number in range(first, first + 6):
            if number % 2 or url.startswith("sqlite"):
                await app.publish("paid", number)
                continue
            async with transaction(url) as (connection, commit, _):
                await app.publish("paid", number, connection=connection)
                await asyncio.sleep(0.005 * (number % 5))
                await commit()

    runs = await app.start_many(read, [None] * 3)
    async with app.worker(), other.worker():
        await asyncio.gather(*(publish(first) for first in (0, 6, 12)))
        found = [[data for _, _, data in await run.result(timeout=PATIENCE)] for run in runs]
        assert found == [found[0]] * 3
        assert sorted(found[0]) == list(range(18))

        async def shipped() -> bool:
            return len(await app.runs(workflow="ship", status="completed")) == 18

        await eventually(shipped)
    assert sorted(info.input for info in await app.runs(workflow="ship")) == list(range(18))


@RELEASED
async def test_a_cancelled_run_takes_no_event(app: Stepfast) -> None:
    read = reader(app, 1)
    async with app.worker():
        gone, stays = await app.start_many(read, [None] * 2)
        for run in (gone, stays):
            await waits(run)
        await gone.cancel()
        await app.publish("paid", 1, id="e")
        assert await stays.result(timeout=PATIENCE) == [["e", None, 1]]
    assert (await app.events())[0].taken_by == (stays.id,)
    assert await gone.status() == "cancelled"


async def test_since_now_passes_over_what_came_before(app: Stepfast) -> None:
    read = reader(app, 1, since="now")
    run = await app.start(read)
    await app.publish("paid", "before")
    async with app.worker():
        await waits(run)
        await asyncio.sleep(0.002)  # the next millisecond
        await app.publish("paid", "after", id="e")
        assert await run.result(timeout=PATIENCE) == [["e", None, "after"]]


async def test_an_event_starts_one_run(app: Stepfast, make_app: MakeApp) -> None:
    """Whoever publishes may be gone, workers compete, and a start that fails keeps no other."""

    def declare(app: Stepfast) -> None:
        @app.task(name="ship")
        async def ship(order: str) -> str:
            return order

        @app.task(name="note")
        async def note() -> None:
            pass

        app.on("paid", ship, input=lambda event: f"{event.key}:{event.data['order']}")
        app.on("paid", note)

    publisher, other = make_app(), make_app()
    for each in (app, other, publisher):
        declare(each)
    await publisher.publish("paid", {}, key="k")
    for number in (1, 2, 2, 3):
        await publisher.publish("paid", {"order": number}, key="k", id=f"e-{number}")
    await publisher.close()

    async def done() -> bool:
        return len(await app.runs(status="completed")) >= 7

    async with app.worker(), other.worker():
        await eventually(done)
    results = [await app.get(run.id).result() for run in await app.runs(workflow="ship")]
    assert sorted(results) == ["k:1", "k:2", "k:3"]
    assert len(await app.runs(workflow="note")) == 4


@pytest.mark.parametrize("written", [False, True], ids=["lost", "reply lost"])
async def test_a_worker_dies_as_it_takes_an_event(app: Stepfast, make_app: MakeApp, written: bool) -> None:
    """It has not taken it, or it has: the next worker goes on with the next event."""
    read, other = reader(app, 2), make_app()
    reader(other, 2)
    run = await app.start(read)
    for data in ("a", "b"):
        await app.publish("paid", data)
    await crash_at(app, lambda batch: any(entry.event for entry in batch.joint), written=written)
    await other.drain()
    assert [data for _, _, data in await run.result(timeout=PATIENCE)] == ["a", "b"]


@RELEASED
async def test_more_runs_wait_than_one_transaction_wakes(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_dispatcher, "_BATCH", 4)
    read = reader(app, 2)
    async with app.worker(concurrency=30):
        runs = await app.start_many(read, [None] * 11)
        for run in runs:
            await waits(run)
        for data in (1, 2):
            await app.publish("paid", data)
        for run in runs:
            assert [data for _, _, data in await run.result(timeout=PATIENCE)] == [1, 2]


@WAITS
async def test_waits_of_one_run_share_what_comes(app: Stepfast) -> None:
    """Branches take one each; who loses a race takes none; what is given up is there for the next wait."""

    async def one(ctx: Context, number: int) -> Any:
        return (await ctx.wait_event("paid")).data

    @app.workflow
    async def many(ctx: Context) -> list[Any]:
        await ctx.first(late=ctx.sleep(0.01), paid=ctx.wait_event("paid"))
        name, value = await ctx.first(quick=ctx.step("quick", lambda: 1), paid=ctx.wait_event("paid"))
        return [*sorted(await ctx.map(one, [1, 2, 3])), name if name == "quick" else value.data]

    async with app.worker():
        run = await app.start(many)
        await waits(run, 3)
        for data in range(4):
            await app.publish("paid", data)
        assert await run.result(timeout=PATIENCE) == [0, 1, 2, "quick"]


async def test_a_chain_loses_no_event_and_takes_none_twice(app: Stepfast) -> None:
    @app.workflow
    async def chain(ctx: Context, seen: list[Any]) -> list[Any]:
        event = await ctx.wait_event("paid", key="k")
        seen.append(event.data)
        if len(seen) < 4:
            ctx.continue_as(seen)
        return seen

    run = await app.start(chain, [])
    for data in range(2):
        await app.publish("paid", data, key="k")
    async with app.worker():
        await asyncio.sleep(0.05)
        for data in range(2, 4):
            await app.publish("paid", data, key="k")
        assert await run.result(timeout=PATIENCE) == [0, 1, 2, 3]


async def _waits_again(run: Run[Any]) -> bool:
    return [step.status for step in await run.steps() if step.kind == "event"] == ["completed", "waiting"]


async def test_a_chain_takes_an_event_once_by_waits_of_any_key(app: Stepfast) -> None:
    """Also where it waits for a key first and then for any, and for what is new first and then for the rest."""

    @app.workflow
    async def chain(ctx: Context, seen: list[Any]) -> list[Any]:
        if not seen:
            seen.append((await ctx.wait_event("paid", key="k")).data)
            seen.append((await ctx.wait_event("paid", since="now")).data)
            ctx.continue_as(seen)
        for key in (None, "k", None):
            try:
                seen.append((await ctx.wait_event("paid", key=key, timeout=0)).data)
            except EventTimeout:
                seen.append(None)
        if len(seen) < 6:
            ctx.continue_as(seen)
        return seen

    async with app.worker():
        run = await app.start(chain, [])
        await app.publish("paid", "other", key="l")
        await app.publish("paid", "first", key="k")
        await eventually(lambda: _waits_again(run))
        await app.publish("paid", "new", key="k")
        assert await run.result(timeout=PATIENCE) == ["first", "new", "other", None, None, None, None, None]


@ON_SQLITE
async def test_a_failed_attempt_gives_its_event_back(app: Stepfast, calls: Calls) -> None:
    """An event that was taken after the failure is forgotten with it, and taken by the next attempt."""

    @app.workflow(max_attempts=2)
    async def clumsy(ctx: Context) -> Any:
        try:
            await ctx.step("charge", lambda: calls.hit("charge") == 2 or 1 / 0)
        except Exception:
            await ctx.wait_event("paid")
            raise
        return (await ctx.wait_event("paid")).data

    async with app.worker():
        run = await app.start(clumsy)
        await app.publish("paid", "x")
        assert await run.result(timeout=PATIENCE) == "x"


@RELEASED
@ON_SQLITE
async def test_an_event_is_the_same_on_replay(app: Stepfast) -> None:
    gate = Gate()

    @app.workflow
    async def replays(ctx: Context) -> list[Any]:
        event: Event[list[int]] = await ctx.wait_event("paid", type=list[int])
        await ctx.step("stop", gate.passing)
        return [event.id, event.key, event.data, event.published_at.isoformat()]

    run = await app.start(replays)
    await app.publish("paid", [1], key="k", id="e")
    await interrupt(app, gate)
    await finished(app, run, gate)
    assert (await run.result())[:3] == ["e", "k", [1]]


@ON_SQLITE
async def test_plain_code_and_dags_wait_for_events(app: Stepfast) -> None:
    @app.workflow
    def plain(ctx: SyncContext) -> Any:
        return ctx.wait_event("paid", key="k").data

    dag = app.dag("shipping")

    @dag.step
    async def paid(ctx: DagContext) -> Any:
        return (await ctx.wait_event("paid", timeout=PATIENCE)).data

    async with app.worker():
        run, of_dag = await app.start(plain), await app.start(dag)
        await asyncio.to_thread(app.sync.publish, "paid", 5, key="k")
        assert await run.result(timeout=PATIENCE) == 5
        assert (await of_dag.result(timeout=PATIENCE))["paid"] == 5


async def test_old_events_are_removed(app: Stepfast) -> None:
    """With what belongs to them, and subscriptions that are declared no more; not before they are matched."""

    @app.task
    async def ship() -> None:
        pass

    app.on("paid", ship)
    store = await app.store()
    run = await app.start(reader(app, 1))
    await app.publish("paid", 1, id="e")
    await app.drain()
    assert await run.result() == [["e", None, 1]]
    await asyncio.sleep(0.002)
    assert await store.remove_events(3_600_000, 10) == 0
    assert await store.remove_events(0, 10) == 1
    await app.publish("paid", 2, id="e")
    await asyncio.sleep(0.002)
    assert await store.remove_events(0, 10) == 0
    await app.drain()
    assert len(await app.runs(workflow="ship")) == 1


@ON_SQLITE
async def test_what_cannot_work_is_refused(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def wrong(ctx: Context, how: str) -> None:
        if how == "publish":
            await app.publish("paid")
        elif how == "since":
            ctx.wait_event("paid", since="yesterday")  # type: ignore[call-overload]
        else:
            ctx.wait_event("a,b")

    with pytest.raises(ConfigurationError, match="no comma"):
        await app.publish("a,b")
    with pytest.raises(ConfigurationError, match="must not be empty"):
        await app.publish("paid", key="")
    with pytest.raises(ConfigurationError, match="a function of the event"):
        app.on("paid", wrong, input="publish")  # type: ignore[arg-type]
    async with app.worker():
        for how, said in (("publish", "body of workflow"), ("since", '"start" .* or "now"'), ("name", "no comma")):
            run = await app.start(wrong, how)
            with pytest.raises(RunFailed, match=said):
                await run.result(timeout=PATIENCE)


@pytest.mark.enough_on("sqlite")
async def test_a_lab_publishes() -> None:
    app = Stepfast("sqlite://")
    seen = list[Any]()

    @app.task
    async def ship(data: Any) -> None:
        seen.append(data)

    def refused(event: Event[Any]) -> Any:
        if not mended:
            raise ValueError("not yet")
        return event.data

    mended = list[bool]()
    app.on("paid", ship)
    app.on("lost", ship, input=refused)
    read = reader(app, 2)
    async with Lab(app) as lab:
        run = await lab.start(read)
        assert await run.status() == "waiting"
        await lab.publish("paid", 1, id="e")
        await lab.publish("paid", 1, id="e")
        assert (seen, await run.status()) == ([1], "waiting")
        await lab.publish("paid", 2, key="k")
        assert [data for _, _, data in await run.result()] == [1, 2] == seen
        await lab.publish("lost", 3, id="g")
        assert (seen, (await lab.app.events(name="lost"))[0].to_start) == ([1, 2], ("ship",))
        mended.append(True)
        await lab.advance(61)
        assert seen == [1, 2, 3]


@pytest.mark.enough_on("sqlite")
async def test_a_crash_anywhere_loses_no_event() -> None:
    app = Stepfast("sqlite://")

    @app.workflow
    async def both(ctx: Context) -> list[Any]:
        await ctx.step("publish", app.publish, "paid", 1, id="e")
        first = await ctx.wait_event("paid")
        await ctx.step("again", app.publish, "paid", 2, id="f")
        return [first.data, (await ctx.wait_event("paid", timeout=3600)).data]

    await crash_everywhere(app, both)
