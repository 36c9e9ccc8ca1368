"""A lab in place of the application, for the whole process: handlers of a web application reach it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from stepfast import Context, Stepfast
from stepfast.testing import Lab


async def test_handlers_that_use_the_application_of_their_module_reach_the_lab(tmp_path: Path) -> None:
    file = tmp_path / "real.db"
    app, api = Stepfast(f"sqlite:///{file}"), FastAPI()

    @app.workflow
    async def order(ctx: Context, cents: int) -> int:
        await ctx.sleep(3600)
        return cents

    @api.post("/orders/{cents}")
    async def place(cents: int) -> dict[str, Any]:
        return {"run": (await app.start(order, cents)).id}

    @api.get("/orders/{run_id}")
    def look(run_id: str) -> dict[str, Any]:  # in a thread
        return {"status": app.sync.get(run_id).status()}

    async with Lab(app) as lab, httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
        with lab.in_place():
            run_id = (await client.post("/orders/5")).json()["run"]
            await lab.settle()
            assert (await client.get(f"/orders/{run_id}")).json() == {"status": "waiting"}
            assert await asyncio.create_task(app.get(run_id).status()) == "waiting"
            await lab.advance(3601)
            assert (await client.get(f"/orders/{run_id}")).json() == {"status": "completed"}
        assert not file.exists()
        assert await app.runs() == []  # behind the block it is the application itself again
    assert file.exists()
    await app.close()
