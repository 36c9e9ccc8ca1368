"""One application with a few runs, and its console, for a whole file of tests: nothing here waits for a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from stepfast import Context, Settings, Stepfast, step

TOKEN = "a token of the tests"
OWN = {"Sec-Fetch-Site": "same-origin"}
JSON = {"Accept": "application/json"}

Browser = Callable[..., httpx.AsyncClient]


def browse(
    served: Any, *, token: str | None = TOKEN, base: str = "http://testserver", **options: Any
) -> httpx.AsyncClient:
    """A client of a console, let in unless there is no token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url=base, headers=headers, **options)


def shop(url: str) -> Stepfast:
    """An application whose runs come to every kind of end."""
    app = Stepfast(url, settings=Settings(moment=0))

    def unpack(packed: Any, what: str) -> None:
        pass

    @step(compensate=unpack)
    def pack(what: str) -> dict[str, Any]:
        return {"packed": what, "cents": 12345678901234567890}

    @app.task(max_attempts=1)
    async def breaks(what: str) -> None:
        raise ValueError(f"no {what} today")

    @app.workflow
    async def order(ctx: Context, what: str) -> str:
        await ctx.step(pack, what)
        await ctx.set("progress", {"done": 0.5})
        answer = await ctx.wait_signal("approved", type=bool)
        return f"{what}: {answer}"

    @app.workflow
    async def parent(ctx: Context, what: str) -> str:
        child = await ctx.start(order, what)
        return await child.result()

    return app
