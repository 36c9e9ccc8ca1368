"""``ctx.options(session=True).transaction``: a session of SQLAlchemy in the transaction of the record (rule 29)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from stepfast import ConfigurationError, Context, RunFailed, Stepfast, step
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.engine import PATIENCE


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"

    order: Mapped[str] = mapped_column("order_id", sqlalchemy.String(20), primary_key=True)
    cents: Mapped[int]


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def app(make_app: MakeApp, url: str) -> Stepfast:
    app = make_app()
    rows = Rows(await app.store(), app.namespace, app.url.text)
    await rows.fetch("CREATE TABLE bookings (order_id varchar(20) PRIMARY KEY, cents integer NOT NULL)")
    await rows.close()
    return app


def orders(session: Session) -> list[str]:
    return list(session.scalars(sqlalchemy.select(Booking.order).order_by(Booking.order)))


async def result_of(app: Stepfast, workflow: Any, input: Any = None) -> Any:
    run = await app.start(workflow, input)
    await app.drain()
    return await run.result(timeout=PATIENCE)


async def test_a_plain_function_gets_a_session_on_every_database(app: Stepfast) -> None:
    tries: list[str] = []

    def book(session: Session, order: str) -> Any:
        tries.append(order)
        booking = Booking(order=order, cents=len(tries))
        session.add(booking)
        session.flush()
        if len(tries) == 1:
            raise ConnectionError("the first try is undone")
        return [booking.order, booking.cents]

    @app.workflow(max_attempts=1)
    async def settle(ctx: Context, order: str) -> Any:
        booked = await ctx.options(session=True, retries=1).transaction(book, order)
        await ctx.sleep(0.01)
        return [booked, await ctx.options(session=True).transaction("orders", orders)]

    assert await result_of(app, settle, "o-1") == [["o-1", 2], ["o-1"]]
    assert tries == ["o-1", "o-1"]  # the replay after the sleep has not called it


async def test_what_is_left_in_a_session_is_written_and_an_error_undoes_it(app: Stepfast) -> None:
    def book(session: Session, order: str) -> None:
        session.add(Booking(order=order, cents=1))  # neither flushed nor committed

    def twice(session: Session) -> None:
        session.add(Booking(order="o-2", cents=1))
        session.flush()
        session.execute(sqlalchemy.insert(Booking).values(order="o-1", cents=5))

    def back(session: Session) -> None:
        session.add(Booking(order="o-3", cents=1))
        session.flush()
        session.rollback()

    @app.workflow(max_attempts=1)
    async def settle(ctx: Context, order: str) -> Any:
        await ctx.options(session=True).transaction(book, order)
        said = []
        for function in (twice, back):
            try:
                await ctx.options(session=True).transaction(function)
            except Exception as error:
                said.append(str(error))
        return [said, await ctx.options(session=True).transaction("orders", orders)]

    (conflict, rolled), found = await result_of(app, settle, "o-1")
    assert "IntegrityError" in conflict and "rolled its session back" in rolled and found == ["o-1"]


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
async def test_a_coroutine_gets_an_async_session_and_savepoints(app: Stepfast) -> None:
    @app.task
    async def ship(order: str) -> str:
        return f"{order} is shipped"

    async def book(session: AsyncSession, order: str) -> str:
        session.add(Booking(order=order, cents=1))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            async with session.begin_nested():
                await session.execute(sqlalchemy.insert(Booking).values(order=order, cents=2))
        run = await app.start(ship, order, connection=session)
        await session.commit()  # a part of the transaction of the record, whatever the session thinks
        return run.id

    @app.workflow(max_attempts=1)
    async def settle(ctx: Context, order: str) -> Any:
        return await ctx.options(session=True).transaction(book, order)

    shipped = app.get(await result_of(app, settle, "o-1"))
    await app.drain()
    assert await shipped.result(timeout=PATIENCE) == "o-1 is shipped"


async def test_what_has_no_session_is_refused_by_name(app: Stepfast) -> None:
    async def nothing(session: Any) -> None:
        pass

    @app.workflow(max_attempts=1)
    async def in_step(ctx: Context, _: None) -> None:
        await ctx.options(session=True).step(nothing, None)

    @app.workflow(max_attempts=1)
    async def coroutine(ctx: Context, _: None) -> None:
        await ctx.options(session=True).transaction(nothing)

    with pytest.raises(RunFailed, match=r"ctx\.step takes no session="):
        await result_of(app, in_step)
    if app.url.kind == "sqlite":
        with pytest.raises(RunFailed, match="must be a plain def, which gets a Session"):
            await result_of(app, coroutine)
    with pytest.raises(ConfigurationError, match="@step takes no session="):
        step(session=True)(nothing)
