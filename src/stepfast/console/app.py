"""``console(app, …)``: the ASGI application, its routes, and the audit entries of its actions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..app import Stepfast
from ..errors import ConfigurationError, DatabaseUnavailable
from ..monitoring.audit import audited, new_entry
from ..monitoring.changes import asked_so_far
from ..store.answers import AuditEntry
from ..store.readonly import CACHE_CONTEXT, CacheContext
from .filters import FIELDS, Filters
from .pages import bulk, callbacks, events, failures, queues, run, runs, schedules, start, streams
from .pages.admin import audit, system, workers
from .redaction import Redact, rule_of
from .refusals import Refused, refusal_of
from .request import ConsoleRequest, ConsoleState, Form, read_form, refuse_nul
from .responses import Answer, Page, refusal_response, respond, static_file
from .security import (
    NO_STORE,
    SAFE,
    SECURITY_HEADERS,
    AccessCheck,
    Auth,
    CallbackAuthenticator,
    Hosts,
    TokenAuthenticator,
    is_loopback,
    names_for,
    parts_of,
)  # fmt: skip


def _action(path: str, endpoint: Any, name: str) -> Route:
    return Route(path, endpoint, methods=["POST"], name=name)


ROUTES = (
    Route("/", runs.home),
    Route("/static/{name}", static_file),
    Route("/news", runs.news),
    Route("/runs", runs.runs),
    Route("/runs/{id}", run.run),
    Route("/runs/{id}/payload", run.payload),
    Route("/runs/{id}/logs", streams.logs),
    Route("/runs/{id}/streams", streams.streams),
    Route("/runs/{id}/confirm/{action}", run.confirm),
    _action("/runs/{id}/cancel", run.cancel, "run.cancel"),
    _action("/runs/{id}/pause", run.pause, "run.pause"),
    _action("/runs/{id}/resume", run.resume, "run.resume"),
    _action("/runs/{id}/reschedule", run.reschedule, "run.reschedule"),
    _action("/runs/{id}/retry", run.retry, "run.retry"),
    Route("/runs/{id}/again", run.confirm_again),
    _action("/runs/{id}/fork", run.fork, "run.fork"),
    _action("/runs/{id}/rewind", run.rewind, "run.rewind"),
    _action("/runs/{id}/signal", run.signal, "run.signal"),
    Route("/start", start.start_form),
    _action("/start", start.start, "run.start"),
    Route("/bulk/{action}", bulk.bulk),
    _action("/bulk/{action}", bulk.begin_bulk, "bulk.runs"),
    Route("/bulk/jobs/{job}", bulk.job),
    Route("/queues", queues.queues),
    Route("/queues/confirm/{action}", queues.confirm_queue),
    _action("/queues/pause", queues.pause, "queue.pause"),
    _action("/queues/resume", queues.resume, "queue.resume"),
    _action("/queues/limits", queues.limits, "queue.limits"),
    Route("/workers", workers),
    Route("/schedules", schedules.schedules),
    Route("/schedules/confirm/{action}", schedules.confirm_schedule),
    _action("/schedules/pause", schedules.pause, "schedule.pause"),
    _action("/schedules/resume", schedules.resume, "schedule.resume"),
    _action("/schedules/trigger", schedules.trigger, "schedule.trigger"),
    Route("/events", events.events),
    Route("/callbacks", callbacks.callbacks),
    Route("/failures", failures.failures),
    Route("/failures/retry", failures.confirm_retry),
    _action("/failures/retry", failures.retry, "failures.retry"),
    Route("/system", system),
    Route("/audit", audit),
)
"""Endpoints take a ConsoleRequest and return an Answer. ``find`` matches routes in place of Starlette's Router, which
passes errors to the exception handlers of the application around the console, and matches decoded paths, in which a
slash inside a name divides it."""


def find(method: str, parts: Sequence[str]) -> tuple[Route, dict[str, str]]:
    """Return the route for the segments of a path, and its parameters."""
    scope = {"type": "http", "method": method, "path": "/" + "/".join(quote(part, safe="") for part in parts)}
    allowed: set[str] = set()
    for route in ROUTES:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return route, {name: unquote(value) for name, value in found["path_params"].items()}
        if match is Match.PARTIAL:
            allowed |= route.methods or set()
    if not allowed:
        raise Refused(404, "there is no such page")
    methods = ", ".join(sorted(allowed))
    raise Refused(405, f"this address only takes {methods}", {"Allow": methods})


TOKEN = "STEPFAST_CONSOLE_TOKEN"


def console(
    app: Stepfast,
    *,
    auth: Auth | None = None,
    read_only: bool = False,
    redact: Redact | None = None,
    hosts: Collection[str] | None = None,
    token: str | None = None,
) -> Console:
    """Make the console of an application, to be mounted in another: ``api.mount("/stepfast", console(app, auth=…))``.

    ``auth`` is a function of the request that returns a name and a role (``"view"`` or ``"operate"``), or None to
    refuse it. Without ``auth``, requests need the ``token``, by default that of ``STEPFAST_CONSOLE_TOKEN``; without a
    token, every request is refused. ``read_only`` refuses every action, ``redact`` hides parts of payloads, and
    ``hosts`` are the host names that are answered (None: all that the surrounding application lets through).
    """
    if not isinstance(app, Stepfast):
        raise ConfigurationError(f"console() takes a Stepfast application, not {type(app).__name__}")
    if auth is not None and not callable(auth):
        raise ConfigurationError("auth= takes a function of the request that returns a name and a role, or None")
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts= takes a list of names, not the string {hosts!r}")
    token = os.environ.get(TOKEN) if token is None else token
    authenticator = TokenAuthenticator(token) if auth is None else CallbackAuthenticator(auth)
    return Console(ConsoleState(app, rule_of(redact), read_only), AccessCheck(authenticator, Hosts(hosts), read_only))


class Console:
    """The console as an ASGI application."""

    def __init__(self, state: ConsoleState, access: AccessCheck) -> None:
        self._state = state
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. WebSockets are closed."""
        if scope["type"] == "http":
            try:
                response = await self._answer(Request(scope, receive))
            except asyncio.CancelledError:
                await self._answer_cancelled(scope, receive, send)
                raise
            await response(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer_cancelled(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the client that the request was cut off, if the connection still allows it."""
        http = Request(scope, receive)
        unsafe = "" if http.method in SAFE else ": it may have been done, check before you send it again"
        response = refusal_response(
            http, Refused(503, f"the console was stopped while this was under way{unsafe}")
        )  # fmt: skip
        with contextlib.suppress(Exception):
            await response(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Close the console and its application when a server that runs only the console stops."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._state.close()
        await self._state.app.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, http: Request) -> Response:
        """Every response has the security headers, also that of a refusal or an error."""
        try:
            response = await self._admitted(http)
        except Exception as error:
            if isinstance(error, DatabaseUnavailable):
                self._state.note_outage()
            refused = refusal_of(error)
            if refused is None:
                self._state.app.logger.exception("the console could not answer a request")
                refused = Refused(500, "something went wrong in the console; its log says what")
            response = refusal_response(http, refused)
        for name, value in (SECURITY_HEADERS | NO_STORE).items():
            response.headers.setdefault(name, value)
        if http.method == "HEAD":
            response.body = b""
        return response

    async def _admitted(self, http: Request) -> Response:
        who = await self._access.admit(http)
        if isinstance(who, Response):
            return who
        parts = parts_of(http.scope)
        refuse_nul([*parts, *(text for pair in http.query_params.multi_items() for text in pair)])
        route, params = find(http.method, parts)
        safe = http.method in SAFE
        request = ConsoleRequest(http, self._state, who, params, Form() if safe else await read_form(http))
        before = asked_so_far(self._state.app)
        CACHE_CONTEXT.set(CacheContext())
        answer: Answer = await (route.endpoint(request) if safe else self._act(request, route))
        if isinstance(answer, Page):
            queries = asked_so_far(self._state.app) - before
            again = None if answer.again is None else self._state.pace.again(answer.again, queries)
            answer = replace(answer, again=again)
            if answer.status < 500:
                self._state.outage_since = None
        return respond(request, answer)

    async def _act(self, request: ConsoleRequest, route: Route) -> Answer:
        entry = audit_entry(request, route.name)
        request = replace(request, audit_id=entry.id)
        acting = audited(
            self._state.app, entry, lambda: route.endpoint(request), lambda done: getattr(done, "said", None),
            refusals=(Refused,), over=lambda done: not getattr(done, "open", False),
        )  # fmt: skip
        return await self._state.finish(acting)


_AUDITED_FIELDS = (
    "name", "from_start", "concurrency", "rate", "key_concurrency", "key_rate", "max_ready", "reset", "key", "queue",
    "priority", "delay", "tags", "attributes", "counted", "branch", "position", "step",
)  # fmt: skip
"""Form fields that the audit keeps. Payloads (inputs, values of signals) are not among them."""


def audit_entry(request: ConsoleRequest, action: str) -> AuditEntry:
    """Return the audit entry for an action that is about to be carried out."""
    client, form = request.http.client, request.form
    which = _target(request, action)
    action = f"bulk.{request.params['action']}" if action == "bulk.runs" else action
    detail = {name: form[name][:200] for name in _AUDITED_FIELDS if form.get(name) and form[name] != which}
    return new_entry(request.who.name, action, which, "" if client is None else client.host, detail)


def _target(request: ConsoleRequest, action: str) -> str:
    if "id" in request.params:
        return request.params["id"].lower()  # the audit is searched by the id as it is stored
    if action.startswith("failures."):
        return urlencode({name: request.form[name] for name in FIELDS if request.form.get(name)})
    if action.startswith("bulk."):
        return urlencode(Filters.of(request.form).query)
    return request.form.get({"queue": "queue", "schedule": "schedule"}.get(action.partition(".")[0], "workflow"), "")


# -- a server of its own, as `stepfast console` runs it


_GRACE = 3
"""Seconds that responses under way have when the server stops."""


def standing_alone(
    app: Stepfast,
    *,
    token: str | None,
    host: str,
    read_only: bool = False,
    redact: Redact | None = None,
    allowed: Collection[str] = (),
) -> Console:
    """Make the console of an application, for a server of its own."""
    hosts = Hosts([*names_for(host), *allowed], addresses=not is_loopback(host))
    state = ConsoleState(app, rule_of(redact or None), read_only)
    return Console(state, AccessCheck(TokenAuthenticator(token), hosts, read_only))


async def serve(console: Console, listener: socket.socket, root_path: str = "") -> None:
    """Serve on a socket that listens already, until the process is stopped; slow responses are then cut off."""
    import uvicorn  # only now: a mounted console has the server of its application

    config = uvicorn.Config(
        prefixed(console, root_path), log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[listener])


def prefix_of(root_path: str) -> str:
    """Return the prefix with a slash at its beginning only: ``/stepfast``; empty without a prefix."""
    parts = root_path.strip("/")
    return f"/{parts}" if parts else ""


def prefixed(console: ASGIApp, root_path: str) -> ASGIApp:
    """Serve the console under the prefix of a proxy, which may remove it from addresses or pass it on; the printed link
    has it. Both are accepted, unless a page of the console begins like the prefix: then it must be removed."""
    prefix = prefix_of(root_path)
    is_page = prefix in {route.path[: len(prefix)] for route in ROUTES}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if prefix and scope["type"] == "http":
            scope = {**scope, "root_path": prefix}
            if is_page:
                scope["raw_path"] = quote(prefix).encode() + (scope.get("raw_path") or quote(scope["path"]).encode())
        await console(scope, receive, send)

    return served
