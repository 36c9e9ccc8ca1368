"""A real failover to a standby that lagged behind: commits that were acknowledged are gone.

The standby gets its log through a proxy, which is stalled a while before the primary is killed. The worker lives on,
and its connections lead to the standby, promoted, from then on.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from typing import Any

import asyncpg
import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.engine import eventually
from tests.support.postgres import HOST, PrivatePostgres
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUNS, STEPS = 60, 12
LONG = 90.0


class Standby(PrivatePostgres):
    """A copy of another server, which it follows through a port."""

    def __init__(self, primary: PrivatePostgres, port: int) -> None:
        super().__init__(fsync=True)
        self._primary = primary
        self._source = port

    def _create_cluster(self) -> None:
        super()._create_cluster()
        command = ["rm", "-rf", str(self._data)]
        assert self._popen(command).wait() == 0
        copy = [
            self._bindir / "pg_basebackup", "-h", HOST, "-p", str(self._primary.port), "-U", "postgres",
            "-D", self._data, "-X", "stream", "-c", "fast",
        ]  # fmt: skip
        made = self._popen(copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = made.communicate()[0].decode(errors="replace")
        assert made.returncode == 0, output
        follow = f"primary_conninfo = 'host={HOST} port={self._source} user=postgres'\n"
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(follow)
        (self._data / "standby.signal").touch()


def make_app(url: str, calls: Counter[str]) -> Stepfast:
    app = Stepfast(url, settings=Settings(lease=20, poll=0.2, sweep=0.5, outage_backoff_max=0.3, moment=5))

    async def book(connection: Any, run: str, number: int) -> int:
        await connection.execute("INSERT INTO bookings VALUES ($1, $2)", run, number)
        return number

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        async def act(number: int) -> int:
            calls[f"{ctx.run_id} {number}"] += 1
            await asyncio.sleep(0.1)
            return number

        done = []
        for number in range(STEPS):
            call = ctx.transaction(book, ctx.run_id, number) if number % 4 == 3 else ctx.step(act, number)
            done.append(await call)
        return done

    return app


@pytest.mark.parametrize("lag", [0.0, 0.6])
async def test_no_history_has_holes_after_a_failover(lag: float) -> None:
    calls: Counter[str] = Counter()
    with PrivatePostgres(fsync=True, settings={"wal_level": "replica", "max_wal_senders": 5}) as primary:
        primary.create_database("app")
        primary.execute("CREATE TABLE bookings (run text, number integer)", "app")
        async with Proxy(HOST, primary.port, protocol="raw") as log, Proxy(HOST, primary.port) as front:
            standby = await asyncio.to_thread(Standby(primary, log.port).start)
            try:
                app = make_app(front.url(primary.url("app")), calls)
                async with app:
                    runs = await app.start_many(app.workflows["order"], [None] * RUNS)
                    await eventually(lambda: _caught_up(primary))
                    async with app.worker():
                        await eventually(lambda: len(calls) > RUNS * 2, LONG)
                        await _fail_over(primary, standby, log, front, lag)
                        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), LONG)
                assert results == [list(range(STEPS))] * RUNS
                await _audit(standby)
            finally:
                standby.stop()
    again = sum(count - 1 for count in calls.values())
    print(f"lag {lag:g} s: {again} of {RUNS * STEPS} steps called again")


def _caught_up(primary: PrivatePostgres) -> bool:
    sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
    return primary.execute(sql) == ["1"]


async def _fail_over(primary: PrivatePostgres, standby: Standby, log: Proxy, front: Proxy, lag: float) -> None:
    if lag:
        log.stall()
        await asyncio.sleep(lag)  # what is committed meanwhile is lost
    else:
        front.stall()
        await eventually(lambda: _caught_up(primary))
    front.refuse()
    front.cut()
    front.resume()
    await asyncio.to_thread(primary.kill9)
    log.refuse()
    log.cut()
    await asyncio.to_thread(standby.execute, "SELECT pg_promote()")
    front._target = (HOST, standby.port)
    front.refuse(False)


async def _audit(standby: Standby) -> None:
    connection = await asyncpg.connect(standby.url("app"))
    try:
        rows = await connection.fetch(
            "SELECT count(*), min(position), max(position) FROM stepfast.steps GROUP BY run_id"
        )
        assert {tuple(row) for row in rows} == {(STEPS, 0, STEPS - 1)}
        assert len(rows) == RUNS
        booked = await connection.fetch("SELECT run, number, count(*) FROM bookings GROUP BY run, number")
        assert {row["count"] for row in booked} == {1}
        assert len(booked) == RUNS * STEPS // 4
    finally:
        await connection.close()
