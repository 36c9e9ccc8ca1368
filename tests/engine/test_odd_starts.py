"""What the starter's role may write, at the very bounds of what it may: it harms no run that another has started."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.model.ids import new_id
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE

pytestmark = pytest.mark.parametrize("url", ["postgres"], indirect=True)

QUICK = Settings(inline_wait=0, poll_interval=0.05, sweep_interval=0.05, backoff_base=0.01)
Row = dict[str, Any]

NUMBERS = {
    "started_at": 63, "ready_at": 63, "visible_at": 63, "deadline_at": 63, "expires_at": 63, "place": 63,
    "created_at": 63, "timeout_ms": 63, "deadline_ms": 63, "max_attempts": 31, "pending": 31, "ordinal": 31,
    "priority": 31,
}  # fmt: skip
"""The numbers that a starter may insert, and how many bits they have."""


class Starter:
    """A connection that has the starter's role and nothing else."""

    def __init__(self, connection: Any, graph: Row) -> None:
        self._connection = connection
        self._graph = graph
        self.last: dict[tuple[bool, str], int] = {}
        """The largest number that is taken, by whether the row is of a dag run, and by its column."""

    def run(self, **changes: Any) -> Row:
        """A run as it may be inserted."""
        row = {"id": UUID(new_id()), "workflow": "plain", "version": "", "queue": "plain", "status": "queued"}
        return row | {"format": 1, "input": "1", "seed": "", "created_at": 0} | changes

    def dag(self, **changes: Any) -> Row:
        """A dag run."""
        begun = {"status": "running", "started_at": 0, "ready_at": 0, "pending": 3}
        return self.run(**self._graph, **begun) | changes

    def step(self, dag: Row, name: str = "one", **changes: Any) -> Row:
        """A step of it."""
        of = {"workflow": f"graph/{name}", "dag_id": dag["id"], "dag_step": name, "place": 1}
        return self.run(**self._graph | of) | changes

    async def put(self, *rows: Row) -> bool:
        """Whether the database takes them."""
        try:
            async with self._connection.transaction():
                for row in rows:
                    marks = ", ".join(f"${n}" for n in range(1, len(row) + 1))
                    await self._connection.execute(
                        f"INSERT INTO runs ({', '.join(row)}) VALUES ({marks})", *row.values()
                    )
        except asyncpg.PostgresError:
            return False
        return True

    async def takes(self, is_dag: bool, column: str, value: int) -> bool:
        """Whether a row with this number would be taken."""
        block = self._connection.transaction()
        await block.start()
        try:
            return await self.put(self.dag(**{column: value}) if is_dag else self.run(**{column: value}))
        finally:
            await block.rollback()

    async def find_bounds(self) -> None:
        """By trial: what the tables and the policies say may change."""
        for is_dag, (column, bits) in itertools.product((False, True), NUMBERS.items()):
            low, high = 1, 2**bits
            assert await self.takes(is_dag, column, low), f"{column} = {low} is refused"
            while high - low > 1:
                middle = (low + high) // 2
                if await self.takes(is_dag, column, middle):
                    low = middle
                else:
                    high = middle
            self.last[is_dag, column] = low


@pytest.fixture
async def app(make_app: MakeApp) -> Stepfast:
    app = make_app(settings=QUICK)

    @app.task(name="plain")
    async def plain(number: int) -> int:
        return number + 1

    @app.workflow(name="naps")
    async def naps(ctx: Context, number: int) -> Any:
        await ctx.sleep(0.2)
        return await ctx.call("plain", number)

    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="one", compensate=lambda ctx: None)
    dag.approval("ok", after=["one"])
    dag.declare(lambda ctx: ctx.outputs["ok"], name="last", after=["ok"])
    return app


@pytest.fixture
async def starter(app: Stepfast) -> AsyncIterator[Starter]:
    await app.start("graph", {"a": 1})
    owner = await asyncpg.connect(app.url.text)
    await owner.execute((await app.store()).roles_sql())
    row = await owner.fetchrow(
        f"SELECT workflow, version, queue, graph, input FROM {app.namespace}.runs WHERE dag_id IS NULL"
    )
    connection = await asyncpg.connect(app.url.text)
    await connection.execute(f"SET ROLE {app.namespace}_starter; SET search_path = {app.namespace}")
    yield Starter(connection, dict(row))
    await connection.close()
    for role in ("starter", "worker", "reader"):
        await owner.execute(f"DROP OWNED BY {app.namespace}_{role}; DROP ROLE {app.namespace}_{role}")
    await owner.close()


async def assert_swept(app: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    """A worker does all its duties for other runs."""
    runs = [await app.start("naps", 1), await app.start("plain", 1, delay=0.2)]
    dag = await app.start("graph", {})
    async with app.worker() as worker:
        for run in runs:
            assert await run.result(timeout=PATIENCE) == 2
        await dag.signal("ok", 7)
        assert (await dag.result(timeout=PATIENCE))["last"] == 7
        assert not worker.broken.is_set()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert [line for line in told if "does not end by itself" in line or "internal error" in line] == []


@pytest.mark.parametrize("late", ["deadline_at", "expires_at"])
async def test_a_dag_run_that_counts_too_few_steps_stops_no_sweep(
    app: Stepfast, starter: Starter, caplog: pytest.LogCaptureFixture, late: str
) -> None:
    for pending in (0, 1):
        dag = starter.dag(pending=pending)
        taken = await starter.put(dag, *(starter.step(dag, name, visible_at=1, **{late: 1}) for name in ("one", "ok")))
        assert taken == (pending > 0), "a dag run has a step"
    await assert_swept(app, caplog)


async def test_a_dag_run_of_the_last_year_stops_no_sweep(
    app: Stepfast, starter: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    await starter.find_bounds()
    last = starter.last[True, "ready_at"]
    dag = starter.dag(ready_at=last)
    assert await starter.put(dag, starter.step(dag, ready_at=last, deadline_at=1, visible_at=1))
    assert await starter.put(starter.dag(ready_at=last, deadline_at=1, visible_at=1))
    await assert_swept(app, caplog)


@pytest.mark.parametrize("times", [40, pytest.param(1500, marks=[pytest.mark.thorough, pytest.mark.timeout(600)])])
async def test_no_rows_at_the_bounds_of_what_a_starter_may_insert_stop_a_sweep(
    app: Stepfast, starter: Starter, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    await starter.find_bounds()
    chance = random.Random(times)

    def bounds(is_dag: bool) -> Row:
        columns = chance.sample(sorted(NUMBERS), chance.randint(1, len(NUMBERS)))
        return {column: chance.choice((1, starter.last[is_dag, column])) for column in columns}

    taken = 0
    for number in range(times):
        overdue = {"visible_at": 1, chance.choice(("deadline_at", "expires_at", "visible_at")): 1}
        if number % 2:
            where = chance.choice([{}, {"status": "waiting", "waiting_for": chance.choice(("start", "steps", "x"))}])
            taken += await starter.put(starter.run(**bounds(False) | overdue | where))
            continue
        dag = starter.dag(**bounds(True) | chance.choice([overdue, {}]))
        steps = [starter.step(dag, name, **bounds(False) | overdue) for name in ("one", "ok", "last")]
        taken += await starter.put(dag, *steps[: chance.randint(0, 3)])
    assert taken > times // 2
    await assert_swept(app, caplog)
