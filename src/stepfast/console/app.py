"""``console(app, …)``: the ASGI application and its routes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..app import Stepfast
from ..errors import ConfigurationError, DatabaseUnavailable
from ..monitoring.audit import audited
from ..store.readonly import SIGHT, Sight
from . import responses
from .addresses import parts_of, static_response
from .audit import audit_entry
from .pages import bulk as bulk_actions
from .pages import failures as failure_actions
from .pages import queues as queue_actions
from .pages import run as run_actions
from .pages import schedules as schedule_actions
from .pages import start
from .pages.admin import audit, system, workers
from .pages.bulk import bulk, job
from .pages.failures import confirm_retry, failures
from .pages.queues import confirm_queue, queues
from .pages.run import confirm, payload, run
from .pages.runs import home, news, runs
from .pages.schedules import confirm_schedule, schedules
from .pages.start import start_form
from .redaction import Redact, rule_of
from .refusals import Refused, refusal_of
from .request import ConsoleRequest, ConsoleState, read_form, refuse_nul
from .responses import Answer, Page, respond
from .security import (
    ALWAYS,
    NOT_KEPT,
    SAFE,
    VIEW,
    AccessCheck,
    Auth,
    Authenticator,
    CallbackAuthenticator,
    Hosts,
    TokenAuthenticator,
)

Handler = Callable[[ConsoleRequest], Awaitable[Answer]]


class Route(NamedTuple):
    """One row of the table: what can be asked for, and who answers."""

    method: str
    """GET, which changes nothing, or POST."""
    path: str
    """As in ``/runs/{id}``: a part in braces stands for anything, and is found by that name in ``request.params``."""
    answer: Handler
    role: str = VIEW
    """Who may ask. What is no GET needs the role ``operate`` whatever stands here."""
    deed: str = ""
    """What the audit calls it, if it is an action."""


ROUTES: tuple[Route, ...] = (
    Route("GET", "/", home),
    Route("GET", "/news", news),
    Route("GET", "/runs", runs),
    Route("GET", "/runs/{id}", run),
    Route("GET", "/runs/{id}/payload", payload),
    Route("GET", "/runs/{id}/confirm/{action}", confirm),
    Route("POST", "/runs/{id}/cancel", run_actions.cancel, deed="run.cancel"),
    Route("POST", "/runs/{id}/pause", run_actions.pause, deed="run.pause"),
    Route("POST", "/runs/{id}/resume", run_actions.resume, deed="run.resume"),
    Route("POST", "/runs/{id}/reschedule", run_actions.reschedule, deed="run.reschedule"),
    Route("POST", "/runs/{id}/retry", run_actions.retry, deed="run.retry"),
    Route("POST", "/runs/{id}/signal", run_actions.signal, deed="run.signal"),
    Route("GET", "/start", start_form),
    Route("POST", "/start", start.start, deed="run.start"),
    Route("GET", "/bulk/{action}", bulk),
    Route("POST", "/bulk/{action}", bulk_actions.begin_bulk, deed="bulk.runs"),
    Route("GET", "/bulk/jobs/{job}", job),
    Route("GET", "/queues", queues),
    Route("GET", "/queues/confirm/{action}", confirm_queue),
    Route("POST", "/queues/pause", queue_actions.pause, deed="queue.pause"),
    Route("POST", "/queues/resume", queue_actions.resume, deed="queue.resume"),
    Route("POST", "/queues/limits", queue_actions.limits, deed="queue.limits"),
    Route("GET", "/workers", workers),
    Route("GET", "/schedules", schedules),
    Route("GET", "/schedules/confirm/{action}", confirm_schedule),
    Route("POST", "/schedules/pause", schedule_actions.pause, deed="schedule.pause"),
    Route("POST", "/schedules/resume", schedule_actions.resume, deed="schedule.resume"),
    Route("POST", "/schedules/trigger", schedule_actions.trigger, deed="schedule.trigger"),
    Route("GET", "/failures", failures),
    Route("GET", "/failures/retry", confirm_retry),
    Route("POST", "/failures/retry", failure_actions.retry, deed="failures.retry"),
    Route("GET", "/system", system),
    Route("GET", "/audit", audit),
)


def find(method: str, parts: Sequence[str], routes: Sequence[Route] = ROUTES) -> tuple[Route, dict[str, str]]:
    """The route for a request, and the named parts of its address."""
    there = [(route, params) for route in routes if (params := _matched(route.path, parts)) is not None]
    if not there:
        raise Refused(404, "there is no such page")
    wanted = "GET" if method == "HEAD" else method
    for route, params in there:
        if route.method == wanted:
            return route, params
    allowed = ", ".join(sorted({route.method for route, _ in there}))
    raise Refused(405, f"this address only takes {allowed}", {"Allow": allowed})


def _matched(path: str, parts: Sequence[str]) -> dict[str, str] | None:
    wanted = path.strip("/").split("/") if path != "/" else []
    if len(wanted) != len(parts):
        return None
    params = {}
    for name, part in zip(wanted, parts, strict=True):
        if name.startswith("{"):
            params[name[1:-1]] = part
        elif name != part:
            return None
    return params


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
    """The console of an application, to be mounted in one's own: ``api.mount("/stepfast", console(app, auth=…))``.

    ``auth`` is a function of the request that gives a name and a role (``"view"`` or ``"operate"``), or None for
    strangers. Without it, the console opens to whoever has the ``token``, else that of ``STEPFAST_CONSOLE_TOKEN``; and
    to nobody, if there is none. ``read_only`` refuses every action, ``redact`` hides parts of payloads, ``hosts`` are
    the names that it answers to (None: those that the application around it lets through).
    """
    if not isinstance(app, Stepfast):
        raise ConfigurationError(f"console() takes a Stepfast application, not {type(app).__name__}")
    if auth is not None and not callable(auth):
        raise ConfigurationError("auth= takes a function of the request that gives a name and a role, or None")
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts= takes a list of names, not the string {hosts!r}")
    authenticator: Authenticator = (
        TokenAuthenticator(os.environ.get(TOKEN) if token is None else token)
        if auth is None
        else CallbackAuthenticator(auth)
    )
    return Console(ConsoleState(app, rule_of(redact), read_only), AccessCheck(authenticator, Hosts(hosts), read_only))


class Console:
    """The console as an ASGI application."""

    def __init__(self, state: ConsoleState, access: AccessCheck) -> None:
        self._state = state
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. There are no websockets, and a lifespan has nothing to do."""
        if scope["type"] == "http":
            try:
                response = await self._answer(Request(scope, receive))
            except asyncio.CancelledError:
                await self._cut_off(scope, receive, send)
                raise
            await response(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _cut_off(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell whoever waits for an answer that there will be none, as far as that is still possible."""
        request = Request(scope, receive)
        unsafe = "" if request.method in SAFE else ": it may have been done, look before you send it again"
        response = responses.response(
            request, Refused(503, f"the console was stopped while this was under way{unsafe}")
        )
        with contextlib.suppress(Exception):
            await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Where a server runs the console by itself: it begins at once, and disconnects at the end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._state.close()
        await self._state.app.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Response:
        """Every answer has the same headers, whatever became of the request."""
        try:
            response = await self._admitted(request)
        except Exception as error:
            if isinstance(error, DatabaseUnavailable):
                self._state.outage.noticed()
            refused = refusal_of(error)
            if refused is None:
                self._state.app.logger.exception("the console could not answer a request")
                refused = Refused(500, "something went wrong in the console; its log says what")
            response = responses.response(request, refused)
        for name, value in (ALWAYS | NOT_KEPT).items():
            response.headers.setdefault(name, value)
        if request.method == "HEAD":
            response.body = b""
        return response

    async def _admitted(self, request: Request) -> Response:
        who = await self._access.admit(request)
        if isinstance(who, Response):
            return who
        parts = parts_of(request.scope)
        refuse_nul([*parts, *(text for pair in request.query_params.multi_items() for text in pair)])
        if parts[:1] == ["static"] and request.method in SAFE and (file := static_response("/".join(parts[1:]))):
            return file
        route, params = find(request.method, parts)
        if not who.may(route.role):
            raise Refused(403, f"this page takes the role {route.role}")
        form: dict[str, Any] = {} if request.method in SAFE else {"form": await read_form(request)}
        admitted = ConsoleRequest(request, self._state, who, params, **form)
        before = self._state.tabs.asked()
        SIGHT.set(Sight())
        answer = await (route.answer(admitted) if request.method in SAFE else self._acted(admitted, route))
        if isinstance(answer, Page):
            answer = replace(answer, again=self._state.tabs.again(answer.again, before))
            if answer.status < 500:
                self._state.outage.over()
        return respond(admitted, answer)

    async def _acted(self, request: ConsoleRequest, route: Route) -> Answer:
        """Act, with a line in the audit: whatever is no safe method has one."""
        what = audit_entry(request, route.deed)
        known = replace(request, line=what.id)
        acting = audited(
            self._state.app, what, lambda: route.answer(known), lambda done: getattr(done, "said", None),
            refusals=(Refused,), over=lambda done: not getattr(done, "open", False),
        )  # fmt: skip
        return await self._state.waited_for(acting)
