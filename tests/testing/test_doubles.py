"""What stands in for code in a lab: for methods, for children, under mocks; and what is refused instead of ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from stepfast import ConfigurationError, Context, DagContext, Stepfast, SyncContext, step
from stepfast.testing import Lab

app = Stepfast("sqlite:///must-not-be-made.db")
graph = app.dag("graph")


class Bank:
    """Services are often objects, and their methods steps."""

    async def charge(self, cents: int) -> str:
        raise AssertionError("the real bank")

    def refuse(self, cents: int) -> str:
        raise AssertionError("the real bank")


bank, other_bank = Bank(), Bank()


@graph.step
async def only(ctx: DagContext) -> None: ...


@step
async def pack(name: str) -> str:
    return f"packed {name}"


@app.workflow
async def paying(ctx: Context, cents: int) -> list[str]:
    return [await ctx.step(bank.charge, cents), await ctx.step("refuse it", bank.refuse, cents)]


@app.workflow
async def child(ctx: Context, name: str) -> str:
    return await ctx.step(pack, name)


@app.workflow
def plain_child(ctx: SyncContext, name: str) -> str:
    return "plain"


@app.workflow
async def parent(ctx: Context, name: str) -> list[str]:
    return [await ctx.call(child, name), await ctx.call(plain_child, name)]


async def test_methods_of_an_object_are_replaced() -> None:
    async with Lab(app) as lab:
        lab.replace(bank.charge, AsyncMock(return_value="charged"))
        lab.replace(bank.refuse, Mock(return_value="refused"))
        lab.replace(other_bank.charge, Mock(side_effect=AssertionError("another bank")))
        run = await lab.start(paying, 5)
        assert await run.result() == ["charged", "refused"]
        assert (lab.calls(bank.charge), lab.calls("refuse it")) == (1, 1)


async def test_another_function_stands_in_for_a_child() -> None:
    async def other(ctx: Context, name: str) -> str:
        await ctx.sleep(60)
        return f"other {name}"

    async with Lab(app) as lab:
        lab.replace(child, other)
        lab.replace(plain_child, lambda ctx, name: "other plain")
        run = await lab.start(parent, "o-1")
        assert lab.calls(pack) == 0
        await lab.advance(60)
        assert await run.result() == ["other o-1", "other plain"]


async def test_what_was_said_last_holds() -> None:
    async with Lab(app) as lab:
        for what, said in (("pack", "by name"), (pack, "by function"), ("pack", "by name again")):
            lab.replace(what, Mock(return_value=said))
            assert await (await lab.start(child, "o-1")).result() == said


async def test_what_would_do_nothing_is_refused() -> None:
    async with Lab(app) as lab:
        with pytest.raises(ConfigurationError, match="replace the steps of dag 'graph'"):
            lab.replace(graph, lambda ctx: None)
        with pytest.raises(ConfigurationError, match=r"lab\.fail: 'child' is a workflow"):
            lab.fail(child)
        with pytest.raises(ConfigurationError, match=r"lab\.calls: 'child' is a workflow"):
            lab.calls(child)
        wrong: Any = "no error at all"
        with pytest.raises(ConfigurationError, match=r"lab\.fail: error must be an exception"):
            lab.fail(pack, error=wrong)
    with pytest.raises(ConfigurationError, match="now must be a datetime"):
        Lab(app, now="today")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must say its time zone"):
        Lab(app, now=datetime(2026, 1, 1))
