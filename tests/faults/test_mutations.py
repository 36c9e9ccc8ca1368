"""The checks can fail: each scene passes with the product as it is, and goes red with one of its rules taken out.

The rules are taken out in the worker processes of the test (``changes.py``), never in the product.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.checker import check
from tests.faults.storm import Storm
from tests.support.postgres import PostgresServer, PrivatePostgres
from tests.support.proxy import Proxy

SOON = 10.0
RULE = pytest.mark.parametrize("kept", [True, False], ids=["with the rule", "without it"])


def changes(kept: bool, rule: str, *others: str) -> str:
    return " ".join([*others, *([] if kept else [f"without_{rule}"])])


@RULE
async def test_the_fence(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker is frozen in the middle of its steps; when it comes back, its runs are somebody else's."""
    async with Storm(scene_url, tmp_path / "ledger", lease=2.5) as storm:
        change = changes(kept, "fence", "hear_late")  # so that nothing but the fence stands in the way
        [victim] = await storm.launch_ready(change=change)
        await storm.start_some("slow_chain", 20, 0.7)
        await storm.acted("slow_chain", 20)
        await storm.launch_ready(change=change)
        storm.stop(victim)
        await storm.taken_over(20)
        storm.thaw(victim)  # the new owner is in the same step, and will be for a while
        await storm.settle()
        kinds = {violation.kind for violation in check(await storm.evidence())}
    assert kinds == set() if kept else "late write" in kinds, kinds


@RULE
async def test_the_row_lock(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """Several workers are woken at once and look at the same rows."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(4, change=changes(kept, "row_lock", "claim_slowly"))
        for _ in range(5):
            await storm.start_some("simple", 40)
            await asyncio.sleep(0.1)
        await storm.settle(10)
        kinds = {violation.kind for violation in check(await storm.evidence())}
    assert kinds == set() if kept else "claimed twice" in kinds, kinds


@RULE
@pytest.mark.slow
async def test_the_row_lock_of_a_flush(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """A process stops between the fence and the writes of a flush, for longer than its lease. While it holds the rows,
    nobody may take the run; without the lock somebody does, and the writes come all the same."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=2) as storm:
        change = changes(kept, "row_lock", "freeze_inside_flush", "trust_every_connection")
        [victim] = await storm.launch_ready(change=change)
        await storm.start_some("slow_to_fail", 1, 0.8)
        await storm.until_stopped(victim)
        await storm.launch_ready(change="trust_every_connection")
        await (asyncio.sleep(4) if kept else storm.taken_over(1))
        storm.thaw(victim)
        await storm.settle()
        kinds = {violation.kind for violation in check(await storm.evidence())}
    assert kinds == set() if kept else "late write" in kinds, kinds


@pytest.mark.slow
@pytest.mark.parametrize("place", ["flush", "claim"])
async def test_connections_that_the_server_believes_in_for_ever(postgres_url: str, tmp_path: Path, place: str) -> None:
    """What test_vanished.py is about: without the settings of our connections, the runs are stuck."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=2) as storm:
        [victim] = await storm.launch_ready(change=f"freeze_inside_{place} trust_every_connection")
        runs = await storm.app.start_many("large", [{"text": "x" * 1_000_000}] * 20) if place == "claim" else []
        runs = runs or await storm.start_some("second_attempt", 1)
        await storm.until_stopped(victim)
        await storm.launch_ready()
        with pytest.raises(TimeoutError):
            await runs[0].result(timeout=10)


@RULE
async def test_the_wakes(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """Something happens to a run between its look and its "now waiting"; else it would wait for a minute."""
    async with Storm(scene_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(change=changes(kept, "wakes"))
        [run] = await storm.start_some("woken", 1)
        await storm.acted("woken", 1)
        if kept:
            await run.result(timeout=SOON)
            await storm.verdict()
        else:
            with pytest.raises(TimeoutError):
                await run.result(timeout=3)
            assert await run.status() == "waiting"


@RULE
async def test_the_claim_token(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """The reply to a claim is lost. Heartbeats would find the runs too, but only after a while."""
    assert isinstance(postgres_server, PrivatePostgres)
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        async with Storm(postgres_url, tmp_path / "ledger", lease=60) as storm:
            await storm.launch_ready(change=changes(kept, "token"), url=proxy.url(postgres_url))
            lost = proxy.swallow(lambda tag: tag == b"UPDATE 7")
            runs = await storm.start_some("simple", 7)
            await asyncio.wait_for(lost.happened.wait(), SOON)
            if kept:
                for run in runs:
                    await run.result(timeout=SOON)
                evidence = await storm.verdict()
                assert {run.claim for run in evidence.runs} == {1}
            else:
                with pytest.raises(TimeoutError):
                    await runs[0].result(timeout=3)
