"""A timed-out attempt whose thread comes back. Its late write must match nothing, and must not hurt the next attempt:
also when both are on the same worker, and even when one flush carries the words of both."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from stepfast import Backoff, Stepfast, SyncContext
from stepfast.engine.host import Timer, current_execution
from stepfast.settings import Settings
from stepfast.worker.threads import Clockwork

RUNS = 60
SETTINGS = Settings(lease=6, poll_interval=0.1, sweep_interval=0.5)
QUICK = Backoff(base=0.01, factor=1, max=0.01, jitter=False)
TIMEOUT = 2.0


class FirstAttempts(Clockwork):
    """A clock by which only first attempts time out. A machine with much to do would be too slow for some of the second
    ones, and it is them that must come through."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0

    def alarm(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        if seconds == TIMEOUT:
            self._begun += 1
            seconds = TIMEOUT if self._begun <= RUNS else 3600
        return super().alarm(seconds, function, *args)


class Stage:
    """The first attempt stays in its first step until the second attempt is in the same step; both return at about the
    same time, ``spread`` seconds apart."""

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self.second_is_there = [threading.Event() for _ in range(RUNS)]
        self.acts: list[tuple[int, int, int]] = []

    def work(self, number: int, position: int, claim: int) -> str:
        self.acts.append((number, position, claim))
        if position == 0 and claim == 1:
            self.second_is_there[number].wait(30)
        elif position == 0:
            self.second_is_there[number].set()
            time.sleep(random.uniform(0, self.spread))
        return f"claim {claim}"


@pytest.mark.parametrize("spread", [0, 0.01], ids=["late write alone", "late write in the same flush"])
async def test_a_thread_that_comes_back_late_writes_nothing_and_harms_nobody(postgres_url: str, spread: float) -> None:
    stage = Stage(spread)
    app = Stepfast(postgres_url, settings=SETTINGS)
    app._clock = FirstAttempts()

    @app.workflow(timeout=TIMEOUT, max_attempts=5, backoff=QUICK)
    def slow(ctx: SyncContext, number: int) -> list[str]:
        execution = current_execution.get()
        assert execution is not None
        return [ctx.step(f"step {p}", stage.work, number, p, execution.claim) for p in range(3)]

    async with app, app.worker(concurrency=RUNS):
        runs = await app.start_many(slow, range(RUNS))
        results = [await run.result(timeout=60) for run in runs]

    connection = await asyncpg.connect(postgres_url)
    accepted = await connection.fetch("SELECT run_id, position FROM stepfast.steps WHERE claim = 1")
    claims = await connection.fetchval("SELECT max(claim) FROM stepfast.runs")
    await connection.close()
    assert not accepted, f"late writes of the timed-out attempt accepted in {len(accepted)} of {RUNS} runs"
    assert claims == 2, "the late write took the next attempt down with it"
    assert results == [["claim 2"] * 3] * RUNS
    assert len(stage.acts) == RUNS * 4
