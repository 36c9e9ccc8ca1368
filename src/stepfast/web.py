"""For Starlette and FastAPI applications: streams of runs as server-sent events, and a lifespan with a worker.

Mount them where you like: ``api.mount("/streams", Router(routes=stepfast.web.streams(app, authorize=may_read)))``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import msgspec

from .app import Stepfast
from .engine.options import WorkerKeywords
from .errors import ConfigurationError, InvalidInput, PayloadError, RunNotFound
from .streams import StreamItem, check_offset

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as missing:  # pragma: no cover - tried by the tests of packaging, in a process of its own
    raise ModuleNotFoundError("stepfast.web needs Starlette: pip install 'stepfast[web]'") from missing

Authorize = Callable[[Request, str], bool | Awaitable[bool]]

_KEEP_ALIVE = 15.0
"""Seconds after which a comment is sent, so that no proxy takes a quiet stream for a dead one."""


def streams(app: Stepfast, *, authorize: Authorize, keep_alive: float = _KEEP_ALIVE) -> list[Route]:
    """Routes that serve streams: ``GET /{run}/{stream}`` as ``text/event-stream``.

    Each item is an event whose data is its value as JSON and whose id is its offset, so that a browser that reconnects
    (``Last-Event-ID``) reads on where it was. The first item after a step was called again has the event type
    ``restarted``, all others ``message``; the event ``end`` says that nothing more comes.
    ``authorize(request, run_id)`` decides on each request, async or not.
    """
    if not callable(authorize):
        raise ConfigurationError(
            "stepfast.web.streams needs authorize=, a function of the request and the id of the run"
        )

    async def serve(request: Request) -> Response:
        run_id, name = request.path_params["run"], request.path_params["stream"]
        allowed = authorize(request, run_id)
        if not (await allowed if inspect.isawaitable(allowed) else allowed):
            return JSONResponse({"error": "not allowed"}, 403)
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        try:
            check_offset(after)
            run = app.get(run_id)
            await run.status()
        except (RunNotFound, InvalidInput) as error:
            return JSONResponse({"error": str(error)}, 404 if isinstance(error, RunNotFound) else 400)
        events = _events(run.stream(name, after=after), keep_alive)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    return [Route("/{run}/{stream}", serve, methods=["GET"], name="stepfast-stream")]


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    app: Stepfast,
    *,
    inner: Lifespan | None = None,
    worker: bool = True,
    queues: Sequence[str] | None = None,
    **options: Unpack[WorkerKeywords],
) -> Lifespan:
    """A lifespan that connects the application and works, for as long as the web application lasts:
    ``FastAPI(lifespan=stepfast.web.lifespan(app, concurrency=20))``.

    ``inner``: the lifespan that the web application has already. It is entered last and left first, so that it can use
    the application, and its state is passed on. ``worker=False`` only connects: runs are executed elsewhere. Other
    options are those of ``app.worker``.
    """
    if not worker and (queues is not None or options):
        given = next(iter(options), "queues")
        raise ConfigurationError(f"stepfast.web.lifespan(worker=False) takes no {given}=: it has no worker")

    @contextlib.asynccontextmanager
    async def entered(web: Any) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            if worker:
                await stack.enter_async_context(app.worker(queues, **options))
            yield None if inner is None else await stack.enter_async_context(inner(web))

    return entered


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def _events(items: AsyncGenerator[StreamItem[Any], None], keep_alive: float) -> AsyncIterator[str]:
    """The stream as events. A comment goes out while nothing else does."""
    upcoming = asyncio.ensure_future(_next(items))
    try:
        while True:
            done, _ = await asyncio.wait((upcoming,), timeout=keep_alive)
            if not done:
                yield ": waiting\n\n"
                continue
            item = upcoming.result()
            if item is None:
                yield "event: end\ndata: null\n\n"
                return
            kind = "event: restarted\n" if item.restarted else ""
            yield f"{kind}id: {item.offset}\ndata: {_json(item.value)}\n\n"
            upcoming = asyncio.ensure_future(_next(items))
    except (RunNotFound, PayloadError) as error:
        yield f"event: error\ndata: {_json(str(error))}\n\n"
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        await items.aclose()


async def _next(items: AsyncGenerator[StreamItem[Any], None]) -> StreamItem[Any] | None:
    return await anext(items, None)
