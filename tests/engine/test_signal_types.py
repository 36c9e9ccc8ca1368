"""The values of signals have types, and names that can be sent; what does not fit is refused where it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import asyncpg
import pytest

from stepfast import (
    ConfigurationError,
    Context,
    InvalidInput,
    InvalidState,
    PayloadError,
    RunNotFound,
    Settings,
    Stepfast,
    SyncContext,
)
from stepfast.model.ids import new_id
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Gate, interrupt
from tests.support.waiting import count

pytestmark = ON_SQLITE


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: str
    cents: int


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(inline_wait=0.1))


# -- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (bool, True),
        (bool, False),
        (int, 0),
        (str, ""),
        (type(None), None),
        (Order, Order("o-1", 5)),
        (list[Order], [Order("o-1", 5)]),
        (tuple[int, str], (1, "x")),
        (dict[int, str], {1: "x"}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (bytes, b"\0\xff"),
        (Any, {"a": [1, None]}),
    ],
)
@pytest.mark.enough_on("sqlite")
async def test_a_value_has_its_type_live_and_replayed(app: Stepfast, type_: Any, value: Any) -> None:
    """Rule 13."""
    gate = Gate()
    seen: list[Any] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        seen.append(await ctx.wait_signal("go", type=type_))
        await ctx.step(gate.passing)

    run = await app.start(order)
    await run.signal("go", value)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    await run.result(timeout=PATIENCE)
    assert seen == [value, value]
    assert [type(each) for each in seen] == [type(value)] * 2


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_value_of_the_wrong_type_that_was_sent_before_is_left_and_waited_past(
    app: Stepfast, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It ends nobody; it is told, and the next one that fits is taken, on every replay."""
    gate = Gate()
    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> int:
            amount = await ctx.wait_signal("amount", type=int)
            await ctx.step(gate.passing)
            return amount
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> int:
            amount = ctx.wait_signal("amount", type=int)
            ctx.step(gate.passing)
            return amount

    run = await app.start("order")
    await run.signal("amount", "a secret lot")
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "signal:amount")
    assert "'amount' came whose value does not fit" in caplog.text
    [step] = await run.steps()
    assert step.status == "waiting" and step.detail is not None and "Expected `int`, got `str`" in step.detail
    assert "secret" not in caplog.text + step.detail
    await run.signal("amount", 7)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 7


@ON_BOTH
async def test_a_value_that_a_waiting_run_would_not_take_is_refused_where_it_is_sent(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        got = [await ctx.wait_signal("one", type=bool)]
        got.append(await ctx.wait_signal("two", type=dict[str, int], timeout=3600))
        winner, value = await ctx.first(number=ctx.wait_signal("any", type=int), text=ctx.wait_signal("any", type=str))
        return [*got, winner, value]

    run = await app.start(order)
    await app.drain()
    with pytest.raises(InvalidInput, match=r"signal 'one'.*boolean.*string"):
        await run.signal("one", "true")
    await run.signal("one", True)
    await app.drain()
    with pytest.raises(InvalidInput, match=r"\$\.cents"):
        await run.signal("two", {"cents": "many"})
    await run.signal("another", "of which nobody knows what it is for")
    await run.signal("two", {"cents": 5})
    await app.drain()
    with pytest.raises(InvalidInput):
        await run.signal("any", [1])
    await run.signal("any", "word")  # one of them would take it
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [True, {"cents": 5}, "text", "word"]


async def test_a_value_that_one_wait_does_not_take_is_there_for_another(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        number = await ctx.wait_signal("value", type=int)
        return [number, await ctx.wait_signal("value", type=str)]

    run = await app.start(order)
    await run.signal("value", "word")
    await run.signal("value", 7)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [7, "word"]
    assert await count(app, "mailbox", run) == 0


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_run_that_has_ended_takes_no_signals(app: Stepfast, end: str) -> None:
    """A clear error, and nothing is left behind."""

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        if end == "failed":
            raise ValueError("no")

    run = await app.start(order)
    if end == "cancelled":
        await run.cancel()
    await app.drain()
    with pytest.raises(InvalidState, match=f"{run.id} is {end}"):
        await run.signal("go", 1)
    assert await count(app, "mailbox", run) == 0


async def test_an_unknown_run_takes_no_signals(app: Stepfast) -> None:
    unknown = new_id()
    with pytest.raises(RunNotFound, match=unknown):
        await app.signal(unknown, "go", 1)


async def test_a_signal_that_cannot_be_sent_is_refused_by_name(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("go")

    run = await app.start(order)
    with pytest.raises(PayloadError, match="signal 'go'"):
        await run.signal("go", object())
    for name in ("", "x" * 1000):
        with pytest.raises(ConfigurationError, match="name of a signal"):
            await run.signal(name)
    assert await count(app, "mailbox", run) == 0


async def test_a_wait_that_makes_no_sense_is_refused(app: Stepfast) -> None:
    refused: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        waits: list[Callable[[], Any]] = [
            lambda: ctx.wait_signal(""),
            lambda: ctx.wait_signal("go", timeout=-1),
        ]
        for wait in waits:
            try:
                await wait()
            except Exception as error:
                refused.append(type(error).__name__)

    run = await app.start(order)
    await app.drain()
    await run.result(timeout=PATIENCE)
    assert refused == ["ConfigurationError"] * 2
    assert await run.steps() == []


async def test_signals_can_be_sent_without_an_event_loop(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]

    run = await app.start(order)
    await asyncio.to_thread(app.sync.get(run.id).signal, "go", 1)
    await asyncio.to_thread(app.sync.signal, run.id, "go", 2)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [1, 2]


# -- what a signal costs its sender -------------------------------------------------------------------------------


@pytest.mark.parametrize(("type_", "statements"), [(Any, 1), (int, 2)], ids=["of any type", "of a type"])
async def test_a_signal_costs_its_sender_one_round_trip_and_one_more_if_its_value_is_checked(
    postgres_url: str, type_: Any, statements: int
) -> None:
    """Statements are counted where the driver sends them, without those by which a given pool resets a session."""
    sent: list[str] = []

    async def spy(connection: Any) -> None:
        connection.add_query_logger(lambda record: sent.append(record.query))

    async with (
        asyncpg.create_pool(postgres_url, min_size=0, init=spy) as pool,
        Stepfast(pool=pool, settings=Settings(inline_wait=0)) as app,
    ):

        @app.workflow
        async def order(ctx: Context) -> Any:
            return await ctx.wait_signal("go", type=type_)

        run = await app.start(order)
        await app.drain()
        sent.clear()
        await run.signal("go", 5)
        assert len([query for query in sent if "pg_advisory_unlock_all" not in query]) == statements
        await app.drain()
        assert await run.result(timeout=PATIENCE) == 5
