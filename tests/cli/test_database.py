"""`migrate`, `reset`, `workers` and `doctor`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepfast.monitoring.text import listed
from stepfast.store.dialects import POSTGRES, SQLITE
from stepfast.store.sql import load_migrations
from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene
from tests.support.postgres import PrivatePostgres

pytestmark = pytest.mark.empty


def migrations(shop: Shop) -> list[str]:
    """All there are for this database."""
    dialect = SQLITE if shop.url.startswith("sqlite") else POSTGRES
    return [f"{number:04}_{name}" for number, name, _ in load_migrations(dialect)]


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


def finding(checks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [found] = [check for check in checks if check["check"] == name]
    return found


async def crew(scene: Scene) -> None:
    await scene.add_worker(host="harbour", pid=1, workflows={"double": "v1"})
    await scene.add_worker(host="harbour", pid=2, queues=["vip"])
    await scene.rows.silence(await scene.add_worker(host="wreck", pid=3))


# -- workers


def test_workers_for_people(stepfast: Verbs, shop: Shop) -> None:
    shop.play(crew)
    header, *lines = stepfast("workers").stdout.splitlines()
    assert header.split()[:4] == ["id", "worker", "state", "runs"]
    assert "harbour:1" in lines[0] and "live" in lines[0] and "0 of 10" in lines[0] and "all" in lines[0]
    assert "vip" in lines[1]
    assert "wreck:3" in lines[2] and "dead" in lines[2]


def test_workers_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    shop.play(crew)
    first, second, third = stepfast.json("workers")
    assert first.items() >= {"host": "harbour", "pid": 1, "state": "live", "queues": None, "lease": 30.0}.items()
    assert first["workflows"] == {"double": "v1"}
    assert second["queues"] == ["vip"]
    assert third["state"] == "dead"


def test_no_workers(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    answer = stepfast("workers")
    assert answer.stdout == ""
    assert "stepfast worker module:app" in answer.stderr
    assert stepfast.json("workers") == []


# -- doctor


@pytest.fixture
def durable(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The tests' Postgres does not wait for its disk, which the doctor would rightly complain about: here is one that
    does."""
    if shop.url.startswith("sqlite"):
        yield shop
        return
    with PrivatePostgres(fsync=True, in_memory=True) as server:
        shop.url = server.create_database("durable")
        monkeypatch.setenv("STEPFAST_URL", shop.url)
        yield shop


def wrong(checks: list[dict[str, Any]]) -> list[str]:
    """What is wrong beside the disk of the tests' Postgres."""
    return [check["check"] for check in checks if not check["ok"] and check["check"] != "durability"]


@pytest.mark.enough_on("sqlite")
def test_all_is_well(stepfast: Verbs, durable: Shop) -> None:
    stepfast("migrate")
    assert wrong(stepfast.json("doctor")) == []


def test_the_doctor_looks_at_everything(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    code = 0 if shop.url.startswith("sqlite") else 1
    checks = stepfast.json("doctor", code=code)
    names = {check["check"] for check in checks}
    assert names >= {
        "connection", "server", "clock", "durability", "wake_ups", "schema", "workers", "workflows", "queues",
    }  # fmt: skip
    assert wrong(checks) == []
    assert "up to date" in finding(checks, "schema")["found"]
    assert "7 known; no live worker has checkout" in finding(checks, "workflows")["found"]
    assert "schema" in stepfast("doctor", code=code).stdout


def test_what_is_well_has_no_advice_for_scripts(stepfast: Verbs, shop: Shop, url: str) -> None:
    shop.started("nap")
    checks = stepfast.json("doctor", code=1 if url.startswith("postgres") else 0)
    assert {check["check"]: check["advice"] for check in checks if check["ok"] and check["advice"]} == {}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_that_forgets_is_wrong(stepfast: Verbs, shop: Shop) -> None:
    """SQLite is opened so that it does not."""
    stepfast("migrate")
    durability = finding(stepfast.json("doctor", code=1), "durability")
    assert not durability["ok"] and durability["advice"]


def test_missing_tables(stepfast: Verbs, shop: Shop) -> None:
    checks = stepfast.json("doctor", code=1)
    text = stepfast("doctor", code=1).stdout
    assert not checks[-1]["ok"]
    assert "stepfast migrate" in text and "wrong" in text


def test_runs_that_nobody_serves(stepfast: Verbs, shop: Shop) -> None:
    shop.start("double", {"id": "o-1", "cents": 1}, queue="vip")
    checks = stepfast.json("doctor", code=1)
    assert wrong(checks) == ["workers", "queues"]
    assert finding(checks, "queues")["found"].endswith("'double' in queue 'vip'")
    shop.play(crew)  # knows the workflow for every queue
    code = 0 if shop.url.startswith("sqlite") else 1
    checks = stepfast.json("doctor", code=code)
    assert wrong(checks) == []
    assert "2 live; dead: wreck:3" in finding(checks, "workers")["found"]


def test_a_step_that_no_code_has_any_more_is_in_line_in_vain(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("order", "gift", module="fulfil")
    shop.play(lambda scene: scene.rows.fetch("UPDATE [runs] SET workflow = 'order/old' WHERE dag_step = 'check'"))
    checks = stepfast.json("doctor", code=1)
    assert run_id and "'order/old' in queue 'order'" in finding(checks, "queues")["found"]


def test_suspects_are_counted_and_are_no_less_served(stepfast: Verbs, shop: Shop) -> None:
    """The usual claims leave out runs that workers died with; who looks for what waits finds them all the same."""
    run_id = shop.start("double", {"id": "o-1", "cents": 1}, queue="vip")

    shop.play(lambda scene: scene.rows.set(run_id, "losses", 3))
    checks = stepfast.json("doctor", code=1)
    assert wrong(checks) == ["workers", "queues"]
    assert "'double' in queue 'vip'" in finding(checks, "queues")["found"]
    assert finding(checks, "suspects")["found"].startswith("workers died with 1 run ")


def test_other_code_in_the_workers(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    shop.play(crew)
    code = 0 if shop.url.startswith("sqlite") else 1
    found = finding(stepfast.json("doctor", "--app", "shop:app", code=code), "workflows")["found"]
    assert "live workers have other code of double than this" in found


def test_an_unreachable_database(stepfast: Verbs) -> None:
    [check] = stepfast.json("doctor", "-u", "postgresql://me:s3cret@127.0.0.1:1/none", code=5)
    assert check["check"] == "connection" and not check["ok"] and check["advice"]
    assert "s3cret" not in check["found"]


def test_doctor_names_workers_that_have_different_code_of_one_name(stepfast: Verbs, shop: Shop) -> None:
    async def two_services(scene: Scene) -> None:
        await scene.add_worker(host="bills", workflows={"send": "v1"}, modules={"send": "bills"})
        await scene.add_worker(host="mails", workflows={"send": "v7"}, modules={"send": "mails"})

    shop.play(two_services)
    found = finding(stepfast.json("doctor", code=1), "names")
    assert not found["ok"]
    assert "'send'" in found["found"] and "bills" in found["found"] and "mails" in found["found"]
    assert "namespace" in found["advice"]


def test_a_database_that_nobody_named_is_warned_of(
    stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPFAST_URL")
    stepfast("migrate")
    answer = stepfast("runs", "--json")
    assert answer.stdout.strip() == "[]"
    assert "--url" in answer.stderr and "STEPFAST_URL" in answer.stderr and "stepfast.db" in answer.stderr
    monkeypatch.setenv("STEPFAST_URL", "sqlite:///stepfast.db")
    assert "warning" not in stepfast("runs", "--json").stderr
