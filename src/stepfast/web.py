"""For Starlette and FastAPI: streams of runs as server-sent events, callbacks, and a lifespan with a worker.

Mount them where you like: ``api.mount("/streams", Router(routes=stepfast.web.streams(app, authorize=may_read)))``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import msgspec

from .app import Stepfast
from .engine.options import WorkerKeywords
from .errors import (
    CallbackDone,
    CallbackNotFound,
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    PayloadError,
    RunNotFound,
)
from .model import status
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


def callbacks(app: Stepfast, *, max_body: int = 1_000_000, wrong_tokens: int | None = 20) -> list[Route]:
    """Routes for holders of tokens: ``POST /{token}`` with ``{"value": …}`` or ``{"error": "…"}`` ends a callback, and
    ``POST /{token}/beat`` notes a heartbeat. Who has the token needs no other right.

    200 says that it is done, now or before; 404 that no callback has the token, 410 that it has another outcome, or is
    over (``state`` says which), 422 that the value does not fit, and the token stays open. Bodies beyond ``max_body``
    bytes are refused, and clients that try more than ``wrong_tokens`` wrong tokens a minute; None: no limit.
    """
    attempts = WrongTokens(wrong_tokens)

    async def end(request: Request) -> Response:
        body = await _read_body(request, max_body)
        if body is None:
            return _refusal(413, f"the body has more than {max_body} bytes")
        try:
            given = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            given = None
        if not isinstance(given, dict) or given.keys() not in ({"value"}, {"error"}):
            return _refusal(400, 'the body must be JSON: {"value": …} or {"error": "…"}')
        token = request.path_params["token"]
        if "value" in given:
            return await answer(request, lambda: app.complete(token, given["value"]), status.COMPLETED)
        if not isinstance(given["error"], str) or not given["error"]:
            return _refusal(422, "the error must be a text that says why")
        return await answer(request, lambda: app.fail(token, given["error"]), status.FAILED)

    async def beat(request: Request) -> Response:
        return await answer(request, lambda: app.beat(request.path_params["token"]), status.OPEN)

    async def answer(request: Request, act: Callable[[], Awaitable[None]], state: str) -> Response:
        client = "" if request.client is None else request.client.host
        if (wait := attempts.wait(client)) > 0:
            return _refusal(429, "too many wrong tokens", {"retry-after": str(wait)})
        try:
            await act()
        except CallbackNotFound as error:
            attempts.note(client)
            return _refusal(404, str(error))
        except CallbackDone as done:
            return JSONResponse({"error": str(done), "state": done.state}, 410, _NO_STORE)
        except (InvalidInput, PayloadError) as error:
            return _refusal(422, str(error))
        except DatabaseUnavailable:
            return _refusal(503, "the database cannot be reached", {"retry-after": "5"})
        return JSONResponse({"state": state}, 200, _NO_STORE)

    return [
        Route("/{token}", end, methods=["POST"], name="stepfast-callback"),
        Route("/{token}/beat", beat, methods=["POST"], name="stepfast-callback-beat"),
    ]


_NO_STORE = {"cache-control": "no-store"}
_WINDOW = 60.0
_MOST_CLIENTS = 10_000


class WrongTokens:
    """How many wrong tokens each client has tried within a minute. Clients are told apart by their addresses; those of
    IPv6 by the network that one client usually has."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._tried: dict[str, tuple[float, int]] = {}
        """When the minute of a client began, and how many it has tried since; the oldest first."""

    def wait(self, client: str) -> int:
        """Seconds for which a client is to be refused; 0: it is not."""
        began, number = self._tried.get(_network(client), (0.0, 0))
        left = began + _WINDOW - time.monotonic()
        return math.ceil(left) if self._most is not None and number >= self._most and left > 0 else 0

    def note(self, client: str) -> None:
        """A client has tried a wrong token."""
        network, now = _network(client), time.monotonic()
        began, number = self._tried.get(network, (now, 0))
        if now - began >= _WINDOW:
            began, number = now, 0
            self._tried.pop(network, None)
        self._tried[network] = began, number + 1
        if len(self._tried) > _MOST_CLIENTS:
            del self._tried[next(iter(self._tried))]


def _network(client: str) -> str:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(getattr(address, "ipv4_mapped", None) or address)
    return str(ipaddress.ip_network((address, 64), strict=False))


async def _read_body(request: Request, most: int) -> bytes | None:
    """The body of a request; None, if it is longer than that."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def _refusal(code: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": why}, code, _NO_STORE | (headers or {}))


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
