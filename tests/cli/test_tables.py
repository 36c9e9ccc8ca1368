"""`migrate` and `reset`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepfast.monitoring.text import listed
from stepfast.store.sql import load_migrations
from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene

pytestmark = pytest.mark.empty


def migrations(shop: Shop) -> list[str]:
    """All there are for this database; the two need not have the same."""
    package = f"stepfast.store.{'sqlite' if shop.url.startswith('sqlite') else 'postgres'}"
    return [f"{number:04}_{name}" for number, name, _ in load_migrations(package)]


async def live_worker(scene: Scene) -> str:
    return await scene.add_worker(host="harbour", pid=4711)


def set_version(shop: Shop, version: int, compatible_from: int) -> None:
    async def act(scene: Scene) -> None:
        sql = "UPDATE [meta] SET value = ? WHERE name = ?"
        await scene.rows.fetch(sql, str(version), "version")
        await scene.rows.fetch(sql, str(compatible_from), "compatible_from")

    shop.play(act)


def test_migrate_makes_the_tables_once(stepfast: Verbs, shop: Shop) -> None:
    assert f"applied {listed(migrations(shop))}" in stepfast("migrate").stderr
    assert "up to date" in stepfast("migrate").stderr
    assert stepfast.json("migrate") == {"applied": []}


def test_check_tells_a_pipeline(stepfast: Verbs, shop: Shop) -> None:
    assert "run `stepfast migrate`" in stepfast("migrate", "--check", code=1).stderr
    assert stepfast.json("migrate", "--check", code=1)["version"] == 0
    stepfast("migrate")
    assert "up to date" in stepfast("migrate", "--check").stderr
    assert stepfast.json("migrate", "--check") == {"version": int(migrations(shop)[-1][:4]), "pending": []}


def test_looking_makes_no_file(stepfast: Verbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{tmp_path}/none.db")
    for verb in (["migrate", "--check"], ["runs"], ["workers"], ["doctor"], ["start", "x"]):
        stepfast(*verb, code=1)
    stepfast("reset", "--yes")
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_no_tables(stepfast: Verbs, shop: Shop) -> None:
    if shop.url.startswith("sqlite"):
        sqlite3.connect(shop.url.removeprefix("sqlite:///")).close()
    for verb in (["runs"], ["runs", "--app", "shop:app"], ["check", "shop:app"], ["workers"], ["start", "x"]):
        sentence = stepfast.error(*verb, code=1)
        assert "there are no Stepfast tables in namespace 'stepfast'" in sentence or "no SQLite file" in sentence
        assert "`stepfast migrate`" in sentence
    stepfast("migrate", "--check", code=1)


def test_the_printed_script_makes_the_same_tables(stepfast: Verbs, shop: Shop) -> None:
    script = stepfast("migrate", "--sql").stdout
    if shop.url.startswith("sqlite"):
        database = sqlite3.connect(shop.url.removeprefix("sqlite:///"))
        database.executescript(script)
        database.close()
    else:
        asyncio.run(on_postgres(shop.url, lambda connection: connection.execute(script)))
    stepfast("migrate", "--check")
    shop.start("nothing")


async def on_postgres(url: str, act: Callable[[Any], Awaitable[Any]]) -> None:
    connection = await asyncpg.connect(url)
    await act(connection)
    await connection.close()


def test_the_script_needs_no_connection(stepfast: Verbs) -> None:
    script = stepfast("migrate", "--sql", "-u", "postgresql://nobody@127.0.0.1:1/none", "--namespace", "orders").stdout
    assert 'CREATE TABLE "orders".runs' in script


def test_a_namespace_of_its_own(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    stepfast("migrate", "--namespace", "orders")
    stepfast("--namespace", "orders", "runs")
    monkeypatch.setenv("STEPFAST_NAMESPACE", "orders")
    stepfast("runs")
    run_id = stepfast("start", "nothing", "--app", "shop:app").stdout.strip()
    assert [run["id"] for run in stepfast.json("runs")] == [run_id]
    assert "no Stepfast tables in namespace 'other'" in stepfast.error("runs", "--namespace", "other", code=1)


def test_tables_that_are_too_new_are_refused(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    set_version(shop, 99, 90)
    for verb in (["migrate"], ["migrate", "--check"], ["runs"], ["start", "nothing", "--app", "shop:app"], ["reset"]):
        sentence = stepfast.error(*verb, code=1)
        assert "the tables are at version 99" in sentence
        assert "update Stepfast here" in sentence
    assert stepfast.json("doctor", code=1)[-1]["advice"] == "update Stepfast here"


def test_newer_tables_that_only_added_are_fine(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    set_version(shop, 99, 1)
    stepfast("migrate", "--check")
    stepfast("runs")


# -- reset


def test_reset_asks(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing")
    answer = stepfast("reset", input="n\n", code=1)
    assert "Drop every run, step and table in namespace 'stepfast'" in answer.stderr
    assert "to be dropped:" in answer.stderr and "run_values" in answer.stderr
    stepfast("reset", input="", code=1)  # nobody there to answer
    assert stepfast.json("show", run_id)["id"] == run_id
    stepfast("reset", input="y\n")
    stepfast("migrate", "--check", code=1)


def test_reset_without_asking(stepfast: Verbs, shop: Shop) -> None:
    shop.start("nothing")
    assert "dropped everything" in stepfast("reset", "--yes").stderr
    assert "there is nothing" in stepfast("reset", "--yes").stderr


def test_reset_refuses_while_workers_live_and_names_them(stepfast: Verbs, shop: Shop) -> None:
    shop.play(live_worker)
    sentence = stepfast.error("reset", "--yes", code=1)
    assert "1 worker still live: harbour:4711" in sentence
    assert "--force" in sentence
    stepfast("reset", "--yes", "--force")
    stepfast("migrate", "--check", code=1)


def test_reset_minds_no_dead_workers(stepfast: Verbs, shop: Shop) -> None:
    async def dead_worker(scene: Scene) -> None:
        await scene.rows.silence(await live_worker(scene))

    shop.play(dead_worker)
    stepfast("reset", "--yes")


def test_reset_leaves_other_namespaces_alone(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    stepfast("migrate", "--namespace", "other")
    stepfast("reset", "--yes")
    stepfast("runs", "--namespace", "other")
