"""Yesterday's dag run against today's graph: which steps would be done, without doing any."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepfast import ConfigurationError, Dag, DagContext, Stepfast
from stepfast.testing import Lab

CALLED: list[str] = []


def graph(change: str = "", *, app: Stepfast | None = None) -> Stepfast:
    """The same graph, as it was and as it became."""
    app = app or Stepfast("sqlite:///must-not-be-made.db")
    fulfil = app.dag("fulfil")
    limit = 100 if change == "condition" else 10

    @fulfil.step(retries=0)
    async def price(ctx: DagContext) -> int:
        CALLED.append("price")
        if ctx.input["cents"] < 0:
            raise ValueError("no price")
        return int(ctx.input["cents"])

    async def insure(ctx: DagContext) -> str:
        CALLED.append("insure")
        return "insured"

    def dear(ctx: Any) -> bool:
        if change == "raises":
            raise LookupError("no such thing")
        return bool(ctx.outputs["price"] > limit)

    fulfil.step(after=["price"], when=dear)(insure)
    if change != "removed":
        _ship(fulfil, change)
    fulfil.approval("signed", after=["insure"] if change == "removed" else ["ship"])
    if change == "added":
        fulfil.remote("thank", after=["signed"])
    return app


def _ship(fulfil: Dag, change: str) -> None:
    caught = {} if change == "uncaught" else {"catch": {OSError: "repair"}}

    @fulfil.step(after=["price"], retries=0, **caught)  # type: ignore[call-overload,untyped-decorator,unused-ignore]
    async def ship(ctx: DagContext) -> str:
        CALLED.append("ship")
        if ctx.input.get("wreck"):
            raise ConnectionError("lost at sea")
        return "shipped"

    @fulfil.step(after=["ship"] if change == "uncaught" else [], when=lambda ctx: change != "uncaught")
    async def repair(ctx: DagContext) -> str:
        CALLED.append("repair")
        return "repaired"


async def exported(signed: bool = True, **given: Any) -> Any:
    async with Lab(graph()) as lab:
        run = await lab.start("fulfil", {"cents": 50, **given})
        if signed:
            await run.signal("signed", True)
            await lab.settle()
        text = json.dumps(await run.export())
    CALLED.clear()
    return text


async def replayed(text: str, change: str = "") -> tuple[str, str]:
    found = await graph(change).replay(text)
    assert CALLED == [], "the functions of steps are work, and are not called"
    return found.verdict, found.detail


async def test_the_graph_that_made_a_run_fits_it() -> None:
    assert await replayed(await exported()) == ("fits", "the same steps would be done")
    assert await replayed(await exported(cents=5)) == ("fits", "the same steps would be done")
    verdict, detail = await replayed(await exported(signed=False))
    assert verdict == "fits"
    assert "goes on with step 'signed'" in detail
    assert (await replayed(await exported(signed=False, cents=-1)))[0] == "fits"
    assert (await replayed(await exported(signed=False, wreck=True)))[0] == "fits"


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ("condition", {}, "step 'insure' was done, but now its condition says no"),
        ("raises", {}, "the condition of step 'insure' now raises LookupError: no such thing"),
        ("added", {}, "the run had completed, but now step 'thank' would be done"),
        ("removed", {}, "step 'ship' was done, but is not in this code"),
        ("uncaught", {"wreck": True}, "step 'ship' failed with ConnectionError, and step 'repair' followed"),
    ],
)
async def test_another_graph_diverges_from_it(change: str, given: dict[str, Any], said: str) -> None:
    verdict, detail = await replayed(await exported(signed="wreck" not in given, **given), change)
    assert verdict == "diverges"
    assert said in detail


async def test_a_run_under_way_keeps_its_graph() -> None:
    under_way = await exported(signed=False)
    assert (await replayed(under_way, "added"))[0] == "fits"
    assert (await replayed(under_way, "removed"))[0] == "fits"  # what is gone was done
    assert "now its condition says no" in (await replayed(under_way, "condition"))[1]
    other = Stepfast("sqlite://")
    other.dag("fulfil").approval("other")
    found = await other.replay(under_way)
    assert (found.verdict, "'signed'" in found.detail) == ("diverges", True)


async def test_a_step_of_a_dag_run_is_exported_with_its_run() -> None:
    async with Lab(graph()) as lab:
        run = await lab.start("fulfil", {"cents": 50})
        child = next(step.child for step in await run.steps() if step.name == "price")
        assert child is not None
        with pytest.raises(ConfigurationError, match=f"a step of dag run {run.id}: export that"):
            await lab.app.get(child).export()


async def test_a_name_that_is_no_dag_any_more() -> None:
    app = Stepfast("sqlite://")

    @app.task(name="fulfil")
    async def fulfil(given: Any) -> None: ...

    found = await app.replay(await exported())
    assert (found.verdict, found.detail) == ("diverges", "'fulfil' was a dag, and is a task in this code")
