"""Applications, second looks at the database, and worker processes for the tests of the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.settings import Settings
from tests.support.databases import DatabasePool
from tests.support.engine import Calls
from tests.support.processes import Ledger, WorkerProcess
from tests.support.warm import take_up_sessions
from tests.support.worker_program import make_app as make_program
from tests.worker import heartbeats
from tests.worker.tables import Tables

MakeApp = Callable[..., Stepfast]
MakeProcess = Callable[..., WorkerProcess]

__all__ = ["DatabasePool", "MakeApp", "MakeProcess"]

COLD = (
    "connections", "doubts", "heartbeat", "kill", "lost_commits", "neighbours", "outage", "plans", "reaper",
    "server_errors", "wakeups",
)  # fmt: skip
"""Files in which sessions are the subject, or end with their process: each test has new ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    take_up_sessions(items, "worker", COLD)


@pytest.fixture(autouse=True)
def whose_heartbeats() -> None:
    """Tell the workers of this test from others."""
    heartbeats.begin()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Whatever has to be closed when the test is over, last opened first."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def make_app(url: str, stack: AsyncExitStack) -> MakeApp:
    """Makes applications on the test's database; each has connections of its own, as if it were another process."""

    def make(settings: Settings | None = None, at: str | None = None, **options: Any) -> Stepfast:
        app = Stepfast(at or url, settings=settings, **options)
        stack.push_async_callback(app.close)
        return app

    return make


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "processes")


@pytest.fixture
def program(url: str, ledger: Ledger, stack: AsyncExitStack) -> Callable[..., Stepfast]:
    """This process's side of the program that worker processes run: it knows the same workflows."""

    def make(settings: Settings | None = None, at: str | None = None) -> Stepfast:
        app = make_program(at or url, ledger, settings)
        stack.push_async_callback(app.close)
        return app

    return make


@pytest.fixture
def make_process(url: str, ledger: Ledger, stack: AsyncExitStack) -> MakeProcess:
    """Makes worker processes on the test's database. Use them as ``async with make_process(): …``."""

    def make(settings: dict[str, Any] | None = None, at: str | None = None, **work: Any) -> WorkerProcess:
        return WorkerProcess(at or url, ledger, settings=settings, **work)

    return make


@pytest.fixture
async def tables(url: str, stack: AsyncExitStack) -> Tables:
    """The rows themselves."""
    tables = Tables(url)
    stack.push_async_callback(tables.close)
    return tables


@pytest.fixture
def calls() -> Calls:
    return Calls()
