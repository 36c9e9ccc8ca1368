"""Responses: pages with their JSON twins, redirects, refusals, static files, and how open pages learn of changes."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from ..info import RunInfo
from ..model.attributes import shown
from ..model.cron import clock
from ..monitoring.changes import LISTS, StateHash, news_of
from ..monitoring.text import ago, brief, count, executor, harmless_json, lasting, shortened, waited_for
from ..monitoring.unreadable import is_sealed
from ..store.readonly import CACHE_CONTEXT
from .refusals import Refused
from .request import ConsoleRequest, wants_json
from .security import base_of, parts_of

NAVIGATION = (
    ("Runs", "runs"),
    ("Queues", "queues"),
    ("Workers", "workers"),
    ("Schedules", "schedules"),
    ("Events", "events"),
    ("Callbacks", "callbacks"),
    ("Failures", "failures"),
    ("System", "system"),
    ("Audit", "audit"),
    ("Start", "start"),
)
"""The pages in the navigation, with their paths."""

THEMES = ("light", "dark")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters, and those that change the direction of text: unescaped, they could disguise one text as
another."""
_CODE = re.compile(r"`([^`]+)`")


# -- static files: in memory, with fixed types. Starlette's StaticFiles serves whole directories, and guesses types from
# the registry of the machine: with `nosniff`, browsers ignore a script of a wrong type.


class StaticFile(NamedTuple):
    """A file of the console."""

    content: bytes
    type: str
    hash: str
    """In the address, so that browsers may cache the file without a limit."""


def _load(package: str, path: str, type: str) -> StaticFile:
    content = files(package).joinpath(path).read_bytes()
    return StaticFile(content, type, hashlib.sha256(content).hexdigest()[:12])


FILES = {
    "console.css": _load("stepfast.console", "static/console.css", "text/css"),
    "console.js": _load("stepfast.console", "static/console.js", "text/javascript"),
    "diagrams.css": _load("stepfast.diagrams", "diagrams.css", "text/css"),
    "icon.svg": _load("stepfast.console", "static/icon.svg", "image/svg+xml"),
}


async def static_file(request: ConsoleRequest) -> Response:
    """Send a static file."""
    found = FILES.get(request.params["name"])
    if found is None:
        raise Refused(404, "there is no such page")
    cached = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(found.content, headers=cached, media_type=f"{found.type}; charset=utf-8")


# -- templates


def render(request: ConsoleRequest, template: str, shown: Mapping[str, Any]) -> str:
    """Render a template with its own values and those that every page needs."""
    theme = request.http.cookies.get("stepfast_theme", "")
    always = {
        "request": request,
        "url": request.url,
        "theme": theme if theme in THEMES else "",
        "static": lambda name: f"{request.base}/static/{name}?v={FILES[name].hash}",
        "version": __version__,
        "navigation": NAVIGATION,
        "here": next(iter(parts_of(request.http.scope)), ""),
    }
    return _environment.get_template(template).render({**always, **shown})


