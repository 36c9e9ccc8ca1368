"""Runs are found, counted and listed by bounded queries: by filters, texts, families and failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stepfast import Context, Stepfast, step
from stepfast.errors import InvalidInput
from stepfast.monitoring import search
from stepfast.monitoring.changes import forget_cached, glance_of, onlooker
from stepfast.monitoring.search import count_runs, family_of, find_runs, list_runs
from stepfast.store.answers import Alike
from tests.monitoring.conftest import MakeApp

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
async def app(make_app: MakeApp) -> Stepfast:
    made = make_app()

    @made.task()
    async def order(input: Any) -> None: ...

    @made.task()
    async def mail(input: Any) -> None: ...

    return made


async def test_a_list_goes_on_from_where_it_ended(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FAR", 4)
    runs = [await app.start("order", n) for n in range(6)]
    watching = onlooker(app)
    page = await list_runs(watching, {"limit": 3})
    assert [run.input for run in page.runs] == [5, 4, 3]
    assert (page.after, page.ended, page.back_to) == (runs[3].id, False, None)
    page = await list_runs(watching, {"limit": 3, "status": "completed"})
    assert (page.runs, page.ended, page.after) == ([], True, runs[2].id)
    assert page.back_to is not None
    page = await list_runs(watching, {"limit": 3, "after": page.after, "status": "completed"})
    assert page == ([], None, None, 0, False)
    oldest = await list_runs(watching, {"limit": 2, "oldest_first": True})
    assert [run.input for run in oldest.runs] == [0, 1]


async def test_a_text_is_found_in_inputs_page_by_page(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_PORTION", 2)
    for n in range(6):
        await app.start("order", {"who": f'Müller "{n % 2}"'})
    await app.start("mail", {"who": 'Müller "1"'})
    watching = onlooker(app)
    for text in ('Müller "1"', '\\"1\\"'):
        found = await list_runs(watching, {"limit": 2, "workflow": "order"}, text)
        assert [run.input["who"] for run in found.runs] == ['Müller "1"'] * 2
        assert (found.after, found.looked) == (found.runs[-1].id, 3)
        found = await list_runs(watching, {"limit": 2, "workflow": "order", "after": found.after}, text)
        assert (len(found.runs), found.looked, found.after) == (1, 3, None)
    monkeypatch.setattr(search, "SEARCHED", 2)
    found = await list_runs(watching, {"workflow": "order"}, "nowhere")
    assert (found.runs, found.looked, found.ended) == ([], 2, True)
    monkeypatch.setattr(search, "LARGEST", 3)
    assert (await list_runs(watching, {"workflow": "order"}, "nowhere")).too_large == 2


async def test_a_text_is_not_looked_for_in_what_passed_through_a_codec(make_app: MakeApp) -> None:
    class Codec:
        def encode(self, data: bytes, /) -> bytes:
            return data[::-1]

        def decode(self, data: bytes, /) -> bytes:
            return data[::-1]

    app = make_app(codec=Codec())
    app.task(name="order")(_nothing)
    await app.start("order", "secret")
    with pytest.raises(InvalidInput, match="stored through a codec"):
        await list_runs(onlooker(app), {}, "secret")


async def _nothing(input: str) -> None: ...


async def test_runs_are_counted_up_to_a_bound(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.start_many("order", list(range(6)))
    watching = onlooker(app)
    assert await count_runs(watching, {}) == (6, False)
    assert await count_runs(watching, {"workflow": "mail"}) == (0, False)
    monkeypatch.setattr(search, "COUNTED", 5)
    assert await count_runs(watching, {}) == (5, True)
    assert str(search.Counted(10_000, True)) == "10\u202f000+"
    monkeypatch.setattr(search, "FAR", 3)
    assert await count_runs(watching, {"reason": "timeout"}) == (0, True)


async def test_one_box_takes_ids_parts_of_ids_and_keys(app: Stepfast) -> None:
    first, second = await app.start("order", 1, key="cafe"), await app.start("mail", 2, key="o-1")
    third = await app.start("order", 3, key="o-1")
    watching = onlooker(app)

    async def found(text: str) -> list[str]:
        return sorted(run.id for run in await find_runs(watching, text))

    assert await found(first.id) == await found(f" {first.id.upper()} ") == [first.id]
    assert await found(first.id[:22]) == [first.id]
    assert await found(first.id[-12:]) == await found(first.id[-6:].upper()) == [first.id]
    assert await found("o-1") == sorted([second.id, third.id])
    assert await found("cafe") == [first.id]  # no id is like that, so it is a key
    assert await found("nothing") == await found("") == []


async def test_what_is_read_is_shared_until_somebody_changes_something(app: Stepfast) -> None:
    run = await app.start("order", 1)
    watching = onlooker(app)
    glance = await glance_of(watching)
    assert await glance_of(app) is glance
    tabs = await asyncio.gather(*(watching.get(run.id).info() for _ in range(10)))
    assert {tab.status for tab in tabs} == {"queued"}
    assert glance.remembered.asked == 1
    await run.cancel()
    await forget_cached(app)
    assert await watching.get(run.id).status() == "cancelled"


async def test_a_family_is_told_up_and_down_and_where_it_was_cut(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()

    @app.workflow()
    async def grow(ctx: Context, depth: int) -> None:
        for _ in range(3 if depth else 0):
            await ctx.start(grow, depth - 1)

    run: Any = await app.start(grow, 2)
    await app.drain()
    monkeypatch.setattr(search, "EACH", 2)
    family = await family_of(onlooker(app), run.id)
    assert (family.above, len(family.below), family.more) == ([], 2, True)
    child = family.below[0]
    assert (len(child.children), child.more, child.run.status) == (2, True, "completed")
    grandchild = child.children[0]
    assert (grandchild.children, grandchild.more) == ([], False)
    above = (await family_of(onlooker(app), grandchild.run.id)).above
    assert [each.id for each in above] == [child.run.id, run.id]
    monkeypatch.setattr(search, "DEEP", 1)
    family = await family_of(onlooker(app), run.id)
    assert [(member.children, member.more) for member in family.below] == [([], True)] * 2


HOUR = 3_600_000


async def test_runs_that_failed_alike_are_found_and_those_that_were_undone_are_not(make_app: MakeApp) -> None:
    app = make_app()

    @step(compensate=lambda output, given: None)
    def pack(given: str) -> str:
        return given

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, given: str) -> None:
        if given == "packed":
            await ctx.step(pack, given)
        await ctx.step("weigh", json.loads, given)

    @app.task(max_attempts=1)
    async def plain(given: str) -> None:
        raise ValueError(given)

    async with app:
        left = [await app.start(order, "left") for _ in range(2)]
        undone, other = await app.start(order, "packed"), await app.start(plain, "x")
        await app.drain()
        glance = await glance_of(app)
        groups = [Alike(*row[:4]) for row in await glance.failures(HOUR, 100)]
        assert sorted(groups) == [
            Alike("order", "code", "weigh", "json.decoder.JSONDecodeError"), Alike("plain", "code", None, "ValueError"),
        ]  # fmt: skip
        assert await glance.failed_alike(groups[groups.index(max(groups))], HOUR, 100) == [other.id]
        found = await glance.failed_alike(min(groups), HOUR, 100)
        assert found == sorted(run.id for run in left) and undone.id not in found
        assert await glance.failed_alike(Alike("order", "code", None, "json.decoder.JSONDecodeError"), HOUR, 100) == []
