"""Short storms over remote workers, the engine's side being played; ``make faults`` has longer ones, and
tests/faults/test_remote_storms.py one with a real engine, which is part of ``make test``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remote.storm import Storm


@pytest.mark.thorough
async def test_every_step_is_settled_once_while_workers_are_killed(postgres_url: str, tmp_path: Path) -> None:
    await Storm(postgres_url, tmp_path).rage(0.1, workers=1)


@pytest.mark.thorough
async def test_the_same_on_mariadb(mariadb_url: str, tmp_path: Path) -> None:
    await Storm(mariadb_url, tmp_path).rage(0.1, workers=1)
