"""For Starlette and FastAPI: streams of runs as server-sent events, callbacks, CloudEvents, a lifespan, a dependency.

Mount them where you like: ``api.mount("/streams", Router(routes=stepfast.web.streams(app, authorize=may_read)))``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import inspect
import ipaddress
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeVar, Unpack, overload
from urllib.parse import quote, unquote

import msgspec

from .app import Stepfast
from .engine.events import Event
from .engine.options import StartKeywords, WorkerKeywords
from .engine.workflow import Workflow
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
from .run import Run
from .streams import StreamItem, check_offset

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as missing:  # pragma: no cover - tried by the tests of packaging, in a process of its own
    raise ModuleNotFoundError("stepfast.web needs Starlette: pip install 'stepfast[web]'") from missing

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

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
            link, _ = check_offset(after)
            run = app.get(run_id)
            await run.status()
            if link and await (await app.store()).link_of_chain(run.id, link) is None:  # a page would ask for ever
                raise RunNotFound(run.id, f": the offset {after!r} is of a run that is not there")
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


def events(
    app: Stepfast,
    *,
    secret: str | bytes | None = None,
    authorize: Authorize | None = None,
    max_body: int = 1_000_000,
) -> list[Route]:
    """A route that takes CloudEvents 1.0: ``POST /`` publishes them, in binary or structured mode, or as a batch.

    The type is the name of the event, the subject its key, the data its data; source and id together are its id, so
    that one that is sent again is the same event. With a ``secret`` each request has to be signed, as ``cloud_event``
    signs it; ``authorize(request, name)`` decides on each event, async or not. One of the two is needed.

    200 answers with the id of the event, or the ids of a batch; 400 says that the request holds no CloudEvent, 401 that
    the signature is wrong, 403 that the event is not allowed, 422 that it cannot be stored.
    """
    if secret is None and not callable(authorize):
        raise ConfigurationError("stepfast.web.events needs secret= or authorize=: it would be open to anyone")

    async def publish(request: Request) -> Response:
        body = await _read_body(request, max_body)
        if body is None:
            return _refusal(413, f"the body has more than {max_body} bytes")
        headers = {name: value for name, value in request.headers.items() if name.startswith("ce-")}
        if secret is not None and not hmac.compare_digest(
            request.headers.get(SIGNATURE, "").encode(), _signature(secret, headers, body).encode()
        ):
            return _refusal(401, "the signature is wrong")
        try:
            found, several = read_cloud_events(request.headers.get("content-type", ""), headers, body)
        except ValueError as error:
            return _refusal(400, str(error))
        for event in found:
            allowed = authorize is None or authorize(request, event.name)
            if not (await allowed if inspect.isawaitable(allowed) else allowed):
                return _refusal(403, "not allowed")
        try:
            ids = [await app.publish(event.name, event.data, key=event.key, id=event.id) for event in found]
        except (InvalidInput, PayloadError, ConfigurationError) as error:
            return _refusal(422, str(error))
        except DatabaseUnavailable:
            return _refusal(503, "the database cannot be reached", {"retry-after": "5"})
        return JSONResponse({"ids": ids} if several else {"id": ids[0]}, 200, _NO_STORE)

    return [Route("/", publish, methods=["POST"], name="stepfast-events")]


SIGNATURE = "stepfast-signature"
"""The header of the signature: ``sha256=`` and the HMAC, in hexadecimal digits."""
_STRUCTURED, _BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"


class CloudEvent(NamedTuple):
    """What is taken of a CloudEvent."""

    name: str
    id: str
    key: str | None
    data: Any


def cloud_event(
    event: Event[Any], *, source: str, binary: bool = False, secret: str | bytes | None = None
) -> tuple[dict[str, str], bytes]:
    """An event as a CloudEvent 1.0, to be sent by any client: the headers and the body of a POST. ``source`` says where
    it comes from, as a URI. With a ``secret`` it is signed: the HMAC (SHA-256) of the headers that begin with ``ce-``,
    in the order of their names, as lines ``name:value``, and the body."""
    attributes = {
        "specversion": "1.0", "type": event.name, "source": source, "id": event.id,
        "time": event.published_at.isoformat(), **({} if event.key is None else {"subject": event.key}),
    }  # fmt: skip
    if binary:
        named = {f"ce-{name}": quote(value, safe=_PLAIN) for name, value in attributes.items()}
        headers, body = {"content-type": "application/json", **named}, msgspec.json.encode(event.data)
    else:
        headers = {"content-type": _STRUCTURED}
        body = msgspec.json.encode({**attributes, "datacontenttype": "application/json", "data": event.data})
    if secret is not None:
        signed = {name: value for name, value in headers.items() if name.startswith("ce-")}
        headers[SIGNATURE] = _signature(secret, signed, body)
    return headers, body


_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that a header of a CloudEvent has as they are."""


