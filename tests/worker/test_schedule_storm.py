"""Each tick starts one run, whatever is killed meanwhile: with real processes (rule 37)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from stepfast import Stepfast
from stepfast.info import RunInfo
from stepfast.settings import Settings
from tests.support.engine import eventually
from tests.support.processes import Ledger, WorkerProcess
from tests.worker.conftest import MakeProcess

SETTINGS = {"lease": 1, "sweep_interval": 0.1, "poll_interval": 0.2, "max_losses": 50}
SPANS = {"quick": 0.1, "slow": 0.25}
"""Names of schedules, and seconds between their ticks."""


async def storm(app: Stepfast, make_process: MakeProcess, ledger: Ledger, workers: int, kills: int) -> None:
    """Workers come and are killed while ticks pass; a killed one is followed by another."""
    for name, every in SPANS.items():
        await app.put_schedule(name, "quick", every=every, input=1, missed="all")
    chance = random.Random(7)
    async with AsyncExitStack() as stack:
        alive = [await stack.enter_async_context(make_process(SETTINGS)) for _ in range(workers)]
        for _ in range(kills):
            await ledger.seen("quick", len(ledger.lines("quick")) + chance.randrange(1, 8))
            victim: WorkerProcess = alive.pop(chance.randrange(workers))
            victim.kill()
            alive.append(await stack.enter_async_context(make_process(SETTINGS)))
        await ledger.seen("quick", len(ledger.lines("quick")) + 5)
        await eventually(lambda: _ticked(app), 60)
        for name in SPANS:
            await app.pause_schedule(name)
        await eventually(lambda: _settled(app), 60)


async def _ticked(app: Stepfast) -> bool:
    """Whether each schedule has started several runs: of one tick there is no next to compare with."""
    return all([len(await app.runs(tag=f"schedule:{name}", limit=2)) == 2 for name in SPANS])


async def _settled(app: Stepfast) -> bool:
    return all(run.completed_at is not None for run in await _runs(app))


async def _runs(app: Stepfast) -> list[RunInfo]:
    return [run for name in SPANS for run in await app.runs(tag=f"schedule:{name}", limit=10_000, oldest_first=True)]


async def assert_each_tick_once(app: Stepfast) -> None:
    """No tick between the first and the last is missing, none is there twice, and all have ended well."""
    for name, every in SPANS.items():
        runs = await app.runs(tag=f"schedule:{name}", limit=10_000, oldest_first=True)
        ticks = sorted(datetime.fromisoformat(str(run.key).partition("@")[2]) for run in runs)
        [info] = [info for info in await app.schedules() if info.name == name]
        assert ticks[0] == info.created_at + timedelta(seconds=every)
        assert {later - tick for tick, later in pairwise(ticks)} == {timedelta(seconds=every)}
        assert {run.status for run in runs} == {"completed"}
        assert info.last_at == ticks[-1] and info.last_run in {run.id for run in runs}


@pytest.mark.enough_on("sqlite")
async def test_a_worker_that_is_killed_leaves_no_tick_out_and_none_twice(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger
) -> None:
    app = program(Settings(lease=1, sweep_interval=0.1, poll_interval=0.2))
    await app.start("quick", 0)  # so that the definition is there
    await storm(app, make_process, ledger, workers=1, kills=1)
    await assert_each_tick_once(app)


@pytest.mark.slow
async def test_a_storm_of_kills_leaves_no_tick_out_and_none_twice(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger
) -> None:
    app = program(Settings(lease=1, sweep_interval=0.1, poll_interval=0.2))
    await app.start("quick", 0)
    await storm(app, make_process, ledger, workers=3, kills=max(5, int(os.environ.get("FAULT_SECONDS", "20")) // 2))
    await assert_each_tick_once(app)
