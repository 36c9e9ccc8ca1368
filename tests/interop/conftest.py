"""The same databases as for remote workers, and processes of other makers' programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.packages import node, node_folder, python_folder
from tests.remote.conftest import tables, transport

__all__ = ["tables", "transport", "url"]

Spawn = Callable[..., subprocess.Popen[bytes]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/interop/" in item.nodeid:
            item.add_marker(pytest.mark.empty)
            item.add_marker(pytest.mark.thorough)  # packages are fetched, and there is `make interop`


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a program of theirs; it is ready when this returns, and killed with the test."""
    started = []

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        if program.endswith(".mjs"):
            command, folder, environment = [node(), program], node_folder(), dict(os.environ)
        else:
            command, folder = [sys.executable, str(Path(__file__).parent / program)], Path.cwd()
            environment = {**os.environ, "PYTHONPATH": str(python_folder())}
        process = subprocess.Popen(
            [*command, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
