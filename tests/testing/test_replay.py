"""Yesterday's runs and dag runs against today's code: exported as JSON, and replayed without their database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Dag, DagContext, Stepfast, step
from stepfast.testing import Lab


@step
async def price(item: str) -> int:
    return len(item)


@step
async def pay(cents: int) -> str:
    return f"paid {cents}"


def version(number: int) -> Stepfast:
    """The same workflow, as it was and as it became."""
    app = Stepfast("sqlite:///must-not-be-made.db")

    async def order(ctx: Context, item: str) -> str:
        cents = await ctx.step(price, item)
        if number == 2:
            await ctx.step("discount", pay, 1)
        drawn = ctx.random()
        await ctx.sleep(3600)
        receipt = await ctx.step(pay, cents)
        if number == 3:
            await ctx.step("thank", pay, 0)
        return f"{receipt} {drawn}" if number != 4 else receipt

    app.workflow(order)
    return app


async def exported(*, finished: bool) -> Any:
    async with Lab(version(1)) as lab:
        run = await lab.start("order", "teapot")
        if finished:
            await lab.advance(3600)
            assert await run.status() == "completed"
        return json.loads(json.dumps(await run.export()))


async def test_the_code_that_made_a_run_fits_it() -> None:
    done, waiting = await exported(finished=True), await exported(finished=False)
    app = version(1)
    found = await app.replay(done)
    assert (found.verdict, found.detail, found.id) == ("fits", "it would return the same result", done["run"]["id"])
    assert (await app.replay(json.dumps(waiting))).verdict == "fits"


@pytest.mark.parametrize(
    ("number", "said"),
    [(2, "'discount'"), (3, r"had completed, but now the code goes on with step 'thank'"), (4, "had returned")],
)
async def test_other_code_diverges_from_it(number: int, said: str) -> None:
    found = await version(number).replay(await exported(finished=True))
    assert found.verdict == "diverges"
    assert said in found.detail


async def test_what_is_no_export_is_refused() -> None:
    app = Stepfast("sqlite://")
    for wrong in ("[]", "{", {"stepfast_export": 1}, 3):
        with pytest.raises(ConfigurationError, match="no export of a run"):
            await app.replay(wrong)
    with pytest.raises(ConfigurationError, match="form 2"):
        await app.replay({"stepfast_export": 2})
    assert (await app.replay(await exported(finished=True))).verdict == "unknown"


# -- dag runs


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


async def exported_dag(signed: bool = True, **given: Any) -> Any:
    async with Lab(graph()) as lab:
        run = await lab.start("fulfil", {"cents": 50, **given})
        if signed:
            await run.signal("signed", True)
            await lab.settle()
        text = json.dumps(await run.export())
    CALLED.clear()
    return text


async def replayed_dag(text: str, change: str = "") -> tuple[str, str]:
    found = await graph(change).replay(text)
    assert CALLED == [], "the functions of steps are work, and are not called"
    return found.verdict, found.detail


async def test_the_graph_that_made_a_run_fits_it() -> None:
    assert await replayed_dag(await exported_dag()) == ("fits", "the same steps would be done")
    assert await replayed_dag(await exported_dag(cents=5)) == ("fits", "the same steps would be done")
    verdict, detail = await replayed_dag(await exported_dag(signed=False))
    assert verdict == "fits"
    assert "goes on with step 'signed'" in detail
    assert (await replayed_dag(await exported_dag(signed=False, cents=-1)))[0] == "fits"
    assert (await replayed_dag(await exported_dag(signed=False, wreck=True)))[0] == "fits"


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
    verdict, detail = await replayed_dag(await exported_dag(signed="wreck" not in given, **given), change)
    assert verdict == "diverges"
    assert said in detail


async def test_a_run_under_way_keeps_its_graph() -> None:
    under_way = await exported_dag(signed=False)
    assert (await replayed_dag(under_way, "added"))[0] == "fits"
    assert (await replayed_dag(under_way, "removed"))[0] == "fits"  # what is gone was done
    assert "now its condition says no" in (await replayed_dag(under_way, "condition"))[1]
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

    found = await app.replay(await exported_dag())
    assert (found.verdict, found.detail) == ("diverges", "'fulfil' was a dag, and is a task in this code")
