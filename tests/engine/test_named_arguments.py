"""The activity log tells arguments by the names of the parameters, in Python and in the views."""

from __future__ import annotations

import functools
import json
from typing import Any

from stepfast import Context, Stepfast
from stepfast.engine.function_spec import by_name
from tests.engine.conftest import ON_BOTH
from tests.support.engine import drained
from tests.support.waiting import rows_of


@ON_BOTH
async def test_arguments_have_names_in_the_log_and_in_the_views(app: Stepfast) -> None:
    async def fetch(url: str, *others: str, depth: int = 1) -> str:
        return url

    def book(connection: Any, order: str) -> None:
        pass

    async def report(ctx: Any, rows: int) -> int:
        ctx.progress("counting", {"rows": rows})
        return rows

    @app.workflow
    async def crawl(ctx: Context) -> None:
        await ctx.step(fetch, "a", "b", "c", depth=2)
        await ctx.transaction(book, "o-1")
        await ctx.step(report, ctx, 3)
        await ctx.set("done", {"pages": 3})

    run = await drained(app, crawl)
    assert [call.parameters for call in await run.activity()] == [
        {"url": "a", "others": ["b", "c"], "depth": 2}, {"order": "o-1"}, {"rows": 3},
    ]  # fmt: skip
    async with rows_of(app) as rows:
        for view in ("activity_readable", "steps_readable"):
            found = await rows.fetch(f"SELECT parameters FROM [{view}] ORDER BY position")
            assert json.loads(found[0][0])["url"] == "a", view
        [(value, key)] = await rows.fetch("SELECT value, key FROM [values_readable]")
        assert (json.loads(value), key) == ({"pages": 3}, "done")
        progress = await rows.fetch("SELECT name, detail, data FROM [progress_readable]")
        assert [(name, detail, json.loads(data)) for name, detail, data in progress] in (
            [], [("report", "counting", {"rows": 3})],
        )  # fmt: skip


def test_names_are_found_for_whatever_can_be_called() -> None:
    class Mailer:
        def send(self, to: str) -> None: ...

        def __call__(self, to: str) -> None: ...

    def plain(a: int, /, **more: int) -> None: ...

    assert by_name(Mailer().send, ("x",), {}) == {"to": "x"}
    assert by_name(Mailer(), ("x",), {}) == {"to": "x"}
    assert by_name(functools.partial(Mailer().send), (), {"to": "x"}) == {"to": "x"}
    assert by_name(plain, (1,), {"b": 2}) == {"a": 1, "b": 2}
    assert by_name(plain, (1,), {"a": 2}) == {"args": (1,), "kwargs": {"a": 2}}
    assert by_name(plain, (1, 2), {}) == {"a": 1, "args": (2,)}
    assert by_name(dict, (1,), {}) == {"args": (1,)}
