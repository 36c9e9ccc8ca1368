"""Every Python and SQL example in the documents runs; Python prints what the page says."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import os
import sqlite3
from pathlib import Path
from typing import Any, TypedDict

import asyncpg
import pytest

from stepfast import Context, NonRetryableError, Settings, Stepfast
from stepfast.store.sql import split_statements
from tests.docs.pages import ROOT, Block, Program, all_blocks, file_blocks, programs
from tests.support import nursery

pytestmark = pytest.mark.empty


RUNNER = Path(__file__).with_name("run_block.py")
POSTGRES = "postgresql://localhost/shop"
"""How the documents spell the reader's own database; the test puts its own in."""
MOST_FRAGMENTS = 3


def environment(home: Path) -> dict[str, str]:
    """Without settings of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPFAST_", "PYTEST_"))}
    return {**kept, "PYTHONWARNINGS": "error", "HOME": str(home)}


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.where)
def test_the_example_runs(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_program(program, tmp_path, request)


def run_program(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Run it, and compare what it prints with what the page says."""
    source, files = program.source, dict(program.files)
    if any(POSTGRES in text for text in (source, *files.values())):
        url = request.getfixturevalue("postgres_url")
        source = source.replace(POSTGRES, url)
        files = {name: text.replace(POSTGRES, url) for name, text in files.items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = tmp_path / "example.py"
    script.write_text(source)
    tests = [name for name in files if name.startswith("test_")]
    pytest_options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    pytest_options += ["-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:xdist.looponfail"]
    command = ["-m", "pytest", *pytest_options, *tests] if program.is_test else [RUNNER, script]
    done = nursery.run(command, folder=tmp_path, environment=environment(tmp_path), timeout=60)
    assert done.returncode == 0, f"{program.where}\n{done.stdout}\n{done.stderr}"
    printed = done.stdout.splitlines()
    for line in program.output:
        pattern = line.replace("[", "[[]").replace("…", "*")
        assert any(fnmatch.fnmatchcase(given, pattern) for given in printed), (
            f"{program.where} does not print {line!r} but:\n{done.stdout}"
        )


@pytest.mark.parametrize("block", all_blocks("python"), ids=lambda block: block.where)
def test_the_block_compiles_and_its_direction_is_known(block: Block) -> None:
    compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known = block.direction in ("", "continues") or block.direction.startswith(("file ", "fragment, because "))
    assert known, f"{block.where}: unknown direction {block.direction!r}"


def test_fragments_are_rare() -> None:
    fragments = [block.where for block in all_blocks("python") if block.direction.startswith("fragment")]
    of_others = [where for where in fragments if where.startswith("docs/integrations/from-")]  # code of another engine
    assert len(of_others) == 3
    fragments = [where for where in fragments if where not in of_others]
    assert len(fragments) <= MOST_FRAGMENTS, f"write them so that they run: {fragments}"


def test_files_with_a_test_of_their_own_are_run_by_it() -> None:
    shown = {each.direction.removeprefix("file "): each.text for each in all_blocks("python")}
    for name, (block, test) in file_blocks().items():
        if test in shown:  # the page has the test too, which imports the file
            assert Path(name).stem in shown[test], f"{block.where}: {test} does not import {name}"
            continue
        text = (ROOT / "tests" / "docs" / test).read_text()
        assert name in text, f"{block.where}: {test} does not run {name}"


# -- SQL, on tables that hold something


ON_SQLITE = [block for block in all_blocks("sql") if block.direction == "sqlite"]
ON_POSTGRES = [block for block in all_blocks("sql") if block.direction != "sqlite"]


class Order(TypedDict):
    id: str
    cents: int


async def populate(url: str) -> None:
    """A completed run, a failed one and one that sleeps, in the namespace that the documents use."""
    app = Stepfast(url)

    @app.workflow
    async def checkout(ctx: Context, order: dict[str, Any]) -> dict[str, str]:
        await ctx.step("charge", lambda: {"receipt": "r-1"})
        if order["cents"] == 0:
            raise NonRetryableError("nothing to pay")
        return {"receipt": "r-1"}

    async with app:
        await app.start(checkout, {"id": "o-1", "cents": 999}, tags=["web"])
        await app.start(checkout, {"id": "o-2", "cents": 0}, key="o-2")
        await app.start(checkout, {"id": "o-3", "cents": 1}, delay=3600)
        await app.drain()


def test_there_are_examples_for_both() -> None:
    assert ON_SQLITE
    assert ON_POSTGRES
    assert {block.direction for block in ON_POSTGRES} == {""}


@pytest.mark.parametrize("block", ON_POSTGRES, ids=lambda block: block.where)
async def test_postgres_takes_it(block: Block, postgres_url: str) -> None:
    await populate(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        for statement in split_statements(block.text):
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize("block", ON_SQLITE, ids=lambda block: block.where)
async def test_sqlite_takes_it(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "stepfast.db"
    await populate(f"sqlite:///{path}")
    database = sqlite3.connect(path)
    try:
        for statement in split_statements(block.text):
            database.execute(statement).fetchall()
    finally:
        database.close()


async def test_sqlite_starts_signals_cancels_and_resumes_by_the_documented_statements(sqlite_url: str) -> None:
    """What the functions do on Postgres."""
    [block] = [block for block in ON_SQLITE if "kind <> 'dag'" in block.text]
    start, signal, publish, cancel = split_statements(block.text)
    app = Stepfast(sqlite_url, settings=Settings(inline_wait=0))

    @app.workflow(deadline=3600)
    async def checkout(ctx: Context, order: Order) -> str:
        await ctx.wait_signal("approved", type=bool)
        return f"{order['id']}: {order['cents']}"

    graph = app.dag("graph")
    graph.approval("approved")
    async with app:
        graph_run = await app.start(graph)
        await app.drain()
        with contextlib.closing(sqlite3.connect(str(app.url.path), isolation_level=None)) as database:

            def execute(statement: str, run_id: str = "", key: str = "o-7") -> int:
                text = statement.replace("0197a1b2-0000-7000-8000-000000000000", run_id).replace("'o-7'", f"'{key}'")
                return database.execute(text).rowcount

            assert [execute(start), execute(start), execute(start, key="o-8")] == [1, 0, 1]
            assert execute(start.replace('"cents": 999', '"cents": "x"'), key="o-9") == 1
            assert execute(start.replace("'checkout'", "'graph'")) == 0
            found = {info.key: app.get(info.id) for info in await app.runs(workflow="checkout")}
            run, cancelled, wrong = (found[key] for key in ("o-7", "o-8", "o-9"))
            await app.drain()
            info = await run.info()
            assert (info.waiting_for, info.deadline is None) == ("signal:approved", False)
            assert ((await wrong.info()).status, (await wrong.info()).reason) == ("failed", "invalid_input")
            await run.pause()
            rows = [execute(signal, run.id), execute(cancel, cancelled.id), execute(signal, graph_run.id)]
            rows += [execute(cancel.replace("'cancel'", "'resume'"), run.id), execute(signal, wrong.id)]
            late = await app.start("checkout", {"id": "o-4", "cents": 4}, delay=3600)
            rows += [execute(cancel.replace("'cancel'", "'reschedule'"), late.id)]
            assert rows == [1, 1, 1, 1, 0, 1]
            assert [execute(publish), execute(publish)] == [1, 0]
            await app.drain()
        assert [(event.id, event.data, event.matched) for event in await app.events()] == [
            ("evt-9", {"cents": 5}, True)
        ]
        assert await run.result() == "o-7: 999"
        assert await graph_run.result() == {"approved": True}
        assert await cancelled.status() == "cancelled"
        assert await late.status() == "waiting"
