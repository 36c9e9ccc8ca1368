"""Yesterday's run against today's code: exported as JSON, and replayed without the database it came from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Stepfast, step
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