def _signature(secret: str | bytes, headers: dict[str, str], body: bytes) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    return "sha256=" + hmac.new(key, lines.encode() + body, "sha256").hexdigest()


def read_cloud_events(content_type: str, headers: dict[str, str], body: bytes) -> tuple[list[CloudEvent], bool]:
    """The CloudEvents of a request, and whether they are a batch. ValueError says what is wrong."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _BATCH:
        batch = _decoded(body)
        if not isinstance(batch, list) or not batch:
            raise ValueError("a batch is a JSON list of CloudEvents")
        return [_structured(each) for each in batch], True
    if kind == _STRUCTURED:
        return [_structured(_decoded(body))], False
    if "ce-specversion" not in headers:
        raise ValueError(f"neither the content type {_STRUCTURED}, nor headers of a CloudEvent")
    given = {name.removeprefix("ce-"): unquote(value) for name, value in headers.items()}
    return [_with_data(given, _content(kind, body))], False


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ValueError("the body is not JSON") from None


def _content(kind: str, body: bytes) -> Any:
    """The data of a binary message: JSON, a text, or else its bytes in base64."""
    if not body:
        return None
    if kind in ("", "application/json") or kind.endswith("+json"):
        return _decoded(body)
    try:
        return body.decode() if kind.startswith("text/") else base64.b64encode(body).decode()
    except UnicodeDecodeError:
        raise ValueError("the text is not UTF-8") from None


def _structured(given: Any) -> CloudEvent:
    if not isinstance(given, dict):
        raise ValueError("a CloudEvent is a JSON object")
    return _with_data(given, given.get("data", given.get("data_base64")))


def _with_data(given: dict[str, Any], data: Any) -> CloudEvent:
    for name in ("specversion", "type", "source", "id"):
        if not isinstance(given.get(name), str) or not given[name]:
            raise ValueError(f"the CloudEvent has no {name}")
    if given["specversion"] != "1.0":
        raise ValueError(f"only CloudEvents of specversion 1.0 are taken, not {given['specversion']!r}")
    subject = given.get("subject")
    if subject is not None and not isinstance(subject, str):
        raise ValueError("the subject of a CloudEvent is a text")
    named = f"{given['source']} {given['id']}"  # a source has no blanks
    if len(named) > _LONGEST_ID:
        named = "sha256:" + hashlib.sha256(named.encode()).hexdigest()
    return CloudEvent(given["type"], named, subject or None, data)


_LONGEST_ID = 150
"""Characters of an id that is kept as it is; of a longer one the hash."""
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


class Starter:
    """Starts runs for a request, in the transaction of its connection if there is one: see ``starter``."""

    def __init__(self, app: Stepfast, connection: Any = None) -> None:
        self._app = app
        self._connection = connection

    @overload
    async def __call__(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartKeywords]) -> Run[O]: ...
    @overload
    async def __call__(self, workflow: str, input: Any = None, **options: Unpack[StartKeywords]) -> Run[Any]: ...
    async def __call__(self, workflow: Any, input: Any = None, **options: Any) -> Run[Any]:
        """Start a run; the options are those of ``app.start``."""
        if self._connection is not None:
            options.setdefault("connection", self._connection)
        untyped: Any = self._app
        run: Run[Any] = await untyped.start(workflow, input, **options)
        return run


def starter(app: Stepfast, connection: Callable[..., Any] | None = None) -> Callable[..., Starter]:
    """A dependency of FastAPI that starts runs, for work that survives the process, unlike a background task:
    ``later: Annotated[Starter, Depends(starter(app))]``, then ``await later(send_mail, address)``.

    ``connection`` is a dependency that gives a session or a connection of the request: each start joins its
    transaction, and there is no run if that is rolled back.
    """
    if connection is None:
        return lambda: Starter(app)
    try:
        from fastapi import Depends
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "stepfast.web.starter(connection=) needs FastAPI: pip install fastapi; elsewhere there is "
            "Starter(app, connection)"
        ) from None
    depends = Depends(connection)

    def give(connection: Any = depends) -> Starter:
        return Starter(app, connection)

    return give


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
