"""Workers frozen past their lease that come back and try to go on (promise 6)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.faults.storm import Storm, every, meanwhile


async def test_workers_are_frozen_past_their_lease_and_come_back(storm_url: str, tmp_path: Path) -> None:
    async with Storm(storm_url, tmp_path / "ledger", lease=2) as storm:
        await storm.launch_ready(4)
        frozen: set[asyncio.Task[None]] = set()

        async def freeze_one() -> None:
            awake = [worker for worker in storm.workers if not worker.frozen]
            if len(awake) > 2:  # somebody must be there to take over
                frozen.add(asyncio.create_task(storm.freeze(random.choice(awake), random.uniform(2.5, 4))))

        async with meanwhile(every(0.7, freeze_one)):
            await storm.keep_starting(6)
        await asyncio.gather(*frozen)
        evidence = await storm.verdict(runs=100)
        assert any(move.losses > move.old_losses for move in evidence.moves), "no lease was lost: not a storm"
