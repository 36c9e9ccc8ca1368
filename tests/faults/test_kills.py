"""SIGKILL of random workers, and of processes that start runs, while hundreds of runs execute (promises 1 to 5, 8)."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.storm import Storm, every, meanwhile


async def test_workers_are_killed_at_random(storm_url: str, tmp_path: Path) -> None:
    async with Storm(storm_url, tmp_path / "ledger", lease=2) as storm:
        await storm.launch_ready(4)
        storm.launch("start")

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch()

        async with meanwhile(every(1.0, kill_one)):
            await storm.keep_starting(6)
        await storm.verdict(runs=100)
