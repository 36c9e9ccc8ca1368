"""What the database refuses of one row keeps no sweep from the others: the row is found, told of and set aside (rules 9
and 59)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from stepfast import Settings, Stepfast
from stepfast.store.sqlite.store import SqliteStore
from stepfast.worker.worker import Worker
from tests.support.engine import PATIENCE, eventually, worked
from tests.support.workflows import listener, task
from tests.worker.conftest import MakeApp

pytestmark = pytest.mark.enough_on("postgres", "sqlite")

QUICK = Settings(inline_wait=0, poll_interval=0.05, sweep_interval=0.05, lease=1.0, heartbeat=0.3, retention=None)


class Refusing:
    """A database that refuses changes of some rows, as a trigger of the owner's may."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app

    async def execute(self, sqlite: str, postgres: str) -> None:
        """``[runs]`` stands for the name of that table."""
        store: Any = await self._app.store()
        if isinstance(store, SqliteStore):
            text = sqlite.replace("[", f"{self._app.namespace}_").replace("]", "")
            assert store._writer is not None
            await store._writer.do(lambda database: database.execute(text).fetchall())
            return
        connection = await asyncpg.connect(self._app.url.text)
        await connection.execute(postgres.replace("[", f'"{self._app.namespace}".').replace("]", ""))
        await connection.close()

    async def update(self, table: str, condition: str) -> None:
        """Refuse each update of a table under a condition on OLD and NEW."""
        await self.execute(
            f"CREATE TRIGGER [odd] BEFORE UPDATE ON [{table}] WHEN {condition} "
            "BEGIN SELECT RAISE(ABORT, 'an odd row'); END",
            "CREATE FUNCTION [odd_row]() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'an odd row' USING ERRCODE = 'check_violation'; END $$; "
            f"CREATE TRIGGER odd BEFORE UPDATE ON [{table}] FOR EACH ROW WHEN ({condition}) "
            "EXECUTE FUNCTION [odd_row]()",
        )

    async def set(self, changes: str, run_id: str) -> None:
        """Change the row of a run by hand."""
        sql = f"UPDATE [runs] SET {changes} WHERE id = '{run_id}'"
        await self.execute(sql, sql)


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    app = make_app(QUICK)
    task(app, "plain")
    listener(app, name="waits")
    return app


async def told_of(caplog: pytest.LogCaptureFixture, run_id: str) -> list[str]:
    return [line for line in caplog.messages if run_id in line and "the database refuses" in line]


async def moves_the_others(app: Stepfast, caplog: pytest.LogCaptureFixture, odd: str, others: list[Any]) -> None:
    """A worker comes by: the others end, and the odd run is told of once."""
    async with app.worker() as worker:
        for other in others:
            await other.result(timeout=PATIENCE)
        await eventually(lambda: _is_told(caplog, odd))
        assert await (await app.start("plain", 1, delay=0.05)).result(timeout=PATIENCE) == 1
        await _ticked(worker, 3)
        assert not worker.broken.is_set()
    assert len(await told_of(caplog, odd)) == 1


async def _is_told(caplog: pytest.LogCaptureFixture, run_id: str) -> bool:
    return bool(await told_of(caplog, run_id))


async def _ticked(worker: Worker, times: int) -> None:
    wanted = worker.duties.sweeper.ticks + times

    async def has() -> bool:
        return worker.duties.sweeper.ticks >= wanted

    await eventually(has)


async def delayed(app: Stepfast) -> list[Any]:
    return [await app.start("plain", number, delay=0.02) for number in range(5)]


async def expired(app: Stepfast) -> list[Any]:
    return [await app.start("plain", number, delay=0.02, expires_in=3600) for number in range(5)]


async def lost(app: Stepfast) -> list[Any]:
    runs = [await app.start("plain", number) for number in range(5)]
    dead = "00000000-0000-7000-8000-000000000001"
    for run in runs:
        await Refusing(app).set(
            f"status = 'running', worker = '{dead}', executed_by = '{dead}', place = NULL, claim = 1", run.id
        )
    return runs


