"""One request that was let in, what all pages of a console share, and the bodies of forms."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import ClientDisconnect, Request

from ..app import Stepfast
from ..monitoring.changes import TabPace, asked_so_far, end_news, onlooker
from ..monitoring.queue_stats import Hour
from ..monitoring.unreadable import TolerantPayloads
from ..store.readonly import Remembered
from .addresses import base_of
from .bulk_jobs import Jobs
from .history import BRIEF, CAREFUL, PAGE, Address, History, read_history
from .redaction import Redactor, Rule
from .refusals import Refused
from .security import OPERATE, Who

MOST_BYTES = 1_000_000
MOST_FIELDS = 200
PATIENCE = 10.0
"""Seconds that a form may take to come."""
_KIND = "application/x-www-form-urlencoded"


class Form(dict[str, str]):
    """The fields of a form; of one that is given twice, the last."""

    def required(self, name: str) -> str:
        """A field that must be there, and not be empty."""
        value = self.get(name, "")
        if not value:
            raise Refused(400, f"the form has no {name!r}")
        return value

    def optional(self, name: str) -> str | None:
        """A field that may be left empty."""
        return self.get(name) or None


async def read_form(request: Request) -> Form:
    """The form that came with a request; an empty body is an empty form."""
    raw = await _body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw and kind != _KIND:
        raise Refused(415, f"a form must come as {_KIND}")
    try:
        pairs = parse_qsl(
            raw.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:  # too many fields, or no UTF-8
        raise Refused(400, "the form cannot be read: it must be urlencoded UTF-8") from None
    refuse_nul(text for pair in pairs for text in pair)
    return Form({name: value.replace("\r\n", "\n") for name, value in pairs})  # as browsers send the ends of lines


def refuse_nul(texts: Iterable[str]) -> None:
    """Refuse a NUL character, in a form or an address: Postgres can neither hold one nor compare with it."""
    if any("\0" in text for text in texts):
        raise Refused(400, "there is a NUL character in this, which no database can hold")


async def _body(request: Request) -> bytes:
    """No more than is allowed is kept, whatever the length was said to be, and nobody is waited for without end."""
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


class Outage:
    """The outage of the database that lasts, if there is one."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        """When it was first noticed; None: the last that was asked was answered."""

    def noticed(self) -> datetime:
        """The database did not answer: since when that is so."""
        if self.since is None:
            self.since = datetime.now(UTC)
        return self.since

    def over(self) -> None:
        """The database has answered again."""
        self.since = None


class Tabs:
    """The turns of all tabs of one console."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._pace = TabPace(app.settings.console_query_rate)

    def asked(self) -> int:
        """How many questions were put to the database so far."""
        return asked_so_far(self._app)

    def again(self, soonest: float | None, before: int) -> float | None:
        """In how many seconds a tab asks for its page again, which has just asked all questions since ``before``; None:
        never, because nothing on it will change."""
        return None if soonest is None else self._pace.again(soonest, self.asked() - before)


T = TypeVar("T")

_SLOW = 15.0
_PATIENCE = 2.0
"""Seconds for actions to write into the audit that they were interrupted."""


class ConsoleState:
    """What all visits of one console share; there is one desk for each console."""

    def __init__(self, app: Stepfast, rule: Rule | None, read_only: bool) -> None:
        self.app = app
        self.reader = onlooker(app)
        self.reader._payloads = TolerantPayloads.like(app._payloads)
        """The same application for pages: it only reads, and its questions are bounded and shared by all tabs."""
        self.rule = rule
        """What is hidden of payloads; None: nothing."""
        self.read_only = read_only
        self.tabs = Tabs(app)
        self.hour = Hour()
        """How queues stood within the last hour."""
        self.slow = Remembered(_SLOW)
        """Answers that take long to find, and need not be new."""
        self.jobs = Jobs(app)
        self._acting: set[asyncio.Task[Any]] = set()
        self.outage = Outage()
        """Since when the database has not been reached."""

    async def waited_for(self, acting: Coroutine[Any, Any, T]) -> T:
        """Do something that is not to be left without a word when the console is closed."""
        task = asyncio.create_task(acting)
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)
        return await task

    async def close(self) -> None:
        """Give up what is under way, while the database can still be told."""
        for task in self._acting:
            if not task.cancelling():
                task.cancel()
        if self._acting:
            await asyncio.wait(self._acting, timeout=_PATIENCE)
        await self.jobs.close()
        await end_news(self.app)

    def redactor(self) -> Redactor:
        """A new redactor, for one answer about one run."""
        return Redactor(self.rule)


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One request that was let in: who asks, and for what."""

    http: Request
    state: ConsoleState
    who: Who
    params: Mapping[str, str]
    """The named parts of the address: ``{id}`` of ``/runs/{id}``."""
    form: Form = field(default_factory=Form)
    """What was sent along, with a POST."""
    line: str = ""
    """The id of the line in the audit, of an action."""

    @property
    def app(self) -> Stepfast:
        """The application whose database is shown: for actions. Pages read by ``request.reader``."""
        return self.state.app

    @property
    def reader(self) -> Stepfast:
        """The application as pages have it: it writes nothing, and the database does not feel it."""
        return self.state.reader

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind the question mark."""
        return self.http.query_params

    @property
    def base(self) -> str:
        """The prefix that the console is mounted under; empty where it stands by itself."""
        return base_of(self.http.scope)

    @property
    def may_operate(self) -> bool:
        """Whether actions are offered. The entrance asks again when one is sent."""
        return self.who.may(OPERATE) and not self.state.read_only

    @property
    def wants_json(self) -> bool:
        """Whether the JSON twin is asked for."""
        return wants_json(self.http)

    def url(self, *parts: str, **query: str | int | None) -> str:
        """An address in the console: ``request.url("runs", run_id, after="x")``. Parts are quoted: a name with a
        slash in it stays one part. What is None or empty is left out of the query."""
        path = "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.base}/{path}" + (f"?{urlencode(given)}" if given else "")

    async def history(self, run_id: str, after: Address | None = None, limit: int = PAGE) -> History:
        """A run, and a page of its steps, not veiled yet."""
        largest = BRIEF if self.state.rule is None else CAREFUL
        return await read_history(self.reader, run_id, after, limit, largest, input_and_output=self.wants_json)

    def redactor(self) -> Redactor:
        """A new redactor, for what this answer shows of one run."""
        return self.state.redactor()


def wants_json(request: Request) -> bool:
    """Whether JSON is preferred to a page: named in ``Accept``, and before a page if that is named too."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    if "application/json" not in accepted:
        return False
    return "text/html" not in accepted or accepted.index("application/json") < accepted.index("text/html")
