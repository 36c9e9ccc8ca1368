"""Servers that may be crashed, and the summary of all storms."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.storm import TOTALS
from tests.support import given
from tests.support.mariadb import PrivateMariaDb
from tests.support.postgres import PrivatePostgres

COLUMNS = ("storms", "runs", "steps", "acts", "sleeps", "signals", "children", "races", "rows", "undos", "links",
           "items", "streams read", "answers", "ended questions", "events taken", "started by events", "messages",
           "dag runs", "dag steps", "dag acts", "dag undos", "lost doing", "lost undoing",
           "remote steps", "served", "sent again", "by stepfast", "by node", "by python",
           "cancels", "pauses", "retries", "kills", "kills of stepfast", "kills of node", "kills of python",
           "zombies", "restarts", "failovers", "ms of failovers", "disks filled",
           "terminated", "resets", "stalls", "swallowed commits",
           "false losses", "violations")  # fmt: skip


@pytest.fixture(scope="session")
def durable_server() -> Iterator[PrivatePostgres]:
    """A server that keeps what it promised, for tests that crash it. Every test leaves it running."""
    with PrivatePostgres(fsync=True) as server:
        yield server


@pytest.fixture
def durable_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own on that server."""
    if given.URL:
        yield request.getfixturevalue("given_database").prepare(tables=False)
        return
    durable_server: PrivatePostgres = request.getfixturevalue("durable_server")
    durable_server.start()
    name = f"storm_{os.getpid()}_{abs(hash(request.node.nodeid)) % 10**9}"
    yield durable_server.create_database(name)
    durable_server.start()
    durable_server.drop_database(name)


@pytest.fixture(scope="session")
def durable_mariadb() -> Iterator[PrivateMariaDb]:
    """The same of MariaDB."""
    server = PrivateMariaDb(durable=True)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def durable_mariadb_url(durable_mariadb: PrivateMariaDb) -> Iterator[str]:
    """A database of its own on that server."""
    url = durable_mariadb.create_database()
    yield url
    durable_mariadb.drop_database(url)


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.thorough), "sqlite"])
def storm_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The storm rages once per database."""
    return _url(request, tmp_path)


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.slow)])
def scene_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same, but SQLite's turn comes only in the long version: what is tried is not the store's doing."""
    return _url(request, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder run with `make faults`."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.faults)


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'storm.db'}"
    return str(request.getfixturevalue("durable_mariadb_url" if request.param == "mariadb" else "durable_url"))


# Test processes that share the work (pytest -n) send what their storms did to the one that prints the table.


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["storms"] = dict(TOTALS)


class _Collector:
    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        TOTALS.update(getattr(node, "workeroutput", {}).get("storms", {}))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Collector())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not TOTALS["storms"]:
        return
    terminalreporter.section("storms")
    for column in COLUMNS:
        if TOTALS[column] or column == "violations":
            terminalreporter.write_line(f"{column:>18}  {TOTALS[column]:>7}")
