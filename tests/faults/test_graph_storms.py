"""Storms over dags: workers are killed while steps are done, and while they are undone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import graph_storm

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))


@pytest.mark.enough_on("postgres")
async def test_workers_are_killed_over_dags(storm_url: str, tmp_path: Path) -> None:
    await graph_storm.kills(storm_url, tmp_path / "ledger", 2.5)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_workers_are_killed_over_dags_for_long(storm_url: str, tmp_path: Path) -> None:
    scene = await graph_storm.kills(storm_url, tmp_path / "ledger", SECONDS)
    count = scene.count()
    assert count["lost doing"] > 0, "no step was under way when its worker died: not a storm"
    assert count["lost undoing"] > 0, "nothing was being undone when a worker died: not a storm"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_dags_under_hostile_settings(storm_url: str, tmp_path: Path) -> None:
    await graph_storm.hostile(storm_url, tmp_path / "ledger", SECONDS)
