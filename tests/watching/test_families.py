"""Parents and children as a tree, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context
from stepfast.monitoring import search
from stepfast.monitoring.changes import onlooker
from stepfast.monitoring.search import family_of
from tests.engine.conftest import MakeApp

pytestmark = pytest.mark.enough_on("sqlite")


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
