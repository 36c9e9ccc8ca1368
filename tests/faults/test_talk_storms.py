"""Storms over runs that talk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import talk_storm

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))
LONG = pytest.mark.timeout(SECONDS * 2 + 300)
LONGEST = 25.0
"""Seconds that some runs wait for an event: so long that none of those is missed."""


@pytest.mark.enough_on("postgres")
async def test_processes_are_killed_while_runs_talk(storm_url: str, tmp_path: Path) -> None:
    await talk_storm.kills(storm_url, tmp_path / "ledger", 2.0, longest=2.0)


@pytest.mark.slow
@LONG
async def test_processes_are_killed_for_long_while_runs_talk(storm_url: str, tmp_path: Path) -> None:
    scene = await talk_storm.kills(storm_url, tmp_path / "ledger", SECONDS, LONGEST)
    assert any(note["how"] == "answered" for note in scene.of("told")), "nothing was asked: not a storm"


@pytest.mark.slow
@LONG
async def test_runs_talk_under_hostile_settings(storm_url: str, tmp_path: Path) -> None:
    await talk_storm.hostile(storm_url, tmp_path / "ledger", SECONDS, LONGEST)
