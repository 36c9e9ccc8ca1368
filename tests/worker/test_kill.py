"""Kill and go on, with real processes: whatever was recorded is never done again, and everything comes to its end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from stepfast import Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, eventually
from tests.support.nursery import crowd
from tests.support.processes import Ledger, WorkerProcess
from tests.support.proxy import Proxy
from tests.support.worker_program import make_app as make_program
from tests.worker.conftest import MakeProcess
from tests.worker.spying import only_postgres
from tests.worker.tables import Tables

pytestmark = pytest.mark.empty

SETTINGS = {"lease": 1, "sweep_interval": 0.1, "poll_interval": 0.2}
SHORT = Settings(lease=1, sweep_interval=0.1, poll_interval=0.2)
STEPS = 5


@pytest.mark.parametrize("killed_at", [0, pytest.param(2, marks=pytest.mark.thorough), 4])
async def test_a_crash_after_step_k_never_repeats_steps_before_it(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, killed_at: int
) -> None:
    """The step in which the process died runs again, those before it do not."""
    app = program(SHORT)
    run = await app.start(app.workflows["chain"], {"name": "a", "n": STEPS, "hold": killed_at, "gate": "gate"})
    async with make_process(SETTINGS) as first:
        await ledger.seen(f"step a {killed_at}")
        first.kill()
    ledger.open("gate")
    async with make_process(SETTINGS):
        assert await run.result(timeout=PATIENCE) == list(range(STEPS))
    counts = [len(ledger.lines(f"step a {n} ")) for n in range(STEPS)]
    assert counts == [2 if n == killed_at else 1 for n in range(STEPS)]


async def test_a_storm_of_kills_loses_nothing(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """Promises 2, 3, 5, 8: forty runs, workers killed in their midst, one after the other. Each call of a step beyond
    the first is paid for by another claim."""
    app = program(Settings(lease=1, sweep_interval=0.1, poll_interval=0.2))
    ledger.open("gate")
    plans = [{"name": f"run{n}", "n": STEPS} for n in range(40)]
    runs = await app.start_many(app.workflows["chain"], plans)
    chance = random.Random(1)
    patient = {**SETTINGS, "max_losses": 50}
    for _ in range(3):
        async with make_process(patient, concurrency=10) as victim:
            seen = len(ledger.lines("step"))
            await eventually(
                lambda seen=seen: len(ledger.lines("step")) > seen + chance.randrange(40) or _all_done(ledger)  # type: ignore[misc]
            )
            victim.kill()
    async with make_process(patient):
        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 2 * PATIENCE)
    assert results == [list(range(STEPS))] * 40
    calls = Counter(" ".join(line.split()[1:3]) for line in ledger.lines("step"))
    assert len(calls) == 40 * STEPS
    rows = await tables.fetch("SELECT run_id, count(*), max(claim) FROM [steps] GROUP BY run_id")
    assert {count for _, count, _ in rows} == {STEPS}
    claims = dict(await tables.fetch("SELECT id, claim FROM [runs]"))
    for run, plan in zip(runs, plans, strict=True):
        again = sum(calls[f"{plan['name']} {n}"] - 1 for n in range(STEPS))
        assert again <= claims[run.id] - 1


def _all_done(ledger: Ledger) -> bool:
    return len({tuple(line.split()[1:3]) for line in ledger.lines("step")}) == 40 * STEPS


MIGRATE = """
import asyncio, os, sys
from stepfast import Stepfast
async def main():
    os.write(3, b".")
    sys.stdin.read()
    async with Stepfast(sys.argv[1]) as app:
        await app.migrate()
asyncio.run(main())
"""


@only_postgres
async def test_eight_processes_migrate_at_once(url: str, tables: Tables) -> None:
    """Every deploy does it. (For SQLite there is a test of the store.)"""
    await asyncio.to_thread(crowd, 8, MIGRATE, url)
    assert await tables.one("SELECT count(*) FROM [runs]") == 0


async def test_an_idle_process_is_hardly_noticed(postgres_url: str, ledger: Ledger, stack: AsyncExitStack) -> None:
    """Rule 39: with the defaults at most two transactions a second. They are counted on the wire, because the server's
    own counters are up to ten seconds late, and over several spans, because a span may fall into the first looks."""
    app = make_program(postgres_url, ledger)
    stack.push_async_callback(app.close)
    await app.migrate()
    target = urlsplit(postgres_url)
    async with Proxy(str(target.hostname), target.port or 0) as proxy, WorkerProcess(proxy.url(postgres_url), ledger):
        await (await app.start(app.workflows["quick"], 1)).result(timeout=PATIENCE)
        rates = [await _asked(proxy, 5)]
        while rates[-1] > 2 and len(rates) < 4:
            rates.append(await _asked(proxy, 5))
    assert rates[-1] <= 2, rates


async def _asked(proxy: Proxy, seconds: float) -> float:
    """Transactions a second, over a span."""
    before, began = proxy.transactions, time.monotonic()
    await asyncio.sleep(seconds)
    return (proxy.transactions - before) / (time.monotonic() - began)
