"""Crashes that hit many runs at once: the culprit is found, and nobody else pays for it for long (rule 52).

Times are compared with what one crash costs on the same machine, never with a clock.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stepfast import RunFailed
from stepfast.settings import Settings
from tests.support.engine import eventually
from tests.support.processes import Ledger, WorkerProcess
from tests.support.worker_program import make_app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE = 3.0
TIMES: dict[str, Any] = {"lease": LEASE, "sweep_interval": 0.5, "poll_interval": 0.2}
LONG = 120.0
"""Seconds after which a scene that does not come to its end is given up."""


class Service:
    """An application, and the one worker process that serves it, started anew whenever it has died."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.ledger = Ledger(folder)
        self.app = make_app(url, self.ledger, Settings(**TIMES))
        self.deaths: list[float] = []
        self._process: WorkerProcess | None = None

    async def keep_alive(self) -> None:
        """As a supervisor does."""
        try:
            while True:
                process = self._process = WorkerProcess(self.url, self.ledger, settings=TIMES).launch()
                await eventually(lambda process=process: not process.running, LONG)  # type: ignore[misc]
                self.deaths.append(time.monotonic())
        finally:
            if self._process is not None:
                self._process.kill()

    async def kill(self) -> None:
        assert self._process is not None
        before = len(self.deaths)
        self._process.signal(signal.SIGKILL)
        await eventually(lambda: len(self.deaths) > before, LONG)

    async def start(self, count: int, **plan: Any) -> list[Any]:
        plans = [{"name": f"run{n}", "n": 3, "seconds": 0.8, **plan} for n in range(count)]
        return await self.app.start_many(self.app.workflows["stroll"], plans)

    async def at_work(self, paces: int) -> None:
        await self.ledger.seen("pace", times=paces, timeout=LONG)


async def play(url: str, folder: Path, scene: Callable[[Service], Awaitable[float]]) -> float:
    """Seconds from the last death of the worker to the end of all the innocent. Another worker, which serves nothing
    here, is there to find the dead."""
    service = Service(url, folder)
    async with service.app, service.app.worker(queues=["nothing here"]):
        keeper = asyncio.create_task(service.keep_alive())
        try:
            return await scene(service)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


def killed(times: int, count: int) -> Callable[[Service], Awaitable[float]]:
    """The worker is killed from outside, each time as soon as it works on all of them."""

    async def scene(service: Service) -> float:
        runs = await service.start(count)
        for time_ in range(1, times + 1):
            await service.at_work(count * time_)
            await service.kill()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), LONG)
        took = time.monotonic() - service.deaths[-1]
        assert [info.losses for info in await service.app.runs(limit=count)] == [0] * count
        return took

    return scene


async def with_a_culprit(service: Service) -> float:
    runs = await service.start(99)
    [culprit] = await service.start(1, name="culprit", culprit=True)
    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), LONG)
    ended = time.monotonic()
    with pytest.raises(RunFailed, match="workers_lost"):
        await culprit.result(timeout=LONG)
    assert len(service.deaths) == 5
    print(f"five crashes, one each {(service.deaths[-1] - began) / 5:.1f} s")
    return max(ended - service.deaths[-1], 0.0)  # all of them may have ended before the last crash


async def test_one_culprit_among_a_hundred(storm_url: str, tmp_path: Path) -> None:
    """It ends as a dead letter after five crashes; the others do not, and finish after the last of these within twice
    the time that a single crash costs."""
    once = await play(storm_url, tmp_path / "once", killed(1, 99))
    found = await play(storm_url, tmp_path / "found", with_a_culprit)
    print(f"one crash: {once:.1f} s; after the last of five: {found:.1f} s")
    assert found < 2 * once


async def test_two_kills_from_outside_cost_no_more_than_one(storm_url: str, tmp_path: Path) -> None:
    once = await play(storm_url, tmp_path / "once", killed(1, 40))
    twice = await play(storm_url, tmp_path / "twice", killed(2, 40))
    print(f"one kill: {once:.1f} s; two kills: {twice:.1f} s")
    assert twice < 1.5 * once
