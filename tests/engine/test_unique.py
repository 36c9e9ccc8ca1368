"""One live run of a name: started, or the one that is there, with the signal in its mailbox (rule 68)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import AlreadyRunning, ConfigurationError, Context, InvalidInput, InvalidState, Stepfast
from stepfast.run import Run
from stepfast.testing import Lab
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.engine.test_connection_argument import Caller
from tests.support.engine import PATIENCE, Gate, eventually

pytestmark = ON_BOTH


def chats(app: Stepfast) -> Any:
    @app.workflow(name="chat", max_attempts=1)
    async def chat(ctx: Context, topic: str | None) -> list[str]:
        said: list[str] = [topic] if topic else []
        while not said or said[-1] != "bye":
            said.append(await ctx.wait_signal("message", type=str))
            if said[-1] == "fail":
                raise ValueError("no more")
        return said

    return chat


def say(text: object) -> dict[str, Any]:
    return {"unique": "c-1", "signal": ("message", text)}


@WAITS
async def test_one_run_takes_the_signals_of_all_starts(app: Stepfast, make_app: MakeApp) -> None:
    """Also of other processes, of starts before a worker has it, while it waits, and in a transaction."""
    chat, other = chats(app), make_app()
    first = await app.start(chat, "hello", **say("one"))
    second = await other.start("chat", None, **say("two"))
    assert (first.existed, second.existed, second.id == first.id) == (False, True, True)
    assert (await second.info()).unique == "c-1"
    async with app.worker():
        await eventually(lambda: _waits(first))
        with pytest.raises(InvalidInput, match="does not fit what run"):
            await app.start(chat, None, **say(7))
        third = await app.start(chat, None, **say("three"))
        assert third.id == first.id
        assert (await app.start(chat, None, unique="c-1")).id == first.id
        with pytest.raises(AlreadyRunning, match=first.id):
            await app.start(chat, None, on_conflict="raise", **say("lost"))
        assert (await other.start("chat", None, **say("bye"))).id == first.id
        assert await first.result(timeout=PATIENCE) == ["hello", "one", "two", "three", "bye"]
        new = await app.start(chat, None, on_conflict="raise", **say("bye"))
        assert not new.existed
        assert await new.result(timeout=PATIENCE) == ["bye"]


async def _waits(run: Run[Any]) -> bool:
    return await run.status() == "waiting" or any(step.status == "waiting" for step in await run.steps())


async def test_many_starters_make_one_run(make_app: MakeApp) -> None:
    apps = [make_app() for _ in range(4)]
    chat = [chats(app) for app in apps]
    runs = await asyncio.gather(
        *(app.start(flow, None, unique=f"c-{n % 3}", signal=("message", str(n))) for n in range(24)
          for app, flow in [(apps[n % 4], chat[n % 4])])
    )  # fmt: skip
    assert len({run.id for run in runs}) == 3
    assert sum(not run.existed for run in runs) == 3
    async with apps[0].worker():
        for name in range(3):
            await apps[1].start(chat[1], None, unique=f"c-{name}", signal=("message", "bye"))
        for name, run in enumerate(runs[:3]):
            said = await run.result(timeout=PATIENCE)
            assert sorted(said[:-1], key=int) == [str(n) for n in range(24) if n % 3 == name]


async def test_starts_in_bulk(app: Stepfast) -> None:
    chat = chats(app)
    there = await app.start(chat, "there", unique="b")
    runs = await app.start_many(chat, ["1", "2", "3", "4"], unique=["a", "b", "c", "a"], signal=("message", "bye"))
    assert [run.existed for run in runs] == [False, True, False, True]
    assert (runs[1].id, runs[3].id) == (there.id, runs[0].id)
    with pytest.raises(AlreadyRunning, match="'b'"):
        await app.start_many(chat, ["5", "6"], unique=["d", "b"], on_conflict="raise")
    assert len(await app.runs(workflow=chat)) == 3
    async with app.worker():
        assert await runs[0].result(timeout=PATIENCE) == ["1", "bye"]
        assert await there.result(timeout=PATIENCE) == ["there", "bye"]


@pytest.mark.parametrize("how", ["cancelled", "failed", "expired"])
async def test_the_end_frees_the_name_and_a_retry_asks_for_it(app: Stepfast, how: str) -> None:
    chat = chats(app)
    run = await app.start(chat, None, unique="c-1", expires_in=0.01 if how == "expired" else 60)
    async with app.worker(["none"] if how == "expired" else None):
        if how == "cancelled":
            await run.cancel()
        elif how == "failed":
            await app.start(chat, None, **say("fail"))
        await eventually(lambda: _ended(run))
    new = await app.start(chat, None, unique="c-1")
    assert not new.existed
    with pytest.raises(InvalidState, match=f"{new.id} has its name 'c-1' by now"):
        await run.retry()
    await new.cancel()
    assert await run.retry() is run
    assert (await app.start(chat, None, unique="c-1")).id == run.id


async def _ended(run: Run[Any]) -> bool:
    return (await run.info()).completed_at is not None


async def test_a_run_that_is_undone_has_its_name_until_it_is(app: Stepfast) -> None:
    gate = Gate()

    async def book() -> str:
        return "booked"

    async def unbook(_: str) -> None:
        await gate.passing()

    @app.workflow
    async def trip(ctx: Context) -> None:
        await ctx.options(compensate=unbook).step(book)
        await ctx.wait_signal("go")

    async with app.worker():
        run = await app.start(trip, unique="t")
        await eventually(lambda: _waits(run))
        await run.cancel()
        await gate.reached()
        assert (await app.start(trip, unique="t")).id == run.id
        gate.open()
        await eventually(lambda: _ended(run))
        assert not (await app.start(trip, unique="t")).existed


async def test_what_a_run_continues_as_has_its_name(app: Stepfast) -> None:
    @app.workflow
    async def counter(ctx: Context, count: int) -> int:
        if await ctx.wait_signal("next", type=bool):
            return ctx.continue_as(count + 1)
        return count

    async with app.worker():
        run = await app.start(counter, 0, unique="n", signal=("next", True))
        for more in (True, True, False):
            again = await app.start(counter, 100, unique="n", signal=("next", more))
            assert again.existed
        assert await run.result(timeout=PATIENCE) == 3


async def test_a_start_within_a_transaction(app: Stepfast) -> None:
    """It is seen when it is committed, and not when it is rolled back; a signal to the live run is delivered then."""
    chat = chats(app)
    await app.migrate()
    caller = Caller({"sqlite": "sqlite3", "mysql": "asyncmy"}.get(app.url.kind, "asyncpg"), app)
    async with app.worker():
        with pytest.raises(ZeroDivisionError):
            async with caller.transaction() as connection:
                lost = await app.start(chat, None, connection=connection, **say("lost"))
                raise ZeroDivisionError
        async with caller.transaction() as connection:
            run = await app.start(chat, None, connection=connection, **say("one"))
            assert (await app.start(chat, None, connection=connection, **say("two"))).id == run.id
        assert lost.id != run.id
        await eventually(lambda: _waits(run))
        async with caller.transaction() as connection:
            assert (await app.start(chat, None, connection=connection, **say("bye"))).existed
        assert await run.result(timeout=PATIENCE) == ["one", "two", "bye"]


async def test_dags(app: Stepfast) -> None:
    order = app.dag("order")

    @order.step
    async def pack(ctx: Any) -> str:
        return "packed"

    order.approval("ok", after=["pack"])

    run = await app.start(order, None, unique="o-1")
    with pytest.raises(InvalidInput, match="has no step 'no'"):
        await app.start(order, None, unique="o-1", signal=("no", True))
    again = await app.start(order, None, unique="o-1", signal=("ok", True))
    assert again.id == run.id
    assert len(await run.steps()) == 2
    async with app.worker():
        assert (await run.result(timeout=PATIENCE))["pack"] == "packed"
        new = await app.start(order, None, unique="o-1", signal=("ok", True))
        assert not new.existed
        assert (await new.result(timeout=PATIENCE))["pack"] == "packed"


@ON_SQLITE
async def test_misuse(app: Stepfast) -> None:
    chat = chats(app)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"signal": ("message", "x")}, "signal goes with unique"),
        ({"on_conflict": "raise"}, "on_conflict goes with unique"),
        ({"unique": "a", "on_conflict": "ask"}, "on_conflict must be one of"),
        ({"unique": "a", "key": "k"}, "key or unique, not both"),
        ({"unique": "a", "signal": "message"}, "signal must be a tuple"),
        ({"unique": ""}, "must not be empty"),
    ]
    for options, why in wrong:
        with pytest.raises(ConfigurationError, match=why):
            await app.start(chat, None, **options)
    with pytest.raises(ConfigurationError, match="2 inputs and 1 unique names"):
        await app.start_many(chat, [None, None], unique=["a"])


@ON_SQLITE
async def test_in_a_lab(app: Stepfast) -> None:
    chat = chats(app)
    async with Lab(app) as lab:
        run = await lab.start(chat, "hi", **say("one"))
        assert (await lab.start(chat, None, **say("bye"))).id == run.id
        assert await run.result() == ["hi", "one", "bye"]
        await lab.advance(timedelta(seconds=1))
        assert not (await lab.start(chat, None, **say("bye"))).existed
