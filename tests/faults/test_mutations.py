"""The checks can fail: each scene passes with the product as it is, and goes red with one of its rules taken out.

The rules are taken out in the worker processes of the test (``changes.py``), never in the product.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.faults.bystanders import Sender
from tests.faults.storm import Storm, meanwhile
from tests.judge.runs import check
from tests.support.postgres import PostgresServer, PrivatePostgres
from tests.support.proxy import Proxy

pytestmark = pytest.mark.thorough

SOON = 10.0
INSIDE = 3.0
"""Seconds that a booking stays inside its transaction: enough to stop its worker there, on a busy machine too."""
RULE = pytest.mark.parametrize("kept", [True, False], ids=["with the rule", "without it"])


def changes(kept: bool, rule: str, *others: str) -> str:
    return " ".join([*others, *([] if kept else [f"without_{rule}"])])


async def judged(storm: Storm, kept: bool, *violations: str) -> None:
    """With the rule nothing is wrong, and without it at least these are found."""
    kinds = {violation.kind for violation in check(await storm.evidence())}
    assert kinds == set() if kept else {*violations} <= kinds, kinds


@RULE
async def test_the_fence(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker is frozen in the middle of its steps; when it comes back, its runs are somebody else's."""
    async with Storm(scene_url, tmp_path / "ledger", lease=2.5) as storm:
        change = changes(kept, "fence", "hear_late")  # so that nothing but the fence stands in the way
        [victim] = await storm.launch_ready(change=change)
        await storm.start_some("slow_chain", 20, 0.7)
        await storm.acted("slow_chain", 20)
        storm.stop(victim)  # before the other comes up: on a slow machine the chains would have ended by then
        await storm.launch_ready(change=change)
        await storm.taken_over(20)
        storm.thaw(victim)  # the new owner is in the same step, and will be for a while
        await storm.settle()
        await judged(storm, kept, "late write")


@RULE
async def test_the_row_lock(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """Several workers are woken at once and look at the same rows."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(4, change=changes(kept, "row_lock", "claim_slowly"))
        for _ in range(5):
            await storm.start_some("simple", 40)
            await asyncio.sleep(0.1)
        await storm.settle(10)
        await judged(storm, kept, "claimed twice")


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
        await judged(storm, kept, "late write")


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


# -- waiting and composing -------------------------------------------------------------------------------------------


@RULE
async def test_the_wakes_of_signals(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """A signal comes between a run's look into its mailbox and its "now waiting"; else it would be slept over."""
    async with Storm(scene_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(change=changes(kept, "wakes", "signal_before_waiting"))
        runs = await storm.start_some("listening", 5)
        if kept:
            for run in runs:
                await run.result(timeout=SOON)
            await storm.verdict()
        else:
            with pytest.raises(TimeoutError):
                await runs[0].result(timeout=3)
            assert await runs[0].status() == "waiting"


@RULE
async def test_the_end_of_a_child_and_its_mail_are_one_commit(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker dies as soon as it has ended a child. If its parent was to be told later, nobody ever tells it."""
    async with Storm(scene_url, tmp_path / "ledger", lease=1.5) as storm:
        await storm.launch_ready(change=changes(kept, "joint_ends", "die_after_the_end_of_a_child"))
        async with meanwhile(storm.supervise()):
            [run] = await storm.start_some("lone_parent", 1, 0.3)
            if kept:
                await run.result(timeout=SOON)
                await storm.verdict()
            else:
                with pytest.raises(TimeoutError):
                    await run.result(timeout=4)
                assert await run.status() == "waiting"
        storm.check_workers()
    assert storm.deaths, "nobody died: not a scene"


@RULE
async def test_a_signal_and_its_record_are_one_commit(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker dies while it takes a signal."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=1.5) as storm:
        await storm.launch_ready(change=changes(kept, "joint_take", "die_while_taking"))
        async with meanwhile(storm.supervise()):
            [run] = await storm.start_some("listening", 1)
            await Sender(storm.app, storm.ledger, "sender", within=0).send(run.id, "word")
            await storm.taken_over(1)
            await storm.settle()
        storm.check_workers()
        await judged(storm, kept, "signal lost")


@RULE
async def test_the_fence_of_transactions(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker is frozen inside transactions; when it comes back, its runs are somebody else's, who is inside the same
    transactions."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=1.5) as storm:
        change = changes(kept, "transaction_fence", "hear_late")
        [victim] = await storm.launch_ready(change=change)
        await storm.start_some("slow_booking", 4, INSIDE)
        await storm.acted("slow_booking", 4)
        inside_until = time.monotonic() + INSIDE
        storm.stop(victim)
        [owner] = await storm.launch_ready()
        await storm.acted("slow_booking", 8)
        storm.stop(owner)  # inside the transactions, until the late one has written or was refused
        await asyncio.sleep(max(inside_until - time.monotonic(), 0))  # the late one writes at once, before it hears
        storm.thaw(victim)
        async with asyncio.timeout(SOON):
            while "declared dead" not in victim.log and not await storm.database.fetch("SELECT 1 FROM [steps]"):
                await asyncio.sleep(0.02)
        storm.thaw(owner)
        await storm.settle()
        await judged(storm, kept, "late write")


@RULE
async def test_a_row_and_its_record_are_one_commit(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    """A worker dies when it has called the function of a transaction."""
    async with Storm(postgres_url, tmp_path / "ledger", lease=1.5) as storm:
        await storm.launch_ready(change=changes(kept, "joint_row", "die_before_recording"))
        async with meanwhile(storm.supervise()):
            await storm.start_some("slow_booking", 4, 0.02)
            await storm.settle()
        storm.check_workers()
        await judged(storm, kept, "row twice", "row without a record")
    assert storm.deaths, "nobody died: not a scene"


@RULE
async def test_no_child_of_the_cancelled(scene_url: str, tmp_path: Path, kept: bool) -> None:
    """A run is cancelled when it has decided to start a child, and before that is on record."""
    async with Storm(scene_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(change=changes(kept, "bar", "cancel_before_start"))
        await storm.start_some("lone_parent", 3, 0.1)
        await storm.settle()
        await judged(storm, kept, "child of the cancelled")


@RULE
async def test_the_order_of_undos(postgres_url: str, tmp_path: Path, kept: bool) -> None:
    async with Storm(postgres_url, tmp_path / "ledger", lease=20) as storm:
        await storm.launch_ready(change=changes(kept, "reverse"))
        await storm.start_some("saga_def", 3)
        await storm.settle()
        await judged(storm, kept, "undone out of order")
