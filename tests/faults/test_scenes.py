"""Single scenes with real processes: poison, a blocked event loop, everybody frozen at once, a server that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.storm import Storm, meanwhile
from tests.judge.evidence import Evidence
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy

pytestmark = pytest.mark.thorough


def losses(evidence: Evidence) -> int:
    return sum(move.losses > move.old_losses for move in evidence.moves)


async def test_a_run_that_kills_its_process_ends_as_a_dead_letter_and_takes_no_neighbour_with_it(
    scene_url: str, tmp_path: Path
) -> None:
    """Rule 5."""
    async with Storm(scene_url, tmp_path / "ledger", lease=2, max_losses=4) as storm:
        await storm.launch_ready(2)
        async with meanwhile(storm.supervise()):
            neighbours = await storm.start_some("long", 6, 2.0)
            await storm.acted("long", 6)
            [poison] = await storm.start_some("poison", 1, 0.05)
            await storm.settle()
        evidence = await storm.verdict()
    rows = {run.id: run for run in evidence.runs}
    assert (rows[poison.id].status, rows[poison.id].reason) == ("failed", "workers_lost")
    assert {rows[run.id].status for run in neighbours} == {"completed"}
    deaths = sum(act.run == poison.id and act.position == 1 for act in evidence.acts)
    # The first loss comes after a record, and counts as the first since it.
    assert deaths == 4


async def test_a_blocked_event_loop_costs_no_lease(scene_url: str, tmp_path: Path) -> None:
    """Rule 3. The loop is blocked for two leases, and somebody else is there who would take over."""
    async with Storm(scene_url, tmp_path / "ledger", lease=3, strict=True) as storm:
        await storm.launch_ready(1)
        await storm.start_some("block", 1, 6.0)
        await storm.start_some("slow_chain", 10, 0.3)
        await storm.launch_ready(1)
        await storm.acted("block", 1, position=1)
        await storm.start_some("chain", 10)
        await storm.verdict()


async def test_when_all_workers_were_frozen_nobody_takes_the_others_for_dead(scene_url: str, tmp_path: Path) -> None:
    """Rule 3: a worker reaps only after a whole lease of its own heartbeats."""
    async with Storm(scene_url, tmp_path / "ledger", lease=3) as storm:
        workers = await storm.launch_ready(3)
        await storm.start_some("long", 15, 6.0)
        await storm.acted("long", 15)
        await asyncio.gather(*(storm.freeze(worker, 4.5) for worker in workers))
        evidence = await storm.verdict()
    assert losses(evidence) == 0


async def test_connections_that_hang_for_longer_than_the_lease_cost_nothing(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    """A heartbeat that is not answered is sent again over a new connection, in time."""
    async with Storm(durable_url, tmp_path / "ledger", lease=6, strict=True) as storm:
        await storm.launch_ready(3)
        await storm.start_some("long", 15, 8.0)
        await storm.start_some("slow_chain", 15, 0.5)
        await storm.acted("long", 15)
        with frozen(backends(durable_server)):
            await asyncio.sleep(7.5)
        await storm.verdict()


async def test_a_server_that_hangs_for_longer_than_the_lease(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    """Every worker stops its handlers, because others may own its runs by now; nobody is taken for dead afterwards."""
    async with Storm(durable_url, tmp_path / "ledger", lease=4) as storm:
        workers = await storm.launch_ready(3)
        await storm.start_some("long", 15, 6.0)
        await storm.start_some("slow_chain", 15, 0.5)
        await storm.acted("long", 15)
        async with storm.outage():
            with frozen([durable_server.pid, *backends(durable_server)]):
                await asyncio.sleep(6.5)
        evidence = await storm.verdict()
        assert any("stopping its handlers" in worker.log for worker in workers)
    assert losses(evidence) == 0


def backends(server: PrivatePostgres) -> list[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return [int(pid) for pid in server.execute(sql)]


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_losses_count_since_the_last_new_record(scene_url: str, tmp_path: Path) -> None:
    """Rule 5: a run that records something between the deaths of its workers is no dead letter, however many die."""
    async with Storm(scene_url, tmp_path / "ledger", lease=2, max_losses=2) as storm:
        await storm.launch_ready(2)
        async with meanwhile(storm.supervise()):
            await storm.start_some("month", 1, 3.0)
            await storm.settle()
        evidence = await storm.verdict()
    assert losses(evidence) == 3


async def test_transactions_whose_commits_are_not_answered(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    """Rule 7: the commit came through, and nobody heard of it. There is one row all the same."""
    async with Proxy("127.0.0.1", durable_server.port) as proxy:
        async with Storm(
            durable_url, tmp_path / "ledger", lease=60, strict=True, cut=True, through=proxy.url(durable_url)
        ) as storm:
            await storm.launch_ready(2)
            await storm.start_some("booking", 20)
            lost = 0
            while lost < 10 and not await storm.all_ended():
                order = proxy.swallow(lambda tag: tag == b"COMMIT")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(order.happened.wait(), 1)
                    lost += 1
            evidence = await storm.verdict()
    assert lost > 3, "hardly a reply was lost: not a scene"
    assert len(evidence.rows) == 20 * 5
