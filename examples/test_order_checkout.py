"""The tests of ``order_checkout.py``, as a suite of one's own would have them: no database, no waiting.

pytest examples/test_order_checkout.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from order_checkout import Order, app, charge, checkout, payments, ship

from stepfast import RunFailed
from stepfast.testing import crash_everywhere

TEAPOT = Order("o-1", "teapot", 4900)


async def receipt(order: Order, key: str) -> str:
    """Stands in for the payment service."""
    return f"receipt {order.id}"


@pytest.mark.asyncio
async def test_an_order_is_paid_for_and_shipped(stepfast_lab: Any) -> None:
    """Nobody is charged: another function stands in for the step."""
    async with stepfast_lab(app) as lab:
        lab.replace(charge, receipt)
        run = await lab.start(checkout, TEAPOT)
        assert await run.result() == "teapot is on its way from shelf 7, teapot (receipt o-1)"
        assert lab.calls(charge) == 1
        assert payments.charges == {}


@pytest.mark.asyncio
async def test_a_payment_service_that_sleeps_is_asked_again(stepfast_lab: Any) -> None:
    """The retries come when their time has come, and that takes no real time."""
    async with stepfast_lab(app) as lab:
        lab.replace(charge, receipt)
        lab.fail(charge, times=5, error=ConnectionError("it sleeps"))
        run = await lab.start(checkout, TEAPOT)
        assert (await run.info()).waiting_for == "retry"
        await lab.advance(timedelta(minutes=5))
        assert "receipt o-1" in await run.result()
        assert lab.calls(charge) == 6


@pytest.mark.asyncio
async def test_what_was_reserved_is_released_when_nobody_pays(stepfast_lab: Any) -> None:
    """After the last retry the way back is taken."""
    async with stepfast_lab(app) as lab:
        lab.fail(charge, times=6)
        run = await lab.start(checkout, TEAPOT)
        await lab.advance(timedelta(hours=1))
        with pytest.raises(RunFailed):
            await run.result()
        assert (lab.calls("release"), lab.calls(ship)) == (1, 0)


@pytest.mark.asyncio
async def test_a_worker_that_dies_charges_nobody_twice(stepfast_lab: Any) -> None:
    """The step is called again, with the same key."""
    keys = []
    async with stepfast_lab(app) as lab:

        async def die_once(order: Order, key: str) -> str:
            keys.append(key)
            if len(keys) == 1:
                await lab.crash()
            return await receipt(order, key)

        lab.replace(charge, die_once)
        run = await lab.start(checkout, TEAPOT)
        assert "receipt o-1" in await run.result()
        assert len(keys) == 2
        assert len(set(keys)) == 1


@pytest.mark.asyncio
async def test_it_ends_alike_wherever_its_worker_dies() -> None:
    """A run for every commit, cut before and after it."""
    report = await crash_everywhere(app, checkout, TEAPOT, replace={charge: receipt})
    assert report.status == "completed"
    assert report.crashes >= report.commits
