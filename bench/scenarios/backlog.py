"""How long a claim takes, and the question of an idle worker, when the tables hold a great deal that is not for it: a
million queued runs in 200 queues, 100 000 that wait, and 100 000 of a workflow that nobody here knows.

The list of queues, which counts all of them, is timed too: an operator asks for it just then."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import cast

import asyncpg

from bench.engines.stepfast import StepfastEngine
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject
from stepfast.model.ids import new_id
from stepfast.model.records import Lane, WorkerInfo
from stepfast.store import Store

LANE = Lane("noop", "noop", 0)
CLAIM = 100
SHARE_QUICK = 50
"""A quick run has a fiftieth of everything but the queues."""

FILL = (
    """INSERT INTO stepfast.runs (id, workflow, version, queue, status, place, format, input, seed, created_at)
       SELECT gen_random_uuid(), 'noop', 'v', 'q' || n % 200, 'queued', n, 1, '0', 'x', 0
       FROM generate_series(1, 1000000 / $1::integer) n""",
    """INSERT INTO stepfast.runs (id, workflow, version, queue, status, visible_at, waiting_for, format, input,
                                  seed, created_at)
       SELECT gen_random_uuid(), 'noop', 'v', 'noop', 'waiting', 4e12 + n, 'time', 1, '0', 'x', 0
       FROM generate_series(1, 100000 / $1::integer) n""",
    """INSERT INTO stepfast.runs (id, workflow, version, queue, status, place, format, input, seed, created_at)
       SELECT gen_random_uuid(), 'unknown', 'v', 'noop', 'queued', n, 1, '0', 'x', 0
       FROM generate_series(1, 100000 / $1::integer) n""",
)


async def measure(subject: Subject) -> Figures:
    engine = cast(StepfastEngine, await subject.fresh())
    store = await engine.app.store()
    worker = WorkerInfo(new_id(), "bench", 1, None, {"noop": "v"}, CLAIM, 3_600_000)
    await store.register(worker)
    rounds = 15 if subject.quick else 50
    figures = {f"{name}-empty": took for name, took in (await _times(engine, store, worker.id, rounds)).items()}
    await _fill(engine.url, SHARE_QUICK if subject.quick else 1)
    full = await _times(engine, store, worker.id, rounds)
    listed = await _listing(engine)
    await engine.close()
    return figures | {f"{name}-full": took for name, took in full.items()} | {"queues-full": listed}


async def _fill(url: str, share: int) -> None:
    side = await asyncpg.connect(url)
    for statement in FILL:
        await side.execute(statement, share)
    await side.execute("ANALYZE stepfast.runs")
    await side.close()


async def _times(engine: StepfastEngine, store: Store, worker: str, rounds: int) -> Figures:
    """Milliseconds, as medians: a claim of a hundred, and the question which lanes have something."""
    await engine.start_many("noop", (rounds + 5) * CLAIM)
    claims, ticks = list[float](), list[float]()
    for number in range(rounds + 5):
        begin = perf_counter()
        taken = await store.claim(worker, number + 1, [(LANE, 0)], {"noop": "v"}, CLAIM)
        claims.append((perf_counter() - begin) * 1000)
        assert len(taken) == CLAIM
        begin = perf_counter()
        await store.tick(worker, ["noop"], True)
        ticks.append((perf_counter() - begin) * 1000)
    return {"claim": median(claims[5:]), "tick": median(ticks[5:])}


async def _listing(engine: StepfastEngine) -> float:
    """Milliseconds of `app.queues()`, the median of five."""
    took = list[float]()
    for _ in range(5):
        begin = perf_counter()
        await engine.app.queues()
        took.append((perf_counter() - begin) * 1000)
    return median(took)


SCENARIO = Scenario(
    name="backlog",
    title="a claim of 100 runs, and the look for lanes, with and without a great deal that is not for this worker",
    figures={
        "claim-empty": Figure("claim, nothing else", "ms", more_is_better=False),
        "claim-full": Figure("claim, full tables", "ms", more_is_better=False),
        "tick-empty": Figure("look, nothing else", "ms", more_is_better=False),
        "tick-full": Figure("look, full tables", "ms", more_is_better=False),
        "queues-full": Figure("list of queues, full tables", "ms", more_is_better=False),
    },
    engines=("stepfast",),
    timeout=1800,
    quick_timeout=240,
    repeats=False,
    measure=measure,
    in_quick=False,
)
