"""A worker inside a web application: it lives as long as the application does.

The two request handlers and the lifespan are what you would write for FastAPI, Starlette or Litestar. FastAPI itself is
not needed here: without it, the script plays three requests by calling the handlers. With it, the console is at
/stepfast, for whoever has signed in:

    uvicorn --app-dir examples fastapi_app:api
    python examples/fastapi_app.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from stepfast import Context, RunNotFound, Stepfast

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))
OPERATORS = {"ada", "grace"}
"""Who may act in the console; everybody else who signs in may look."""


async def resize(picture: str, width: int) -> str:
    """Work that takes too long for a request."""
    await asyncio.sleep(0.05)
    return f"{picture}@{width}"


@app.workflow
async def thumbnails(ctx: Context, picture: str) -> list[str]:
    """Three sizes, one record each."""
    return [await ctx.step(resize, picture, width) for width in (64, 256, 1024)]


@contextlib.asynccontextmanager
async def lifespan(_api: Any) -> AsyncIterator[None]:
    """Connect, work while the application serves, and leave in good order."""
    async with app, app.worker(concurrency=20):
        yield


# --- request handlers -------------------------------------------------------------------------------------------


async def upload(picture: str) -> dict[str, str]:
    """POST /pictures/{picture}: answers as soon as the run is committed. The key makes a repeated request harmless."""
    run = await app.start(thumbnails, picture, key=picture)
    return {"run": run.id}


async def look(run_id: str) -> dict[str, Any]:
    """GET /runs/{run_id}: how far it is."""
    try:
        info = await app.get(run_id).info()
    except RunNotFound:
        return {"status": "unknown"}
    return {"status": info.status, "result": info.output}


def who(request: Any) -> tuple[str, str] | None:
    """Whom the console lets in, by name and role, "view" or "operate". Here by a header that a proxy sets, and takes
    away from what clients send; in your application by its own sessions."""
    name = request.headers.get("x-forwarded-user")
    return None if name is None else (name, "operate" if name in OPERATORS else "view")


try:
    from fastapi import FastAPI
except ImportError:
    pass
else:
    from stepfast.console import console

    api = FastAPI(lifespan=lifespan)
    api.mount("/stepfast", console(app, auth=who))
    api.post("/pictures/{picture}")(upload)
    api.get("/runs/{run_id}")(look)


async def main() -> None:
    """What a server would do: enter the lifespan, answer requests, leave it at shutdown."""
    async with lifespan(None):
        first = await upload("cat.png")
        repeated = await upload("cat.png")
        print("upload:", first, "the same run again:", first == repeated)
        print("at once:", (await look(first["run"]))["status"])
        await app.get(first["run"]).result(timeout=30)
        print("later:", await look(first["run"]))


if __name__ == "__main__":
    asyncio.run(main())
