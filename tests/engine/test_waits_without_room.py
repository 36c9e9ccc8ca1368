"""A wait that is over goes on, also where no run may stay in memory to wait: in a worker that has no slot to spare, and
in a queue with limits."""

from __future__ import annotations

import pytest

from stepfast import Context, Settings, SignalTimeout, Stepfast
from tests.support.engine import PATIENCE

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.mark.parametrize("where", ["one slot", "limited queue"])
@pytest.mark.parametrize("alone", [True, False])
async def test_the_timeout_of_a_signal_comes_where_a_run_may_not_stay(sqlite_url: str, where: str, alone: bool) -> None:
    app = Stepfast(sqlite_url, settings=Settings(inline_wait=0.05, poll_interval=0.1))
    app.queue("narrow", concurrency=1)

    async def listen(ctx: Context, name: str, timeout: float) -> str:
        try:
            return str(await ctx.wait_signal(name, timeout=timeout))
        except SignalTimeout:
            return "late"

    @app.workflow
    async def order(ctx: Context) -> str:
        if alone:
            return await listen(ctx, "paid", 0.2)
        winner, value = await ctx.first(paid=ctx.branch(listen, "paid", 0.2), sent=ctx.branch(listen, "sent", 1000.0))
        return f"{winner} {value}"

    narrow = where == "limited queue"
    async with app, app.worker(concurrency=10 if narrow else 1):
        run = await app.start(order, queue="narrow" if narrow else None)
        assert await run.result(timeout=PATIENCE) == ("late" if alone else "paid late")
        assert (await run.info()).status == "completed"
