"""Your rows and Stepfast's records in one commit: both are there, once, or neither is.

Outside of a run: a row of an order and the start of its run are written in one transaction. The second order is rolled
back, and so is its run. Inside: `ctx.transaction` books the order, and the booking is committed with the record of the
step. The table has no unique key that could hide a second booking. The first try fails after it has written, and the
first attempt fails after the commit; there is one row all the same.

On SQLite the function is a plain `def` and gets sqlite3's connection; on Postgres it may be `async` and gets asyncpg's.

    python examples/one_commit.py
    STEPFAST_URL=postgresql://… python examples/one_commit.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from stepfast import Backoff, Context, InvalidState, Run, RunNotFound, Stepfast

URL = os.environ.get("STEPFAST_URL", "sqlite:///shop.db")  # in the folder the example runs in, a temporary one
ON_SQLITE = URL.startswith("sqlite")
app = Stepfast(URL)

TABLES = [
    "CREATE TABLE orders (id text PRIMARY KEY, cents integer)",
    "CREATE TABLE bookings (order_id text, cents integer)",
]


@dataclass
class Order:
    """The input of a run, and a row of `orders`."""

    id: str
    cents: int


troubles = ["a try that fails", "an attempt that fails"]


def trouble(left: int) -> None:
    """Fail, the first time."""
    if len(troubles) == left:
        raise OSError(troubles.pop(0))


def book_on_sqlite(connection: sqlite3.Connection, order: Order) -> str:
    """In the one thread that writes: keep it short. No commit and no rollback; both would be refused."""
    connection.execute("INSERT INTO bookings VALUES (?, ?)", (order.id, order.cents))
    trouble(2)  # rolled back
    return f"booking of {order.id}"


async def book_on_postgres(connection: Any, order: Order) -> str:
    """On a connection of its own, out of a small pool."""
    await connection.execute("INSERT INTO bookings VALUES ($1, $2)", order.id, order.cents)
    trouble(2)
    return f"booking of {order.id}"


@app.workflow(backoff=Backoff(base=0.05))
async def settle(ctx: Context, order: Order) -> str:
    """A label, so that the step has the same name on both databases."""
    book = book_on_sqlite if ON_SQLITE else book_on_postgres
    booking = await ctx.options(retries=2, backoff=Backoff(base=0.05)).transaction("book", book, order)
    trouble(1)  # the booking is committed by now, and is not made again
    note = await ctx.wait_signal("shipped", type=str)
    return f"{booking}, {note}"


# --- the shop, which has a connection of its own ----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def shop() -> AsyncIterator[Any]:
    """The driver's own connection; SQLAlchemy's async sessions and connections will do as well."""
    if ON_SQLITE:
        with contextlib.closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
            yield connection
    else:
        import asyncpg

        connection = await asyncpg.connect(URL)
        try:
            yield connection
        finally:
            await connection.close()


async def execute(connection: Any, sql: str, *values: Any) -> Any:
    """One statement, on either database; the rows."""
    if ON_SQLITE:
        return connection.execute(sql, values).fetchall()
    return await connection.fetch(sql.replace("?, ?", "$1, $2"), *values)


async def take_order(connection: Any, order: Order, commit: bool = True) -> Run[str]:
    """The row of the order and its run: one transaction."""
    await execute(connection, "BEGIN IMMEDIATE" if ON_SQLITE else "BEGIN")
    await execute(connection, "INSERT INTO orders VALUES (?, ?)", order.id, order.cents)
    run = await app.start(settle, order, connection=connection)
    await execute(connection, "COMMIT" if commit else "ROLLBACK")
    return run


async def ship(connection: Any, run: Run[str], order: Order) -> None:
    """The same for a signal: it is sent if the row is written, and not otherwise."""
    await execute(connection, "BEGIN IMMEDIATE" if ON_SQLITE else "BEGIN")
    await execute(connection, "INSERT INTO bookings VALUES (?, ?)", f"shipping {order.id}", 500)
    await run.signal("shipped", "shipped", connection=connection)
    await execute(connection, "COMMIT")


async def main() -> None:
    """Two orders, one of which never was."""
    async with app, shop() as connection:
        for table in TABLES:
            await execute(connection, table)
        order = Order("o-1", 4900)
        run = await take_order(connection, order)
        gone = await take_order(connection, Order("o-2", 100), commit=False)
        try:
            await gone.status()
        except RunNotFound:
            print("the order that was rolled back has no run")
        async with app.worker():
            await ship(connection, run, order)
            print(await run.result(timeout=30), f"in attempt {(await run.info()).attempt}")
        for order_id, cents in await execute(connection, "SELECT order_id, cents FROM bookings ORDER BY order_id"):
            print(f"  {order_id}: {cents}")
        print("tries of the booking:", [call.status for call in await run.activity() if call.name == "book"])
        try:
            await ship(connection, run, order)
        except InvalidState as error:
            await execute(connection, "ROLLBACK")
            print("refused:", str(error).partition("; ")[2])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="stepfast-shop-") as folder, contextlib.chdir(folder):
        asyncio.run(main())