def plain(value: Any) -> Any:
    """Escape control characters of a value that is written into a template."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


def _moment(when: datetime | None) -> str:
    return "" if when is None else clock(when)


def _iso(when: datetime | None) -> str:
    return "" if when is None else when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _detail(run: RunInfo) -> str:
    """Why a run ended, or what it waits for."""
    return run.reason or (waited_for(run.waiting_for) if run.waiting_for else "")


def _sentence(text: str) -> Markup:
    """A sentence of the console, with backticks shown as code. Not for text that quotes user input."""
    parts = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(plain(part)) if number % 2 else plain(part)
        for number, part in enumerate(parts)
    )


def _capped(number: int, most: int) -> str:
    """A number that was counted up to a bound: ``10 000+``."""
    return f"{number:,}".replace(",", "\u202f") + ("+" if number >= most else "")


def _bytes(number: int) -> str:
    """A size with its unit: ``12 kB``, ``3.4 MB``."""
    size, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"


def _make_environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("stepfast.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        moment=_moment, iso=_iso, ago=ago, executor=executor, lasting=lasting, brief=brief, shortened=shortened,
        attribute=shown, detail=_detail, count=count, sent=escape, sentence=_sentence, capped=_capped, bytes=_bytes,
    )  # fmt: skip
    made.tests["sealed"] = is_sealed
    return made


_environment = _make_environment()


# -- changes


class ChangePoll(NamedTuple):
    """How a tab learns that its page has changed."""

    ask: str
    """The address that says whether there is a change."""
    latest: float
    """Seconds after which the tab loads the page in any case: times on it change without an event."""


async def state_hash_of(request: ConsoleRequest, run_id: str | None = None) -> StateHash | None:
    """Return the state of a run, or of the list of runs, before its page is read: the page will not be older. None for
    JSON, which has no change poll."""
    context = CACHE_CONTEXT.get()
    if request.wants_json or context is None:
        return None
    found = await (await news_of(request.app)).of(run_id or LISTS)
    context.floor = found.since
    return found


def change_poll(
    request: ConsoleRequest, seen: StateHash | None, latest: float, run_id: str | None = None
) -> ChangePoll | None:
    """Return the change poll for a page that was read after the state ``seen``. If the page used an older cached read,
    the poll has no mark, and the tab reloads."""
    context = CACHE_CONTEXT.get()
    if seen is None or context is None:
        return None
    mark = seen.text if context.oldest >= seen.since else None
    return ChangePoll(request.url("news", run=run_id, mark=mark), latest)


# -- answers of pages and actions


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its JSON twin."""

    template: str
    shown: Mapping[str, Any]
    """The values of the template."""
    shape: Any
    """The JSON twin, as the command line writes it with ``--json``."""
    again: float | None = None
    """Seconds after which an open tab loads the page again; None: nothing on it will change."""
    news: ChangePoll | None = None
    """A cheaper query that the tab sends first."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a redirect, or JSON."""

    go_on: str
    shape: Any
    said: str | None = None
    """The outcome in words, for the audit."""
    open: bool = False
    """Whether it continues after the response, and its audit entry is closed later."""


@dataclass(frozen=True, slots=True)
class PayloadPage:
    """One payload, and its text as JSON."""

    template: str
    shown: Mapping[str, Any]
    json: str


@dataclass(frozen=True, slots=True)
class Json:
    """An answer to the console's own script, always JSON."""

    shape: Any


Answer = Page | Done | PayloadPage | Json | Response


def respond(request: ConsoleRequest, answer: Answer) -> Response:
    """Make the response for an answer."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, Json):
        return json_response(answer.shape)
    if isinstance(answer, Done):
        return json_response(answer.shape) if request.wants_json else Response(None, 303, {"Location": answer.go_on})
    if isinstance(answer, PayloadPage):
        if request.wants_json:
            return _response(harmless_json(answer.json), "application/json")
        return _response(render(request, answer.template, {**answer.shown, "again": None, "news": None}))
    if request.wants_json:
        return json_response(answer.shape, answer.status, answer.headers)
    shown = {**answer.shown, "again": answer.again, "news": None if answer.again is None else answer.news}
    return _response(render(request, answer.template, shown), "text/html", answer.status, answer.headers)


def json_response(shape: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Send a value as JSON."""
    return _response(harmless_json(msgspec.json.encode(shape).decode()), "application/json", status, headers)


def _response(
    text: str, kind: str = "text/html", status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Lone surrogates, which UTF-8 cannot encode, are escaped."""
    return Response(text.encode("utf-8", "backslashreplace"), status, headers, media_type=f"{kind}; charset=utf-8")


_REFUSAL = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{status} · Stepfast</title>{style}</head>
<body class="refused"><main><h1>{status}</h1><p>{message}</p><p><a href="{base}/">The console</a></p></main></body>
</html>
"""


def refusal_response(request: Request, refused: Refused) -> Response:
    """Answer a request that was refused, without repeating what it asked for."""
    if wants_json(request):
        return json_response({"error": refused.message}, refused.status, refused.headers)
    base = html.escape(base_of(request.scope))
    # Without authentication, the style sheet would be refused too.
    style = "" if refused.status == 401 else f'<link rel="stylesheet" href="{base}/static/console.css">'
    message = html.escape(str(plain(refused.message)))
    page = _REFUSAL.format(status=refused.status, message=message, base=base, style=style)
    return _response(page, "text/html", refused.status, refused.headers)
