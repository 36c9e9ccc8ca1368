"""Machines that vanish at the worst moment: inside a transaction, or while the server is sending them a claim. The
server keeps believing in such a connection for hours; what it holds must move on all the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.faults.storm import Storm

LEASE = 2.0
SOON = LEASE + 28.0
"""The lease, a sweep, and patience with a slow machine. Without help it would be hours."""


async def test_a_process_that_stops_inside_a_flush_does_not_keep_its_runs(postgres_url: str, tmp_path: Path) -> None:
    async with Storm(postgres_url, tmp_path / "ledger", lease=LEASE) as storm:
        [victim] = await storm.launch_ready(change="freeze_inside_flush")
        stopping = asyncio.create_task(storm.until_stopped(victim))
        run = await storm.app.start("second_attempt", 0.0)  # its failed attempt is journalled with several statements
        storm.acknowledge(run, "second_attempt")
        await stopping
        await storm.launch_ready()
        began = time.monotonic()
        await run.result(timeout=60)
        assert time.monotonic() - began < SOON
        storm.thaw(victim)
        await storm.verdict()


async def test_a_process_that_stops_while_it_is_sent_a_claim_does_not_keep_its_runs(
    postgres_url: str, tmp_path: Path
) -> None:
    async with Storm(postgres_url, tmp_path / "ledger", lease=LEASE) as storm:
        [victim] = await storm.launch_ready(change="freeze_inside_claim")
        runs = await storm.app.start_many("large", [{"text": "x" * 1_000_000}] * 20)
        for run in runs:
            storm.acknowledge(run, "large")
        await storm.until_stopped(victim)
        await storm.launch_ready()
        began = time.monotonic()
        for run in runs:
            await run.result(timeout=60)
        assert time.monotonic() - began < SOON
        storm.thaw(victim)
        await storm.verdict()
