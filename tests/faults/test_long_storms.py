"""Long storms, for ``make faults``: FAULT_SECONDS each (60 unless told)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import storms
from tests.support.postgres import PrivatePostgres

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS * 2 + 300)]


async def test_workers_are_killed(storm_url: str, tmp_path: Path) -> None:
    await storms.kills(storm_url, tmp_path / "ledger", SECONDS)


async def test_workers_are_killed_while_their_runs_wait(storm_url: str, tmp_path: Path) -> None:
    await storms.patience(storm_url, tmp_path / "ledger", SECONDS, kills=40)


async def test_frozen_workers_come_back(storm_url: str, tmp_path: Path) -> None:
    await storms.zombies(storm_url, tmp_path / "ledger", SECONDS)


async def test_postgres_is_restarted_and_crashes(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    await storms.crashes(durable_server, durable_url, tmp_path / "ledger", SECONDS)


async def test_backends_are_terminated(durable_server: PrivatePostgres, durable_url: str, tmp_path: Path) -> None:
    await storms.terminations(durable_server, durable_url, tmp_path / "ledger", SECONDS)


async def test_the_network_resets_stalls_and_loses_replies(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    await storms.bad_network(durable_server, durable_url, tmp_path / "ledger", SECONDS)


async def test_everything_at_once(durable_server: PrivatePostgres, durable_url: str, tmp_path: Path) -> None:
    await storms.everything(durable_server, durable_url, tmp_path / "ledger", SECONDS)


async def test_hostile_settings(storm_url: str, tmp_path: Path) -> None:
    await storms.hostile(storm_url, tmp_path / "ledger", SECONDS)
