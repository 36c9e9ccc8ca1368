"""Attributes: typed values of runs, set at the start and by the run, and found through an index."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, InvalidInput, Settings, Stepfast, SyncContext
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.engine.test_connection_argument import Caller
from tests.support.engine import drained
from tests.support.waiting import count
from tests.support.workflows import task

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
GIVEN = {"customer": "c-7", "cents": 999, "vip": True, "due": NOON, "share": 0.5}


def labelled(app: Stepfast) -> Any:
    @app.workflow(name="labelled", max_attempts=1)
    async def labelled(ctx: Context, left: int) -> int:
        await ctx.set_attributes(region="eu", cents=5)
        await ctx.set_attributes(cents=1000 + left)
        if left:
            await ctx.continue_as(left - 1)
        await ctx.call("child", left, attributes={"customer": "child"})
        return left

    task(app, "child")
    return labelled


async def ids(app: Stepfast, **filters: Any) -> set[str]:
    found = {info.id for info in await app.runs(**filters)}
    assert await app.count(**filters) == len(found)
    assert {info.id for info in await app.runs(**filters, oldest_first=True)} == found
    return found


async def test_runs_are_found_by_attributes_parents_and_ids(app: Stepfast, make_app: MakeApp) -> None:
    flow = labelled(app)
    many = await app.start_many("child", [1, 2, 3], attributes={"customer": "c-8"}, tags=["bulk"])
    run = await drained(app, flow, 1, attributes=GIVEN)
    first, last = await run.this.info(), await run.info()
    assert first.attributes == {**GIVEN, "region": "eu", "cents": 1001}
    assert last.attributes == {**GIVEN, "region": "eu", "cents": 1000}, "what it continues as has them too"
    assert await ids(app, attributes=GIVEN | {"cents": 1001}) == {first.id}
    assert await ids(app, attributes={"customer": "c-7"}) == {first.id, last.id}
    assert await ids(app, attributes={"due": NOON.astimezone(timezone(timedelta(hours=2))), "cents": 1000.0}) == {
        last.id
    }
    assert await ids(app, attributes={"customer": "c-7"}, status="failed") == set()
    assert await ids(app, attributes={"customer": "c-8"}, tag="bulk", status="completed") == {each.id for each in many}
    assert await ids(app, attributes={"unheard of": 1}) == set()
    children = await ids(app, attributes={"customer": "child"})
    assert children == await ids(app, parent=last.id) == await ids(app, parent=last.id, id_prefix=last.id[:9])
    assert await ids(app, id_prefix=run.id[:8], workflow="labelled") >= {first.id, last.id}
    pages = [info.id for info in await app.runs(attributes={"customer": "c-8"}, limit=2)]
    pages += [info.id for info in await app.runs(attributes={"customer": "c-8"}, limit=2, after=pages[-1])]
    assert pages == sorted((each.id for each in many), reverse=True)
    again = await run.retry(from_start=True)
    assert (await again.info()).attributes == first.attributes
    other = make_app()
    await other.start("child", 1, attributes={"customer": "c-9"})
    assert len(await ids(other, attributes={"customer": "c-9"})) == 1
    await app.get(many[0].id).delete()
    assert await count(app, "run_attributes", many[0]) == 0
    assert await ids(app, attributes={"customer": "c-8"}) == {each.id for each in many[1:]}


@ON_SQLITE
async def test_set_attributes_is_recorded_once(app: Stepfast) -> None:
    labelled(app)
    await crash_everywhere(app, "labelled", 0)

    @app.workflow
    def plain(ctx: SyncContext) -> None:
        ctx.set_attributes(region="us")

    run = await drained(app, plain)
    assert (await run.info()).attributes == {"region": "us"}
    assert [(step.name, step.status) for step in await run.steps()] == [("attributes", "completed")]


REFUSED: list[tuple[Any, str]] = [
    ({"cents": "many"}, "'cents' is a number in this database, and was given a text"),
    ({"customer": True}, "'customer' is a text"),
    ({"new": None}, "'new' must be a text, a number, a bool or a datetime with a time zone, not None"),
    ({"new": ["a"]}, "not list"),
    ({"new": "x" * 201}, "'new' has 201 characters; at most 200"),
    ({"new": "\ud800"}, "'new' has a lone surrogate"),
    ({"new": "a\0b"}, "'new' has a NUL character"),
    ({"new": float("inf")}, "'new' must be a finite number"),
    ({"new": 2**63}, "'new' must be a number of at most 64 bits"),
    ({"new": datetime(2026, 1, 1)}, "'new' must be a time with a time zone"),
    ({f"a{n}": n for n in range(33)}, "at most 32 attributes"),
    (["new"], "must be a dict"),
]


@ON_SQLITE
async def test_what_cannot_be_an_attribute_is_refused_by_name(app: Stepfast, make_app: MakeApp) -> None:
    task(app, "child")
    await app.start("child", 1, attributes=GIVEN)
    for given, why in REFUSED:
        for other in (app, make_app()):
            with pytest.raises(InvalidInput, match=why):
                await other.start("child", 1, attributes=given)
            if isinstance(given, dict):
                with pytest.raises(InvalidInput, match=why):
                    await other.runs(attributes=given)
    with pytest.raises(ConfigurationError, match="an attribute must not be empty"):
        await app.start("child", 1, attributes={"": 1})
    with pytest.raises(ConfigurationError, match="beginning of an id"):
        await app.runs(id_prefix="xyz")
    assert await app.count() == 1


@ON_SQLITE
async def test_a_run_is_told_what_it_cannot_set_alike_on_replay(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(max_attributes=3, max_attribute_names=4))

    @app.workflow
    async def odd(ctx: Context, given: dict[str, Any]) -> str:
        try:
            await ctx.set_attributes(**given)
        except Exception as error:
            await ctx.sleep(0)
            return f"{type(error).__name__}: {error}"
        return "set"

    await app.start("odd", {}, attributes={"a": 1, "b": "x"})
    assert "'a' is a number" in await drained_result(app, odd, {"a": "x"})
    assert "at most 4 are kept" in await drained_result(app, odd, {"c": 1, "d": 1, "e": 1})
    assert await drained_result(app, odd, {"a": 1, "b": "y"}, attributes={"c": 1}) == "set"
    assert "at most 3 attributes" in await drained_result(app, odd, {"a": 1, "b": "y"}, attributes={"c": 1, "d": True})
    assert "ContextMisuse" in await drained_result(app, odd, {})


async def drained_result(app: Stepfast, flow: Any, given: Any, **options: Any) -> str:
    return str(await (await drained(app, flow, given, **options)).result())


@ON_BOTH
async def test_a_hundred_writers_agree_on_the_type_of_a_name(make_app: MakeApp) -> None:
    apps = [make_app() for _ in range(4)]
    for app in apps:
        task(app, "child")
    values: list[Any] = [1, "one", True, NOON]

    async def write(number: int) -> Any:
        value = values[number % 4]
        await apps[number % 4].start("child", number, attributes={f"of {number // 20}": value})
        return value

    done = await asyncio.gather(*(write(number) for number in range(100)), return_exceptions=True)
    for name in range(5):
        part = done[name * 20 : name * 20 + 20]
        written = [value for value in part if not isinstance(value, InvalidInput)]
        assert len(written) == 5
        assert len({type(value) for value in written}) == 1
        assert len(await ids(apps[0], attributes={f"of {name}": written[0]})) == 5


@ON_BOTH
async def test_a_start_with_attributes_joins_a_transaction(app: Stepfast, url: str) -> None:
    task(app, "child")
    caller = Caller("sqlite3" if url.startswith("sqlite") else "asyncpg", app)
    async with caller.transaction() as connection:
        run = await app.start("child", 1, attributes={"customer": "c-1"}, connection=connection)
    assert await ids(app, attributes={"customer": "c-1"}) == {run.id}
    with pytest.raises(InvalidInput, match="'customer' is a text"):
        async with caller.transaction() as connection:
            await app.start("child", 1, attributes={"customer": 1}, connection=connection)
    assert await app.count() == 1
