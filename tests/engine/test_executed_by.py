"""Who executed what is known for as long as the run is kept: the worker, its host and its process."""

from __future__ import annotations

import os
import socket
from typing import Any

from stepfast import Context, Settings, Stepfast
from stepfast.info import ExecutedBy
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import drained
from tests.support.waiting import rows_of
from tests.support.workflows import task

pytestmark = ON_SQLITE
RELEASES = Settings(inline_wait=0)
"""Every wait gives its slot back."""


def declare(app: Stepfast) -> Any:
    """Two steps, with a wait for a signal between them."""

    async def early() -> str:
        return "early"

    async def late() -> str:
        return "late"

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(early)
        await ctx.wait_signal("go")
        return await ctx.step(late)

    return flow


def here(found: ExecutedBy | None) -> str:
    """The id of a worker of this process."""
    assert found is not None
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
    return found.worker


@ON_BOTH
async def test_every_claim_keeps_its_worker_after_the_end(make_app: MakeApp) -> None:
    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await one.start(declare(one))
    again = other.get(run.id)
    declare(other)
    assert (await run.info()).executed_by is None
    await one.drain()
    first = here((await run.info()).executed_by)
    await run.signal("go")
    await other.drain()
    info = await again.info()
    second = here(info.executed_by)
    assert (info.status, info.worker) == ("completed", None)
    assert first != second
    assert {step.name: here(step.executed_by) for step in await run.steps()} == {
        "early": first, "go": second, "late": second,
    }  # fmt: skip
    assert [here(call.executed_by) for call in await run.activity()] == [first, second, second]
    async with rows_of(one) as rows:
        found = await rows.fetch("SELECT name, executed_by, host, pid FROM [steps_readable] ORDER BY seq")
        mine = (socket.gethostname(), os.getpid())
        assert [(name, str(who), *where) for name, who, *where in found] == [
            ("early", first, *mine), ("go", second, *mine), ("late", second, *mine),
        ]  # fmt: skip
        found = await rows.fetch("SELECT executed_by FROM [activity_readable] ORDER BY position")
        assert [str(who) for (who,) in found] == [first, second, second]
        [(who, host, pid)] = await rows.fetch("SELECT executed_by, host, pid FROM [runs_readable]")
        assert (str(who), host, pid) == (second, *mine)
        found = await rows.fetch("SELECT first_claim, last_claim, executed_by FROM [claims_readable] ORDER BY 1")
        assert [(begin, end, str(who)) for begin, end, who in found] == [(1, 1, first), (2, 2, second)]
        assert await rows.fetch("SELECT 1 FROM [workers]") == []


async def test_claims_of_one_worker_leave_no_row(app: Stepfast) -> None:
    broken = task(app, "broken", error=ValueError("no"), max_attempts=2)
    run = await drained(app, broken)
    assert len({here(call.executed_by) for call in await run.activity()}) == 1
    async with rows_of(app) as rows:
        assert await rows.fetch("SELECT * FROM [claims]") == []


async def test_limited_queues_and_steps_of_dags_keep_it_too(make_app: MakeApp) -> None:
    def declare_all(app: Stepfast) -> tuple[Any, Any]:
        flow = declare(app)
        app.queue("flow", concurrency=1)
        dag = app.dag("dag")

        async def load(ctx: Any) -> str:
            return "loaded"

        dag.declare(load)
        return flow, dag

    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    flow, dag = declare_all(one)
    run, graph = await one.start(flow), await one.start(dag)
    await one.drain()
    declare_all(other)
    await other.get(run.id).signal("go")
    await other.drain()
    assert len({here(step.executed_by) for step in await run.steps()}) == 2
    [load] = await graph.steps()
    assert here(load.executed_by) == here((await graph.info()).executed_by)


async def test_it_goes_with_the_run(make_app: MakeApp) -> None:
    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await drained(one, declare(one))
    declare(other)
    await run.signal("go")
    await other.drain()
    await run.delete()
    async with rows_of(one) as rows:
        assert await rows.fetch("SELECT * FROM [claims]") == []
        await rows.fetch("UPDATE [past_workers] SET left_at = 1")
        await one.drain()  # a worker that leaves takes those along that no run can name
        assert len(await rows.fetch("SELECT * FROM [past_workers]")) == 1
