"""``ctx.remote``: a step that a worker elsewhere serves."""

from __future__ import annotations

from typing import Any

from stepfast import Context
from tests.remote_steps.conftest import Home


async def test_a_remote_step_is_served_elsewhere(home: Home) -> None:
    @home.app.workflow
    async def shop(ctx: Context, order: dict[str, Any]) -> Any:
        return await ctx.remote("echo", {"order": order})

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        return {"seen": input}

    run = await home.app.start(shop, {"id": 1})
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == {"seen": {"order": {"id": 1}}}
        await home.nothing_is_left()
