"""The database's clock steps, as by an administrator or a failover. Nobody is buried for it, and nothing crawls."""

from __future__ import annotations

import asyncio
from typing import Any

from stepfast import Stepfast
from stepfast.settings import Settings
from stepfast.worker.worker import Worker
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import Counted, only_postgres
from tests.worker.tables import Tables

HOUR = 3_600_000
HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)


async def test_a_clock_that_steps_ahead_makes_nobody_bury_the_living(make_app: MakeApp, tables: Tables) -> None:
    """By the rows every lease was over an hour ago. But no worker has seen another's silence, and all beat on."""
    apps = [make_app(Settings(lease=4, heartbeat=0.4, sweep_interval=0.05, poll_interval=0.05)) for _ in range(2)]
    gate = Gate()
    for app in apps:
        task(app, "hold", gate=gate)
    runs = await apps[0].start_many(apps[0].workflows["hold"], [1, 2])
    async with apps[0].worker(concurrency=1) as one, apps[1].worker(concurrency=1) as two:
        before = {one.id, two.id}
        await eventually(lambda: gate.arrivals == 2)
        await eventually(lambda: one.duties.may_reap() and two.duties.may_reap())
        stores = [await app.store() for app in apps]
        reaps = [Counted(store, "reap") for store in stores]
        await tables.fetch(
            "UPDATE [workers] SET started_at = started_at - ?, beat_at = beat_at - ?, expires_at = expires_at - ?",
            HOUR, HOUR, HOUR,
        )  # fmt: skip
        await eventually(lambda: all(len(counted) >= 3 for counted in reaps))
        gate.open()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)
        assert {one.id, two.id} == before
    assert await tables.fetch("SELECT claim, losses FROM [runs]") == [(1, 0), (1, 0)]


async def claimed_without_ticks(app: Stepfast, worker: Worker, quick: Any) -> None:
    """Many runs, by wake-ups alone: without them ticks come one upon the other."""
    store = await app.store()
    await eventually(lambda: store.can_wake)
    before = worker.duties.sweeper.ticks
    runs = await app.start_many(quick, list(range(50)))
    await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)
    assert worker.duties.sweeper.ticks - before < 20


@only_postgres
async def test_a_clock_that_steps_back_leaves_no_mark_ahead_of_it(make_app: MakeApp) -> None:
    """A lane's mark says up to where all was seen claimed. Ahead of the clock it would hide every new run, until a poll
    finds it: one claim a minute here."""
    app = make_app(HARDLY_EVER)
    quick = task(app, "quick")
    async with app.worker() as worker:
        await (await app.start(quick, 0)).result(timeout=PATIENCE)
        [lane] = worker.duties.claimer._marks
        worker.duties.claimer._marks[lane] += HOUR * 1000  # as of the time before the step
        await worker.duties.sweeper.tick()
        await claimed_without_ticks(app, worker, quick)


@only_postgres
async def test_runs_from_before_the_step_do_not_take_the_mark_ahead(make_app: MakeApp, tables: Tables) -> None:
    """Those that were ready when the clock stepped back stand ahead of it. They are claimed last, and the mark stays
    behind."""
    app = make_app(HARDLY_EVER)
    quick = task(app, "quick")
    early = await app.start(quick, 0)
    await tables.fetch("UPDATE [runs] SET place = place + ?", HOUR * 1000)
    async with app.worker() as worker:
        await early.result(timeout=PATIENCE)
        await claimed_without_ticks(app, worker, quick)
