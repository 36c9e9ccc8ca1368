"""Short storms: a few seconds each. Two of them are part of `make test`, beside the one over dags and the kills of
tests/worker; the others are part of `make test-all`. The long ones are in test_long_storms.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import storms
from tests.support.postgres import PrivatePostgres

SECONDS = 2.0


@pytest.mark.thorough
async def test_workers_are_killed(storm_url: str, tmp_path: Path) -> None:
    await storms.kills(storm_url, tmp_path / "ledger", SECONDS)


@pytest.mark.thorough
async def test_frozen_workers_come_back(storm_url: str, tmp_path: Path) -> None:
    # On SQLite a worker is often frozen between two turns at the lock, with nothing in hand: it takes longer there.
    await storms.zombies(storm_url, tmp_path / "ledger", 4 if storm_url.startswith("postgresql") else 8)


@pytest.mark.thorough
async def test_postgres_is_restarted_and_crashes(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    await storms.crashes(durable_server, durable_url, tmp_path / "ledger", SECONDS)


@pytest.mark.thorough
async def test_backends_are_terminated(durable_server: PrivatePostgres, durable_url: str, tmp_path: Path) -> None:
    await storms.terminations(durable_server, durable_url, tmp_path / "ledger", SECONDS)


@pytest.mark.thorough
async def test_the_network_resets_stalls_and_loses_replies(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    await storms.bad_network(durable_server, durable_url, tmp_path / "ledger", SECONDS)


@pytest.mark.enough_on("sqlite")
async def test_hostile_settings(storm_url: str, tmp_path: Path) -> None:
    await storms.hostile(storm_url, tmp_path / "ledger", SECONDS)


@pytest.mark.enough_on("sqlite")
async def test_workers_are_killed_while_their_runs_wait(storm_url: str, tmp_path: Path) -> None:
    await storms.patience(storm_url, tmp_path / "ledger", 0, kills=8, workers=1, runs=12)
