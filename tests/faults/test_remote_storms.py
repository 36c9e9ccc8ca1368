"""Storms over remote steps. One of a second is part of `make test`; the long ones are for ``make faults``:
FAULT_SECONDS each (60 unless told)."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import remote_storm
from tests.faults.remote_storm import NODE, OURS, PYTHON
from tests.remote.storm import Storm
from tests.support.mariadb import PrivateMariaDb
from tests.support.postgres import PrivatePostgres

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))

long = pytest.mark.timeout(SECONDS * 2 + 300)


@dataclass
class Home:
    """Where an application is, and where its remote steps go."""

    url: str
    transport: str | None
    makers: tuple[str, ...]
    """Who serves them: the published package for Python needs another driver for MariaDB, so it is not there."""
    restart: Callable[[], None]
    """Restart the database that they go over, sometimes by a crash."""


@pytest.fixture(params=["postgres", "postgres and mariadb", "sqlite and mariadb"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """The storm rages once per place."""
    if request.param == "postgres":
        server: PrivatePostgres = request.getfixturevalue("durable_server")

        def restart() -> None:
            if random.random() < 0.6:
                server.kill9()
            server.restart()

        yield Home(request.getfixturevalue("durable_url"), None, (OURS, NODE, PYTHON), restart)
        return
    if request.param.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'storm.db'}"
    else:
        url = str(request.getfixturevalue("postgres_url"))
    mariadb = PrivateMariaDb(durable=True).start()

    def restart_mariadb() -> None:
        mariadb.stop(random.choice((signal.SIGKILL, signal.SIGTERM)))
        mariadb.start()

    yield Home(url, mariadb.create_database(), (OURS, NODE), restart_mariadb)
    mariadb.close()


async def test_a_short_one_kills_workers_on_both_sides(postgres_url: str, tmp_path: Path) -> None:
    await remote_storm.a_kill_each(postgres_url, tmp_path / "ledger")


@long
@pytest.mark.slow
async def test_workers_on_both_sides_are_killed(home: Home, tmp_path: Path) -> None:
    await remote_storm.kills(home.url, tmp_path / "ledger", SECONDS, home.makers, home.transport)


@long
@pytest.mark.slow
async def test_the_network_resets_stalls_and_loses_replies(home: Home, tmp_path: Path) -> None:
    await remote_storm.bad_network(home.url, tmp_path / "ledger", SECONDS, home.makers, home.transport)


@long
@pytest.mark.slow
async def test_the_database_of_the_transport_is_restarted(home: Home, tmp_path: Path) -> None:
    await remote_storm.restarts(home.url, tmp_path / "ledger", SECONDS, home.makers, home.restart, home.transport)


@long
@pytest.mark.slow
@pytest.mark.empty
@pytest.mark.parametrize("database", ["postgres", "mariadb"])
async def test_every_task_is_served_once(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Only the side of those who serve."""
    storm = Storm(request.getfixturevalue(f"{database}_url"), tmp_path)
    await storm.rage(SECONDS, workers=3)
    print(f"{storm.sent} steps, {storm.kills} kills, {storm.breaks} times all connections ended")
