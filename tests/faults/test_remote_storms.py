"""Long storms over remote workers, for ``make faults``: FAULT_SECONDS each (60 unless told)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.remote.conftest import mariadb_server, mariadb_url
from tests.remote.storm import Storm

__all__ = ["mariadb_server", "mariadb_url"]

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))

pytestmark = [pytest.mark.slow, pytest.mark.empty, pytest.mark.timeout(SECONDS * 2 + 300)]


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
async def test_every_remote_step_is_settled_once(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    storm = Storm(request.getfixturevalue(f"{database}_url"), tmp_path)
    await storm.rage(SECONDS, workers=3)
    print(f"{storm.sent} steps, {storm.kills} kills, {storm.breaks} times all connections ended")
