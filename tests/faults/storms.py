"""The storms themselves, each for as many seconds as it is told. The short ones are in ``make test``, the long ones in
``make faults``."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncmy

from tests.faults import composing
from tests.faults.storm import TOTALS, Process, Storm, every, meanwhile
from tests.support.false_time import off_by
from tests.support.mariadb import PrivateMariaDb
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy
from tests.support.small_disk import SmallDisk
from tests.support.standby import Pair

LEASE = 2.0
Server = PrivatePostgres | PrivateMariaDb
OnServer = Callable[[Server, str, Path, float], Awaitable[None]]
"""A storm over a server that may be crashed: its database, a folder for the ledger, and for how many seconds."""
LONG_LEASE = 60.0
"""Longer than any trouble that is made: then nothing is excused, and every act must be accounted for as if nothing had
happened."""


async def kills(url: str, folder: Path, seconds: float) -> None:
    """SIGKILL of random workers, and of processes that start runs."""
    async with Storm(url, folder, lease=LEASE) as storm:
        await storm.launch_ready(4)
        await storm.launch_ready(program="start")
        await storm.launch_ready(program="send")

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch()

        async with meanwhile(every(1.0, kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        await storm.verdict(runs=storm.enough)


async def patience(url: str, folder: Path, seconds: float, *, kills: int = 8, workers: int = 3, runs: int = 40) -> None:
    """Runs that do little but wait are woken by what they do not wait for, and workers are killed while they do: at
    least so many, however slow the machine. As users have it: what waits for a moment stays in memory, as slots are
    free, and a few losses are a dead letter."""
    async with Storm(url, folder, lease=LEASE, inline_wait=2.0, max_losses=5) as storm:
        await storm.launch_ready(workers, concurrency=100)
        workflows = random.choices(list(composing.PATIENT), list(composing.PATIENT.values()), k=runs)
        for workflow, count in Counter(workflows).items():
            await storm.start_some(workflow, count)
        async with meanwhile(storm.keep_waking()):
            until, killed = time.monotonic() + seconds, 0
            while time.monotonic() < until or killed < kills:
                await asyncio.sleep(random.uniform(0.1, 0.3))
                storm.kill(random.choice(storm.workers))
                killed += 1
                await storm.launch_ready(concurrency=100)
        await storm.verdict(runs=runs)


async def hostile(url: str, folder: Path, seconds: float) -> None:
    """Settings that nobody would choose: every wait gives the slot back at once, a lease is a second, few slots, and no
    wake-up arrives. Meanwhile workers are killed."""
    hard: dict[str, Any] = {"inline_wait": 0, "poll_interval": 0.2, "min_poll_interval": 0.05, "history_records": 2}
    async with Storm(url, folder, lease=1.0, change="deaf", **hard) as storm:
        await storm.launch_ready(3, concurrency=8)

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch(concurrency=8)

        async with meanwhile(every(1.5, kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        await storm.verdict(runs=storm.enough)


async def zombies(url: str, folder: Path, seconds: float) -> None:
    """Workers are frozen past their lease, come back, and would like to go on."""
    async with Storm(url, folder, lease=LEASE) as storm:
        await storm.launch_ready(4)
        async with meanwhile(freeze_now_and_then(storm), *storm.bystanders()):
            await storm.keep_starting(seconds)
        evidence = await storm.verdict(runs=storm.enough)
        # On SQLite a worker is often frozen between two turns at the lock, with nothing in hand: a short storm may pass
        # there without a loss.
        if url.startswith("postgresql") or seconds > 20:
            assert any(move.losses > move.old_losses for move in evidence.moves), "no lease was lost: not a storm"


async def freeze_now_and_then(storm: Storm, pause: float = 0.7) -> None:
    """Some are always awake, to take over."""

    async def freeze_one() -> None:
        awake = [worker for worker in storm.workers if not worker.frozen and worker.alive]
        if len(awake) > 2:
            freezing.create_task(_freeze(random.choice(awake)))

    async def _freeze(worker: Process) -> None:
        await storm.freeze(worker, random.uniform(1.2, 2) * LEASE)

    async with asyncio.TaskGroup() as freezing:
        await every(pause, freeze_one)


async def crashes(server: Server, url: str, folder: Path, seconds: float) -> None:
    """The server is restarted, and crashes."""
    async with Storm(url, folder, lease=LONG_LEASE, strict=True, cut=True) as storm:
        await storm.launch_ready(3)
        await storm.launch_ready(program="start")

        async def restart() -> None:
            await asyncio.to_thread(_restart, server, random.random() < 0.6)

        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(until_over(seconds, every(1.5, restart)), storm.keep_starting(seconds))
        server.start()
        await storm.verdict(runs=storm.enough)


def _restart(server: Server, crash: bool) -> None:
    if crash:
        server.kill9()
    server.restart()
    TOTALS["restarts"] += 1


async def until_over(seconds: float, job: Coroutine[Any, Any, None]) -> None:
    """Not cancelled in the middle of a restart: it is waited for."""
    task = asyncio.ensure_future(job)
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def terminations(server: Server, url: str, folder: Path, seconds: float) -> None:
    """An administrator, or a failing server, ends sessions one by one or all at once."""
    async with Storm(url, folder, lease=LONG_LEASE, strict=True, cut=True) as storm:
        await storm.launch_ready(3)
        database = url.rpartition("/")[2]

        async def terminate() -> None:
            share = random.choice((0.1, 0.5, 1.0))
            TOTALS["terminated"] += await asyncio.to_thread(_end_sessions, server, database, share)

        async with meanwhile(every(0.2, terminate), *storm.bystanders()):
            await storm.keep_starting(seconds)
        await storm.verdict(runs=storm.enough)


def _end_sessions(server: Server, database: str, share: float) -> int:
    """End this share of the sessions; how many."""
    if isinstance(server, PrivatePostgres):
        victims = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            f"AND datname = '{database}' AND random() < {share}"
        )
        return len(server.execute(victims))
    listed = f"SELECT id FROM information_schema.processlist WHERE db = '{database}' AND rand() < {share}"
    sessions = [row[0] for row in server.execute(listed)]
    for session in sessions:
        with contextlib.suppress(asyncmy.errors.MySQLError):  # it has ended by itself
            server.execute(f"KILL {session}")
    return len(sessions)


def _proxy(server: Server) -> Proxy:
    return Proxy("127.0.0.1", server.port, protocol="postgres" if isinstance(server, PrivatePostgres) else "mariadb")


async def bad_network(server: Server, url: str, folder: Path, seconds: float) -> None:
    """Connections are reset, nothing moves for a while, and replies are lost after the work was done."""
    async with _proxy(server) as proxy:
        async with Storm(url, folder, lease=LONG_LEASE, strict=True, cut=True, through=proxy.url(url)) as storm:
            await storm.launch_ready(3)
            faults = (every(1.2, lambda: cut(proxy)), every(1.5, lambda: stall(proxy, 1)), lose_replies(proxy))
            async with meanwhile(*faults, *storm.bystanders()):
                await storm.keep_starting(seconds)
            proxy.resume()
            await storm.verdict(runs=storm.enough)


def cut(proxy: Proxy) -> None:
    """Reset every connection."""
    proxy.cut()
    TOTALS["resets"] += 1


async def stall(proxy: Proxy, longest: float) -> None:
    """Nothing moves for a while."""
    proxy.stall()
    try:
        await asyncio.sleep(random.uniform(0.1, longest))
    finally:
        proxy.resume()
    TOTALS["stalls"] += 1


async def lose_replies(proxy: Proxy) -> None:
    """Replies of every kind, one after the other: to a commit, a claim or heartbeat, a flush, a start."""
    while True:
        for kind in (b"COMMIT", b"UPDATE", b"SELECT", b"INSERT") if proxy.knows_all_tags else (b"COMMIT",):
            order = proxy.swallow(lambda tag, kind=kind: tag.startswith(kind))  # type: ignore[misc]
            try:
                async with asyncio.timeout(1):
                    await order.happened.wait()
                TOTALS["swallowed commits"] += 1
            except TimeoutError:
                pass
            await asyncio.sleep(0.05)


async def everything(server: Server, url: str, folder: Path, seconds: float) -> None:
    """All of it at once."""
    async with _proxy(server) as proxy:
        async with Storm(url, folder, lease=LEASE, cut=True, through=proxy.url(url)) as storm:
            await storm.launch_ready(4)

            def kill_one() -> None:
                storm.kill(random.choice(storm.workers))
                storm.launch()

            async def restart() -> None:
                async with storm.outage():
                    await asyncio.to_thread(_restart, server, random.random() < 0.5)

            async def stand_still() -> None:
                async with storm.outage():
                    await stall(proxy, 3 * LEASE)

            faults = (
                every(3, kill_one), every(4, lambda: cut(proxy)), every(8, stand_still), freeze_now_and_then(storm, 3),
                lose_replies(proxy),
            )  # fmt: skip
            async with meanwhile(*faults, *storm.bystanders()):
                await asyncio.gather(until_over(seconds, every(7, restart)), storm.keep_starting(seconds))
            server.start()
            proxy.resume()
            await storm.verdict(runs=storm.enough)


async def failovers(pair: Pair, url: str, folder: Path, seconds: float) -> None:
    """The primary dies under load, again and again, and its synchronous standby takes over. Everybody knows both by one
    URL."""
    async with Storm(url, folder, lease=LONG_LEASE, strict=True, cut=True) as storm:
        await storm.launch_ready(3)
        await storm.launch_ready(program="start")
        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(fail_over_again_and_again(pair, seconds), storm.keep_starting(seconds))
        evidence = await storm.verdict(runs=storm.enough)
        tell_of_pauses(pair.deaths, [write.at for write in evidence.writes])


async def fail_over_again_and_again(pair: Pair, seconds: float) -> None:
    """What is begun is brought to its end, so that somebody takes writes."""
    until = time.monotonic() + seconds
    while True:
        await asyncio.sleep(random.uniform(0.5, 1.5))
        await asyncio.to_thread(pair.fail_over)
        TOTALS["failovers"] += 1
        if time.monotonic() > until:
            return
        await asyncio.to_thread(pair.renew)


def tell_of_pauses(deaths: list[int], writes: list[int]) -> None:
    """How long no record was written after each death, by the time of the writes themselves."""
    pauses = [min((at for at in writes if at > death), default=death) - death for death in deaths]
    TOTALS["ms of failovers"] += sum(pauses) // 1000
    print(f"{len(deaths)} failovers; no record for {', '.join(f'{pause / 1e6:.2f}' for pause in pauses)} s after each")


async def full_disks(
    url: str, folder: Path, seconds: float, disk: SmallDisk, server: PrivatePostgres | None = None
) -> None:
    """The disk of the database is full for a while, again and again. A server that ends because of it is started when
    there is space again."""
    async with Storm(url, folder, lease=LONG_LEASE, strict=True, cut=True) as storm:
        await storm.launch_ready(3)

        async def fill_it_up() -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await asyncio.sleep(random.uniform(0.5, 1.5))
                await asyncio.to_thread(disk.fill)
                await asyncio.sleep(random.uniform(0.5, 1.5))
                disk.free()
                TOTALS["disks filled"] += 1
                if server is not None:
                    await asyncio.to_thread(_start_again, server)

        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(fill_it_up(), storm.keep_starting(seconds))
        await storm.verdict(runs=storm.enough)


def _start_again(server: PrivatePostgres) -> None:
    TOTALS["restarts"] += not server.running
    server.start()


async def wrong_clocks(url: str, folder: Path, seconds: float) -> None:
    """Two workers are an hour ahead and an hour behind, and some are killed meanwhile: who takes over may have any of
    these clocks."""
    clocks = [off_by(3600), off_by(-3600), None]
    async with Storm(url, folder, lease=LEASE) as storm:
        for clock in clocks:
            await storm.launch_ready(1, environment=clock)

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch(environment=random.choice(clocks))

        async with meanwhile(every(1.5, kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        await storm.verdict(runs=storm.enough)


async def two_versions(url: str, folder: Path, seconds: float, old: Path) -> None:
    """Workers of an earlier commit beside those of today, on the same tables: each takes over what the other leaves."""
    theirs: dict[str, Any] = {"environment": {"PYTHONPATH": str(old / "src")}, "code": old}
    async with Storm(url, folder, lease=LEASE) as storm:
        await storm.launch_ready(2)
        await storm.launch_ready(2, **theirs)

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch(**random.choice(({}, theirs)))

        async with meanwhile(every(1.5, kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        await storm.verdict(runs=storm.enough)
