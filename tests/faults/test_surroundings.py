"""The surroundings fail: disks are full, clocks are wrong, workers of an earlier commit are still about."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import storms
from tests.support.needs import Program, leave_out
from tests.support.postgres import PrivatePostgres
from tests.support.small_disk import SmallDisk, small_disk

ROOT = Path(__file__).parents[2]
LONG = float(os.environ.get("FAULT_SECONDS", "60"))
HISTORY = Program("git history", "a clone that has the commits of the last days")
COMMITS_AGO = 40

pytestmark = pytest.mark.timeout(LONG * 2 + 400)


@pytest.fixture(params=[pytest.param(3.0, marks=pytest.mark.thorough), pytest.param(LONG, marks=pytest.mark.slow)])
def seconds(request: pytest.FixtureRequest) -> float:
    """A short one for `make test-all`, a long one for `make faults`."""
    return float(request.param)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Enough for a storm, and filled within a moment."""
    with small_disk(tmp_path / "disk", 500) as made:
        yield made


async def test_the_disk_of_sqlite_is_full(disk: SmallDisk, tmp_path: Path, seconds: float) -> None:
    await storms.full_disks(f"sqlite:///{disk.folder}/storm.db", tmp_path / "ledger", seconds, disk)


async def test_the_disk_of_postgres_is_full(
    disk: SmallDisk, tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
    with PrivatePostgres(fsync=True, settings={"max_wal_size": "64MB"}) as server:
        url = server.create_database("storm")
        await storms.full_disks(url, tmp_path / "ledger", seconds, disk, server)


async def test_the_clocks_of_workers_are_an_hour_off(durable_url: str, tmp_path: Path, seconds: float) -> None:
    await storms.wrong_clocks(durable_url, tmp_path / "ledger", seconds)


async def test_workers_of_an_earlier_commit_are_still_about(durable_url: str, tmp_path: Path, seconds: float) -> None:
    await storms.two_versions(durable_url, tmp_path / "ledger", seconds, earlier_commit(tmp_path / "old"))


def earlier_commit(folder: Path) -> Path:
    """What stood here some commits ago, or where UPGRADE_REF says, with its own tests."""
    ref = os.environ.get("UPGRADE_REF", f"HEAD~{COMMITS_AGO}")
    done = subprocess.run(["git", "-C", str(ROOT), "archive", ref, "src", "tests"], capture_output=True)
    if done.returncode:
        leave_out(HISTORY)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later have it
        archive.extractall(folder)
    return folder
