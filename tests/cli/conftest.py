"""The command line as a user has it: a folder with their code, a database in the environment, and the verbs.

`stepfast` calls verbs in this process, through the real parser; `spawn` starts real processes, for signals.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from stepfast import Stepfast
from stepfast.cli import cli
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import open_store
from tests.cli.processes import Processes
from tests.store.scene import Rows, Scene
from tests.support.logs import logging_as_before
from tests.support.snapshots import snapshot

__all__ = ["snapshot"]

SHOP = (Path(__file__).parent / "shop.py").read_text()
HARBOUR = (Path(__file__).parent / "harbour.py").read_text()
FULFIL = (Path(__file__).parent / "fulfil.py").read_text()


class Shop:
    """The user's folder: `shop.py`, `harbour.py` and `fulfil.py` in the current directory, their database in
    STEPFAST_URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def call(self, work: Callable[[Stepfast], Awaitable[Any]], module: str = "shop") -> Any:
        """Do something with the application, connected for as long as it takes."""

        async def run() -> Any:
            async with importlib.import_module(module).app as app:
                return await work(app)

        return asyncio.run(run())

    def start(self, name: str, input: Any = None, module: str = "shop", **options: Any) -> str:
        return str(self.call(lambda app: app.start(name, input, **options), module).id)

    def started(self, name: str, input: Any = None, module: str = "harbour", **options: Any) -> str:
        """Started, and worked at until it waits or has ended."""
        run_id = self.start(name, input, module, **options)
        self.drain(module)
        return run_id

    def drain(self, module: str = "shop") -> None:
        self.call(lambda app: app.drain(), module)

    def play(self, act: Callable[[Scene], Awaitable[Any]]) -> Any:
        """Bring the database into a state that would take hours or crashes to come about."""

        async def run() -> Any:
            async with AsyncExitStack() as stack:
                store = open_store(parse_url(self.url), "stepfast", Settings())
                await store.open()
                stack.push_async_callback(store.close)
                await store.migrate()
                rows = Rows(store, "stepfast", self.url)
                stack.push_async_callback(rows.close)
                return await act(Scene(store, rows))

        return asyncio.run(run())


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """The parser of all verbs is made once: it takes longer than most of them, and keeps nothing of a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield


class Verbs:
    """Calls verbs and checks their exit code."""

    def __init__(self) -> None:
        self._runner = CliRunner()

    def __call__(self, *arguments: str, code: int = 0, input: str | None = None) -> Result:
        with logging_as_before():
            result = self._runner.invoke(cli, arguments, input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What a verb prints for scripts: one document, and nothing else."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def error(self, *arguments: str, code: int) -> str:
        """The sentence a verb refuses with; nothing goes to stdout."""
        result = self(*arguments, code=code)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return str(result.stderr).strip()


@pytest.fixture
def shop(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    folder = tmp_path / "code"
    folder.mkdir()
    shop = Shop(folder, url)
    shop.write("shop.py", SHOP)
    shop.write("harbour.py", HARBOUR)
    shop.write("fulfil.py", FULFIL)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STEPFAST_URL", url)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    known = set(sys.modules)
    yield shop
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def stepfast() -> Verbs:
    return Verbs()


@pytest.fixture
def spawn(shop: Shop) -> Iterator[Processes]:
    processes = Processes(shop.folder)
    yield processes
    processes.end()