@pytest.mark.parametrize("make", [delayed, expired, lost])
async def test_a_run_that_the_database_does_not_let_move_is_set_aside(
    app: Stepfast, caplog: pytest.LogCaptureFixture, make: Callable[[Stepfast], Awaitable[list[Any]]]
) -> None:
    runs = await make(app)
    odd, others = runs[2], [*runs[:2], *runs[3:]]
    if make is expired:
        await Refusing(app).set("expires_at = 1, visible_at = 1", odd.id)
    await Refusing(app).update("runs", f"OLD.id = '{odd.id}' AND NEW.status <> 'paused' AND OLD.status <> 'paused'")
    await moves_the_others(app, caplog, odd.id, others)
    assert (await odd.info()).status == "paused"
    await Refusing(app).execute("DROP TRIGGER [odd]", "DROP TRIGGER odd ON [runs]")
    await odd.resume()
    if make is not expired:
        assert await worked(app, odd) == 2


@pytest.mark.parametrize("make", [delayed, lost])
async def test_a_run_that_cannot_even_be_set_aside_is_passed_over(
    app: Stepfast, caplog: pytest.LogCaptureFixture, make: Callable[[Stepfast], Awaitable[list[Any]]]
) -> None:
    runs = await make(app)
    before = await runs[2].info()
    await Refusing(app).update("runs", f"OLD.id = '{runs[2].id}'")
    await moves_the_others(app, caplog, runs[2].id, [*runs[:2], *runs[3:]])
    assert (await runs[2].info()).status == before.status


async def test_mail_that_the_database_does_not_let_through_is_left_in_its_box(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [await app.start("waits") for _ in range(5)]
    async with app.worker():
        for run in runs:
            await eventually(lambda run=run: _waits(run))  # type: ignore[misc]
    odd, others = runs[2], [*runs[:2], *runs[3:]]
    await Refusing(app).update("runs", f"OLD.id = '{odd.id}'")
    for number, run in enumerate(runs):
        columns = "(run_id, id, kind, name, value, format, sent_at, delivered)"
        mail_id = f"00000000-0000-7000-8000-00000000000{number}"
        values = f"('{run.id}', '{mail_id}', 'signal', 'go', '1', 1, {number}, false)"
        sql = f"INSERT INTO [mailbox] {columns} VALUES {values}"
        await Refusing(app).execute(sql, sql)
    await moves_the_others(app, caplog, odd.id, others)
    assert (await odd.info()).status == "waiting"


async def _waits(run: Any) -> bool:
    return bool((await run.info()).status == "waiting")


async def test_a_run_that_the_database_does_not_let_go_keeps_no_other_that_may(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(Settings(inline_wait=0, poll_interval=0.05, sweep_interval=0.05, retention=0.2))
    task(app, "plain")
    runs = [await app.start("plain", number) for number in range(5)]
    odd = runs[2]
    await Refusing(app).execute(
        f"CREATE TRIGGER [odd] BEFORE DELETE ON [runs] WHEN OLD.id = '{odd.id}' "
        "BEGIN SELECT RAISE(ABORT, 'an odd row'); END",
        "CREATE FUNCTION [odd_row]() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'an odd row' USING ERRCODE = 'restrict_violation'; END $$; "
        f"CREATE TRIGGER odd BEFORE DELETE ON [runs] FOR EACH ROW WHEN (OLD.id = '{odd.id}') "
        "EXECUTE FUNCTION [odd_row]()",
    )
    async with app.worker():
        await eventually(lambda: _only_one_is_left(app, odd.id))

        async def told() -> bool:
            return any(odd.id in line and "cannot be removed" in line for line in caplog.messages)

        await eventually(told)
    assert sum("cannot be removed" in line for line in caplog.messages) == 1


async def _only_one_is_left(app: Stepfast, run_id: str) -> bool:
    return [info.id for info in await app.runs()] == [run_id]
