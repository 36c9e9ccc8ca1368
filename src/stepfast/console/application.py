"""``console(app, …)``: the ASGI application. It lets requests in, finds who answers, and says what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..app import Stepfast
from ..errors import ConfigurationError, DatabaseUnavailable
from ..monitoring.audit import audited
from ..store.readonly import SIGHT, Sight
from . import refusing, routes
from .access import Auth, Door, OwnDoor, TokenDoor
from .answers import Answer, Page, respond
from .deeds import deed_of
from .desk import Desk
from .entrance import SAFE, Entrance
from .forms import read_form, refuse_nul
from .headers import ALWAYS, NOT_KEPT
from .origin import Hosts
from .paths import parts_of
from .redacting import Redact, rule_of
from .refusals import Refused, refusal_of
from .static_files import static_response
from .visit import Visit

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
    door: Door = TokenDoor(os.environ.get(TOKEN) if token is None else token) if auth is None else OwnDoor(auth)
    return Console(Desk(app, rule_of(redact), read_only), Entrance(door, Hosts(hosts), read_only))


class Console:
    """The console as an ASGI application."""

    def __init__(self, desk: Desk, entrance: Entrance) -> None:
        self._desk = desk
        self._entrance = entrance

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
        response = refusing.response(request, Refused(503, f"the console was stopped while this was under way{unsafe}"))
        with contextlib.suppress(Exception):
            await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Where a server runs the console by itself: it begins at once, and disconnects at the end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._desk.close()
        await self._desk.app.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Response:
        """Every answer has the same headers, whatever became of the request."""
        try:
            response = await self._admitted(request)
        except Exception as error:
            if isinstance(error, DatabaseUnavailable):
                self._desk.outage.noticed()
            refused = refusal_of(error)
            if refused is None:
                self._desk.app.logger.exception("the console could not answer a request")
                refused = Refused(500, "something went wrong in the console; its log says what")
            response = refusing.response(request, refused)
        for name, value in (ALWAYS | NOT_KEPT).items():
            response.headers.setdefault(name, value)
        if request.method == "HEAD":
            response.body = b""
        return response

    async def _admitted(self, request: Request) -> Response:
        who = await self._entrance.admit(request)
        if isinstance(who, Response):
            return who
        parts = parts_of(request.scope)
        refuse_nul([*parts, *(text for pair in request.query_params.multi_items() for text in pair)])
        if parts[:1] == ["static"] and request.method in SAFE and (file := static_response("/".join(parts[1:]))):
            return file
        route, params = routes.find(request.method, parts)
        if not who.may(route.role):
            raise Refused(403, f"this page takes the role {route.role}")
        form: dict[str, Any] = {} if request.method in SAFE else {"form": await read_form(request)}
        visit = Visit(request, self._desk, who, params, **form)
        before = self._desk.tabs.asked()
        SIGHT.set(Sight())
        answer = await (route.answer(visit) if request.method in SAFE else self._acted(visit, route))
        if isinstance(answer, Page):
            answer = replace(answer, again=self._desk.tabs.again(answer.again, before))
            if answer.status < 500:
                self._desk.outage.over()
        return respond(visit, answer)

    async def _acted(self, visit: Visit, route: routes.Route) -> Answer:
        """Act, with a line in the audit: whatever is no safe method has one."""
        what = deed_of(visit, route.deed)
        known = replace(visit, line=what.id)
        acting = audited(
            self._desk.app, what, lambda: route.answer(known), lambda done: getattr(done, "said", None),
            refusals=(Refused,), over=lambda done: not getattr(done, "open", False),
        )  # fmt: skip
        return await self._desk.waited_for(acting)
