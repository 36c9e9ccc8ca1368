"""Steady work while somebody else holds a snapshot open, so that nothing dead can be cleaned away.

The speed of the last fifth of the time is compared to that of the first fifth, with the snapshot and without.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

import asyncpg

from bench.engines.base import Engine, Kind
from bench.probe import PROBE
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject

CONCURRENCY = 100


async def measure(subject: Subject) -> Figures:
    seconds = 20 if subject.quick else 600
    engine = await subject.fresh(0)
    holder = await asyncpg.connect(engine.url)
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await holder.fetchval("SELECT txid_current()")
    first, last = await _steady(engine, seconds)
    await holder.close()
    await engine.close()
    figures = {"first": first, "last": last, "kept": last / first}
    if not subject.quick:
        control = await subject.fresh(1)
        first, last = await _steady(control, seconds / 5)
        await control.close()
        figures["control"] = last / first
    return figures


async def _steady(engine: Engine, seconds: float) -> tuple[float, float]:
    """Keep a small backlog for so long: the runs per second of the first fifth and of the last."""
    kind: Kind = "steps" if "steps" in engine.kinds else "noop"
    PROBE.reset()
    chunk = max(50, engine.pace[kind] // 10)
    await engine.start_many(kind, chunk)
    async with engine.worker(CONCURRENCY):
        started = chunk
        begin = perf_counter_ns()
        end = begin + int(seconds * 1e9)
        while perf_counter_ns() < end:
            if started - len(PROBE.left) < chunk:
                await engine.start_many(kind, chunk)
                started += chunk
            await asyncio.sleep(0.01)
        fifth = (end - begin) // 5
        first = sum(1 for moment in PROBE.left if begin <= moment < begin + fifth)
        last = sum(1 for moment in PROBE.left if end - fifth <= moment < end)
    return first / fifth * 1e9, last / fifth * 1e9


SCENARIO = Scenario(
    name="snapshot",
    title="a snapshot held open elsewhere for ten minutes (quick: 20 s)",
    figures={
        "first": Figure("first fifth"),
        "last": Figure("last fifth"),
        "kept": Figure("last ÷ first", "×"),
        "control": Figure("two minutes without snapshot", "×"),
    },
    engines=("stepfast", "pgqueuer", "raw_coalesced"),
    quick_engines=("stepfast",),
    databases=2,
    timeout=3600,
    repeats=False,
    measure=measure,
    in_quick=False,
)
