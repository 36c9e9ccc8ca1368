"""The storms, each short and long. Two short ones are part of `make test`, beside the one over dags and the kills of
tests/worker; the others are part of `make test-all`. The long ones, of FAULT_SECONDS (60 unless told), are for
`make faults`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import storms

LONG = float(os.environ.get("FAULT_SECONDS", "60"))
SHORT = 2.0
LATER = pytest.param(LONG, marks=pytest.mark.slow, id="long")

pytestmark = pytest.mark.timeout(LONG * 2 + 300)
each = pytest.mark.parametrize("seconds", [pytest.param(SHORT, marks=pytest.mark.thorough, id="short"), LATER])


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> tuple[storms.Server, str]:
    """A server that may be crashed, and a database on it."""
    names = (
        ("durable_server", "durable_url") if request.param == "postgres" else ("durable_mariadb", "durable_mariadb_url")
    )
    return request.getfixturevalue(names[0]), request.getfixturevalue(names[1])


@each
async def test_workers_are_killed(storm_url: str, tmp_path: Path, seconds: float) -> None:
    await storms.kills(storm_url, tmp_path / "ledger", seconds)


@each
async def test_frozen_workers_come_back(storm_url: str, tmp_path: Path, seconds: float) -> None:
    # On SQLite a worker is often frozen between two turns at the lock, with nothing in hand: it takes longer there.
    least = 4 if storm_url.startswith("postgresql") else 8
    await storms.zombies(storm_url, tmp_path / "ledger", max(seconds, least))


@each
@pytest.mark.parametrize("storm", [storms.crashes, storms.terminations, storms.bad_network])
async def test_the_server_and_the_network_fail(
    server: tuple[storms.Server, str], tmp_path: Path, storm: storms.OnServer, seconds: float
) -> None:
    await storm(*server, tmp_path / "ledger", seconds)


@pytest.mark.slow
async def test_everything_at_once(server: tuple[storms.Server, str], tmp_path: Path) -> None:
    await storms.everything(*server, tmp_path / "ledger", LONG)


@pytest.mark.enough_on("sqlite")
@pytest.mark.parametrize("seconds", [SHORT, LATER])
async def test_hostile_settings(storm_url: str, tmp_path: Path, seconds: float) -> None:
    await storms.hostile(storm_url, tmp_path / "ledger", seconds)


@pytest.mark.enough_on("sqlite")
async def test_workers_are_killed_while_their_runs_wait(storm_url: str, tmp_path: Path) -> None:
    await storms.patience(storm_url, tmp_path / "ledger", 0, kills=8, workers=1, runs=12)


@pytest.mark.slow
async def test_workers_are_killed_for_long_while_their_runs_wait(storm_url: str, tmp_path: Path) -> None:
    await storms.patience(storm_url, tmp_path / "ledger", LONG, kills=40)
