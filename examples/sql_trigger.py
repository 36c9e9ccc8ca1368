"""A trigger on your own table starts the runs: whoever inserts an order need not know of Stepfast, nor of Python.

The row and its run are one commit. An order that is rolled back has no run. The approval is a line of SQL, too. On
Postgres the trigger calls `stepfast.start`, which checks the input at once; on SQLite it inserts the row of the run
itself, and an input that does not fit ends the run when a worker first takes it.

    python examples/sql_trigger.py
    STEPFAST_URL=postgresql://… python examples/sql_trigger.py  # makes a table `orders`: give it an empty database
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stepfast import Context, Settings, Stepfast

URL = os.environ.get("STEPFAST_URL", "sqlite:///shop.db")  # in the folder the example runs in, a temporary one
app = Stepfast(URL, settings=Settings(poll_interval=0.1, inline_wait=0))


@dataclass
class Order:
    """The input of a run, and a row of `orders`."""

    id: str
    cents: int


@app.workflow
async def checkout(ctx: Context, order: Order) -> str:
    """Large orders are approved by somebody first."""
    if order.cents > 10_000:
        await ctx.wait_signal("approved")
    return f"{order.id} is shipped for {order.cents}"


TRIGGER_ON_POSTGRES = """
CREATE FUNCTION begin_checkout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM stepfast.start('checkout', row_to_json(NEW), key => NEW.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER begin_checkout AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION begin_checkout();
"""
APPROVE_ON_POSTGRES = "SELECT stepfast.signal(id, 'approved') FROM stepfast.runs WHERE key = 'o-2'"

TRIGGER_ON_SQLITE = """
CREATE TRIGGER begin_checkout AFTER INSERT ON orders BEGIN
    INSERT INTO stepfast_runs (id, workflow, version, queue, status, place, input, key, format, seed, created_at)
    SELECT substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(r, 1, 3) || '-8' || substr(r, 4, 3) || '-'
           || substr(r, 7, 12),
           name, version, queue, 'queued', ms * 1000, json_object('id', NEW.id, 'cents', NEW.cents), NEW.id, 1,
           lower(hex(randomblob(16))), ms
    FROM (SELECT name, version, queue, ms, printf('%012x', ms) AS h, lower(hex(randomblob(9))) AS r
          FROM stepfast_definitions, (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS integer) AS ms)
          WHERE name = 'checkout' ORDER BY seen_at DESC LIMIT 1)
    WHERE true
    ON CONFLICT DO NOTHING;
END;
"""
APPROVE_ON_SQLITE = """
INSERT INTO stepfast_mailbox (run_id, id, kind, name, value, format, sent_at, delivered)
SELECT id, 'approval of ' || key, 'signal', 'approved', 'null', 1, created_at, false
FROM stepfast_runs WHERE key = 'o-2'
"""

Execute = Callable[[str], Awaitable[Any]]


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Execute, str, str]]:
    """How the shop, which knows nothing of Stepfast, talks to its database; its trigger, and its approval."""
    if URL.startswith("sqlite"):
        shop = sqlite3.connect("shop.db", isolation_level=None)

        async def execute(sql: str) -> Any:
            return shop.execute(sql)

        yield execute, TRIGGER_ON_SQLITE, APPROVE_ON_SQLITE
        shop.close()
    else:
        import asyncpg

        connection = await asyncpg.connect(URL)
        yield connection.execute, TRIGGER_ON_POSTGRES, APPROVE_ON_POSTGRES
        await connection.close()


async def tell(key: str, *expected: str) -> None:
    """Wait until the run of an order stands as expected, and say how it does."""
    while not (found := await app.runs(key=key)) or found[0].status not in expected:
        await asyncio.sleep(0.02)
    print(f"{key}: {found[0].output or found[0].reason or found[0].waiting_for}")


async def main() -> None:
    """Four orders: one is rolled back, one waits for an approval, one is no order."""
    async with app, app.worker(), connected() as (execute, trigger, approve):
        await execute("CREATE TABLE orders (id text PRIMARY KEY, cents integer)")
        await execute(trigger)
        await execute("BEGIN")
        await execute("INSERT INTO orders VALUES ('o-0', 1)")
        await execute("ROLLBACK")
        await execute("INSERT INTO orders VALUES ('o-1', 4900), ('o-2', 20000)")
        await tell("o-1", "completed")
        await tell("o-2", "waiting")
        await execute(approve)
        await tell("o-2", "completed")
        try:
            await execute("INSERT INTO orders VALUES ('o-3', NULL)")
            await tell("o-3", "failed")
        except Exception as error:
            print("o-3:", str(error).partition("\n")[0])
        print("runs:", len(await app.runs()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="stepfast-shop-") as folder, contextlib.chdir(folder):
        asyncio.run(main())
