"""Failover for real, behind a URL with both hosts: no commit that returned is lost, and nothing is done twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepfast import Stepfast
from tests.faults import storms
from tests.support.standby import Pair, Quorum

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_the_primary_dies_under_load(pair: Pair, tmp_path: Path) -> None:
    await storms.failovers(pair, pair.create_database("storm"), tmp_path / "ledger", 3)


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_the_doctor_says_that_a_server_is_read_only(pair: Pair) -> None:
    url = pair.create_database("shop")
    async with Stepfast(url):
        pass  # its tables are made
    pair.catch_up()
    both, _, _ = url.partition("?")
    name, _, hosts = both.rpartition("/")[0].partition("@")
    standby_first = f"{name}@{','.join(reversed(hosts.split(',')))}/shop"
    async with Stepfast(f"{standby_first}?target_session_attrs=read-write") as app:
        assert all(check.ok for check in await (await app.store()).doctor())
    async with Stepfast(standby_first, auto_migrate=False) as app:
        found = {check.name: check for check in await (await app.store()).doctor()}
    assert not found["writes"].ok
    assert "target_session_attrs=read-write" in found["writes"].advice


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_primaries_die_one_after_the_other(pair: Pair, tmp_path: Path) -> None:
    await storms.failovers(pair, pair.create_database("storm"), tmp_path / "ledger", SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_primaries_with_two_synchronous_standbys_die(tmp_path: Path) -> None:
    """A commit is with one of two standbys at least. The one that has more takes over, so nothing is lost."""
    with Quorum() as quorum:
        await storms.failovers(quorum, quorum.create_database("storm"), tmp_path / "ledger", SECONDS)
