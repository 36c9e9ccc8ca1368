"""Servers that are not a plain Postgres: recognized when the store connects, refused with the reason, or served in the
way that a cluster takes. A cluster comes in no package that tests could install: here a plain server is taken for one,
and what a coordinator refuses is looked for in the statements. `make test-engine` runs the suite on a real one.
"""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.errors import ConfigurationError
from stepfast.model.urls import parse_url
from stepfast.store import Store, open_store
from stepfast.store.dialects import POSTGRES
from stepfast.store.postgres import PostgresStore
from stepfast.store.postgres.engines import CITUS, PLAIN, YUGABYTE, _isolated, recognize
from stepfast.store.sql import FOLDER, load_all
from tests.support.engine import PATIENCE, eventually

FACTS = {"version": "PostgreSQL 17.5 on x86_64", "citus": False, "dsql": False}
AT_ONCE = {"claim_lane", "claim_lanes", "flush", "flush_telling", "send_usual"}
"""What only a plain server gets; others do the same by flows."""


@pytest.mark.parametrize(
    ("facts", "engine"),
    [
        ({}, PLAIN),
        ({"citus": True}, CITUS),
        ({"version": "PostgreSQL 15.12-YB-2025.2.0.0-b0 on x86_64"}, YUGABYTE),
    ],
    ids=["postgres", "citus", "yugabyte"],
)
def test_a_server_is_recognized_by_what_it_answers(facts: dict[str, Any], engine: object) -> None:
    assert recognize(FACTS | facts) is engine


@pytest.mark.parametrize(
    ("facts", "name"),
    [({"version": "CockroachDB CCL v25.4.0"}, "CockroachDB"), ({"dsql": True}, "Aurora DSQL")],
    ids=["cockroach", "dsql"],
)
def test_a_server_on_which_locks_do_not_hold_is_refused(facts: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name} is not supported: .+\. Use PostgreSQL"):
        recognize(FACTS | facts)


async def test_a_service_is_refused_by_its_address_before_anything_is_sent() -> None:
    url = "postgresql://admin:secret@abc.dsql.eu-west-1.on.aws/postgres"
    store = open_store(parse_url(url), "stepfast", Settings())
    with pytest.raises(ConfigurationError, match="Aurora DSQL is not supported"):
        await store.open()


def test_yugabyte_is_told_of_its_isolation() -> None:
    assert _isolated("read committed").ok
    level = _isolated("repeatable read")
    assert not level.ok and "yb_enable_read_committed_isolation" in level.advice


# -- statements --------------------------------------------------------------------------------------------


def statements() -> dict[str, str]:
    """The statements of Postgres, with their clocks by name."""
    return load_all(POSTGRES, {"schema": '"s"', "wide": "", "/wide": "", "join": "JOIN"})


def bare(sql: str) -> str:
    return re.sub(r"--[^\n]*|'(?:[^']|'')*'", " ", sql)


CHANGES = re.compile(r"(?<!KEY )\b(?:UPDATE \"s\"|DELETE FROM|DO UPDATE)\b.*", re.DOTALL)


def test_no_change_of_rows_reads_a_clock_that_goes_on() -> None:
    """Citus refuses a volatile function there, and any function within COALESCE and CASE."""
    found = {}
    for name, sql in statements().items():
        change = CHANGES.search(bare(sql))
        if change is None or name in AT_ONCE:
            continue
        if re.search(r"\{(now|place|server)\}", change[0]) or re.search(r"COALESCE\([^()]*\{stamp\}", change[0]):
            found[name] = change[0]
    assert found == {}
    assert "{stamp}" in statements()["beat"] and "{now}" in statements()["flush"], "the words are not these"


def test_only_what_a_plain_server_gets_carries_several_kinds_of_writes() -> None:
    kinds = {
        name: {kind for kind in ("INSERT INTO", 'UPDATE "s"', "DELETE FROM") if kind in bare(sql)}
        for name, sql in statements().items()
    }
    assert {name for name, written in kinds.items() if len(written) > 1} == AT_ONCE


def test_no_lock_is_an_advisory_one() -> None:
    """A pooler or a cluster may ask another server for it than for the rows."""
    folder = FOLDER.parents[1]  # type: ignore[attr-defined]
    files = [file for file in folder.rglob("*.sql") if "advisory_" in bare(file.read_text(encoding="utf-8"))]
    assert files == []


# -- a plain server that is taken for a cluster ------------------------------------------------------------


async def test_everything_works_by_flows(routed_url: str) -> None:
    app = Stepfast(routed_url, settings=Settings(inline_wait=0))

    @app.workflow
    async def parent(ctx: Context, number: int) -> int:
        doubled = await ctx.step("double", lambda: number * 2)
        await ctx.wait_signal("go")
        return doubled + int(await ctx.call(child, number))

    @app.task
    async def child(number: int) -> int:
        return number

    try:
        await app.migrate()
        store: Any = await app.store()
        assert store._connector.engine is CITUS
        for name in AT_ONCE:
            store._sql[name] = f"{name} is not for a cluster"
        async with app.worker():
            run = await app.start(parent, 3, key="one")
            await eventually(lambda: _waits(run))
            await run.signal("go")
            assert await run.result(timeout=PATIENCE) == 9
        options = store._connector._options()
        assert "force_generic_plan" not in str(options)
    finally:
        await app.close()


async def _waits(run: Any) -> bool:
    return bool((await run.info()).status == "waiting")


async def test_the_doctor_says_where_citus_keeps_the_tables(routed_url: str) -> None:
    connection = await asyncpg.connect(routed_url)
    store: Store = open_store(parse_url(routed_url), "stepfast", Settings())
    try:
        await store.open()
        assert isinstance(store, PostgresStore)

        async def found() -> tuple[bool, str, str]:
            [check] = [check for check in await store.doctor() if check.name == "citus"]
            return check.ok, check.found, check.advice

        ok, text, _ = await found()
        assert ok and "on the coordinator" in text and "enable_schema_based_sharding is off" in text
        put = "INSERT INTO pg_catalog.pg_dist_partition VALUES ('stepfast.runs'::regclass, $1::text::\"char\", 's')"
        await connection.execute(put, "n")
        ok, text, _ = await found()
        assert ok and text == "Citus 13.2: all tables of the namespace are on one node (schema-based sharding)"
        await connection.execute(put, "h")
        ok, text, advice = await found()
        assert not ok and "one by one" in text and "citus_schema_distribute('\"stepfast\"')" in advice
    finally:
        await connection.close()
        await store.close()
