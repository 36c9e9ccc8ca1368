"""An admitted request, the state that all requests of a console share, and the bodies of forms."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import ClientDisconnect, Request

from ..app import Stepfast
from ..monitoring.changes import TabPace, end_news, onlooker
from ..monitoring.queue_stats import Hour
from ..monitoring.unreadable import TolerantPayloads
from ..store.readonly import Remembered
from .bulk_jobs import Jobs
from .history import BRIEF, CAREFUL, PAGE, Address, History, read_history
from .redaction import Redactor, Rule
from .refusals import Refused
from .security import OPERATE, Who, base_of

MOST_BYTES = 1_000_000
MOST_FIELDS = 200
PATIENCE = 10.0
"""Seconds that a client may take to send a form."""
_KIND = "application/x-www-form-urlencoded"


class Form(dict[str, str]):
    """The fields of a form; the last one, if a field is given twice."""

    def required(self, name: str) -> str:
        """Return a field that must not be empty."""
        value = self.get(name, "")
        if not value:
            raise Refused(400, f"the form has no {name!r}")
        return value

    def optional(self, name: str) -> str | None:
        """Return a field, or None if it is empty."""
        return self.get(name) or None


async def read_form(request: Request) -> Form:
    """Read the form in the body of a request; an empty body is an empty form."""
    raw = await _body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != _KIND:
        raise Refused(415, f"a form must come as {_KIND}")
    try:
        pairs = parse_qsl(
            raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:  # too many fields, or not UTF-8
        raise Refused(400, "the form cannot be read: it must be urlencoded UTF-8") from None
    refuse_nul(text for pair in pairs for text in pair)
    return Form({name: value.replace("\r\n", "\n") for name, value in pairs})  # browsers send CRLF


def refuse_nul(texts: Iterable[str]) -> None:
    """Refuse NUL characters: Postgres can neither store them nor compare with them."""
    if any("\0" in text for text in texts):
        raise Refused(400, "there is a NUL character in this, which no database can hold")


async def _body(request: Request) -> bytes:
    """Read the body within a bound of bytes, without trusting Content-Length, and a bound of time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise Refused(413, f"a form may have {MOST_BYTES:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the form did not come to its end within {PATIENCE:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the form did not come to its end") from None
    return b"".join(parts)


T = TypeVar("T")

_SLOW = 15.0
_PATIENCE = 2.0
"""Seconds that interrupted actions have to update the audit."""


class ConsoleState:
    """What all requests of one console share."""

    def __init__(self, app: Stepfast, rule: Rule | None, read_only: bool) -> None:
        self.app = app
        self.reader = onlooker(app)
        self.reader._payloads = TolerantPayloads.like(app._payloads)
        """The application for pages: it cannot write, and its queries are bounded and shared by all open tabs."""
        self.rule = rule
        """What is hidden of payloads; None: nothing."""
        self.read_only = read_only
        self.pace = TabPace(app.settings.console_query_rate)
        self.hour = Hour()
        """The depths of queues within the last hour."""
        self.slow = Remembered(_SLOW)
        """A cache of results that take long to compute."""
        self.jobs = Jobs(app)
        self.outage_since: datetime | None = None
        """Since when the database is unreachable; None while it answers."""
        self._acting: set[asyncio.Task[Any]] = set()

    def note_outage(self) -> datetime:
        """Record that the database is unreachable, and return since when it is."""
        self.outage_since = self.outage_since or datetime.now(UTC)
        return self.outage_since

    async def finish(self, acting: Coroutine[Any, Any, T]) -> T:
        """Run an action, which ``close`` cancels and waits for."""
        task = asyncio.create_task(acting)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)
        return await task

    async def close(self) -> None:
        """Cancel what is under way, while its audit entries can still be updated."""
        for task in self._acting:
            if not task.cancelling():
                task.cancel()
        if self._acting:
            await asyncio.wait(self._acting, timeout=_PATIENCE)
        await self.jobs.close()
        await end_news(self.app)


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """A request that was admitted."""

    http: Request
    state: ConsoleState
    who: Who
    params: Mapping[str, str]
    """The parameters of the route: ``{id}`` of ``/runs/{id}``."""
    form: Form
    """The form of an action."""
    audit_id: str = ""
    """The id of the audit entry of an action."""

    @property
    def app(self) -> Stepfast:
        """The application, for actions. Pages read by ``request.reader``."""
        return self.state.app

    @property
    def reader(self) -> Stepfast:
        """The application for pages: it cannot write, and its queries are bounded."""
        return self.state.reader

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters of the address."""
        return self.http.query_params

    @property
    def base(self) -> str:
        """The prefix that the console is mounted under; empty without one."""
        return base_of(self.http.scope)

    @property
    def may_operate(self) -> bool:
        """Whether actions are offered. The access check decides again when one is sent."""
        return self.who.may(OPERATE) and not self.state.read_only

    @property
    def wants_json(self) -> bool:
        """Whether the client prefers JSON."""
        return wants_json(self.http)

    def url(self, *parts: str, **query: str | int | None) -> str:
        """Return an address in the console: ``request.url("runs", run_id, after="x")``. Parts are quoted, so that a
        name with a slash stays one segment. Empty query parameters are left out."""
        path = "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.base}/{path}" + (f"?{urlencode(given)}" if given else "")

    async def history(self, run_id: str, after: Address | None = None, limit: int = PAGE) -> History:
        """Read a run and a page of its steps, not redacted yet."""
        largest = BRIEF if self.state.rule is None else CAREFUL
        return await read_history(self.reader, run_id, after, limit, largest, input_and_output=self.wants_json)

    def redactor(self) -> Redactor:
        """Return a new redactor, for what this response shows of one run."""
        return Redactor(self.state.rule)


def wants_json(request: Request) -> bool:
    """Whether ``Accept`` names JSON, and before HTML if it names both."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    if "application/json" not in accepted:
        return False
    return "text/html" not in accepted or accepted.index("application/json") < accepted.index("text/html")
