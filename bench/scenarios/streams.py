"""Streams: how many items one worker sends in a second, and how soon a reader has an item."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from bench.engines.base import Engine
from bench.probe import ITEMS, TRICKLE
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, percentile, work_off

RUNS = 10
READERS = 1000


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await work_off(engine, "stream", 2, RUNS)
    count = max(RUNS, engine.pace["stream"] * (1 if subject.quick else 10))
    work = await work_off(engine, "stream", count, RUNS)
    delays = await _delays(engine, 1)
    figures = {"rate": work.rate * ITEMS, "p50": percentile(delays, 0.5) / 1e6, "p99": percentile(delays, 0.99) / 1e6}
    if subject.engine == "stepfast" and not subject.quick:
        many = await _delays(engine, READERS)
        figures |= {"many50": percentile(many, 0.5) / 1e6, "many99": percentile(many, 0.99) / 1e6}
    await engine.close()
    return figures


async def _delays(engine: Engine, readers: int) -> list[int]:
    """From the call that sends an item to so many readers, in nanoseconds."""
    delays: list[int] = []

    async def read(handle: object) -> None:
        async for sent in engine.follow(handle):
            delays.append(perf_counter_ns() - sent)

    async with engine.worker(RUNS):
        handle = await engine.start("trickle", 0)
        await asyncio.gather(*(read(handle) for _ in range(readers)))
    assert len(delays) == TRICKLE * readers, f"{len(delays)} items came"
    return delays


SCENARIO = Scenario(
    name="streams",
    title="items of streams: sent by one worker, and from the sender to a reader",
    figures={
        "rate": Figure("sent"),
        "p50": Figure("to a reader, p50", "ms", more_is_better=False),
        "p99": Figure("p99", "ms", more_is_better=False),
        "many50": Figure("to 1 000 readers, p50", "ms", more_is_better=False),
        "many99": Figure("p99 of 1 000", "ms", more_is_better=False),
    },
    engines=("stepfast", "dbos"),
    measure=measure,
)
