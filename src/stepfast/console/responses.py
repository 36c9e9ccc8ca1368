"""Responses: pages with their JSON twins, redirects, refusals, and how open pages learn of changes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from ..info import RunInfo
from ..model.cron import clock
from ..monitoring.changes import LISTS, Print, news_of
from ..monitoring.text import ago, brief, count, executor, harmless_json, lasting, shortened, waited_for
from ..monitoring.unreadable import is_sealed
from ..store.readonly import SIGHT
from . import addresses
from .addresses import NAVIGATION, base_of, parts_of
from .refusals import Refused
from .request import ConsoleRequest, wants_json

THEMES = ("light", "dark")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters, and those that turn the direction of a line: shown as they are, they could make a text look like
another one."""
_CODE = re.compile(r"`([^`]+)`")


def render(request: ConsoleRequest, template: str, shown: Mapping[str, Any]) -> str:
    """The template with what it is given, and what every page needs."""
    theme = request.http.cookies.get("stepfast_theme", "")
    always = {
        "request": request,
        "url": request.url,
        "theme": theme if theme in THEMES else "",
        "static": lambda name: f"{request.base}/static/{name}?v={addresses.FILES[name].tag}",
        "version": __version__,
        "navigation": NAVIGATION,
        "here": next(iter(parts_of(request.http.scope)), ""),
    }
    return _environment.get_template(template).render({**always, **shown})


def plain(value: Any) -> Any:
    """What is written into a template, as text that a screen shows and does not obey."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


def _sent(value: str) -> Markup:
    """The value of a field, which a browser sends back: as it is, or it would name something else."""
    return escape(value)


def _moment(when: datetime | None) -> str:
    return "" if when is None else clock(when)


def _iso(when: datetime | None) -> str:
    return "" if when is None else when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _detail(run: RunInfo) -> str:
    """Why a run ended, or what it waits for, in a word or two."""
    return run.reason or (waited_for(run.waiting_for) if run.waiting_for else "")


def _sentence(text: str) -> Markup:
    """A sentence of ours, with what stands between backticks as code. Not for one that quotes what others wrote."""
    parts = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(plain(part)) if number % 2 else plain(part)
        for number, part in enumerate(parts)
    )


def _capped(number: int, most: int) -> str:
    """A number that was counted up to a bound: ``10 000+``."""
    return f"{number:,}".replace(",", "\u202f") + ("+" if number >= most else "")


def _bytes(number: int) -> str:
    """A size as people say it: ``12 kB``, ``3.4 MB``."""
    size, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"


def _make() -> jinja2.Environment:
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
        detail=_detail, count=count, sent=_sent, sentence=_sentence, capped=_capped, bytes=_bytes,
    )  # fmt: skip
    made.tests["sealed"] = is_sealed
    return made


_environment = _make()


class ChangePoll(NamedTuple):
    """What a tab needs to learn that its page has changed."""

    ask: str
    """Where it asks whether there is anything new."""
    latest: float
    """Seconds after which it asks for the page even if there is not: times grow old, and not all that a page shows is
    looked at for news."""


async def state_hash_of(request: ConsoleRequest, run_id: str | None = None) -> Print | None:
    """How a run stands, or all of them, before a page about it is read. What is read from now on is not older. Scripts
    are not told of news."""
    sight = SIGHT.get()
    if request.wants_json or sight is None:
        return None
    found = await (await news_of(request.app)).of(run_id or LISTS)
    sight.floor = found.since
    return found


def change_poll(
    request: ConsoleRequest, seen: Print | None, latest: float, run_id: str | None = None
) -> ChangePoll | None:
    """For a page that was read after how things stand was ``seen``. If some of it is older all the same, because
    somebody had asked for it already, the tab is to take it as changed: it has no mark."""
    sight = SIGHT.get()
    if seen is None or sight is None:
        return None
    mark = seen.text if sight.oldest >= seen.since else None
    return ChangePoll(request.url("news", run=run_id, mark=mark), latest)


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the same as JSON."""

    template: str
    shown: Mapping[str, Any]
    """What the template is given."""
    shape: Any
    """The JSON twin: what the command line writes with ``--json``."""
    again: float | None = None
    """Seconds after which an open tab asks for the page again; None: nothing on it will change."""
    news: ChangePoll | None = None
    """What a tab asks first, where that is cheaper: whether there is anything new."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """An action was carried out: a person goes on to another page, a script is told in JSON."""

    go_on: str
    shape: Any
    said: str | None = None
    """What came of it, in words, for the audit."""
    open: bool = False
    """Whether it goes on, and its line in the audit is closed later."""


@dataclass(frozen=True, slots=True)
class PayloadPage:
    """One payload, loaded when somebody opens it; as JSON, its text."""

    template: str
    shown: Mapping[str, Any]
    json: str


@dataclass(frozen=True, slots=True)
class Json:
    """An answer to a script of ours: JSON, whatever is asked for."""

    shape: Any


Answer = Page | Done | PayloadPage | Json


def respond(request: ConsoleRequest, answer: Answer) -> Response:
    """The response that carries an answer."""
    if isinstance(answer, Done):
        if request.wants_json:
            return json_response(answer.shape)
        return Response(status_code=303, headers={"Location": answer.go_on})
    if isinstance(answer, Json):
        return json_response(answer.shape)
    if isinstance(answer, PayloadPage):
        if request.wants_json:
            return _response(harmless_json(answer.json), "application/json")
        return _response(render(request, answer.template, {**answer.shown, "again": None, "news": None}), "text/html")
    if request.wants_json:
        return json_response(answer.shape, answer.status, answer.headers)
    shown = {**answer.shown, "again": answer.again, "news": None if answer.again is None else answer.news}
    return _response(render(request, answer.template, shown), "text/html", answer.status, answer.headers)


def json_response(shape: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return _response(harmless_json(msgspec.json.encode(shape).decode()), "application/json", status, headers)


def _response(text: str, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Half a character, which no encoding knows, must not keep the rest from being shown."""
    return Response(
        text.encode("utf-8", "backslashreplace"), status, dict(headers or {}), media_type=f"{kind}; charset=utf-8"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{status} · Stepfast</title>{style}</head>
<body class="refused"><main><h1>{status}</h1><p>{sentence}</p><p><a href="{base}/">The console</a></p></main></body>
</html>
"""


def response(request: Request, refused: Refused) -> Response:
    """The answer to a request that was refused. What it asked for is not repeated."""
    if wants_json(request):
        return json_response({"error": refused.sentence}, refused.status, refused.headers)
    base = html.escape(base_of(request.scope))
    # Strangers would be refused the style sheet too.
    style = "" if refused.status == 401 else f'<link rel="stylesheet" href="{base}/static/console.css">'
    sentence = html.escape(str(plain(refused.sentence)))
    page = _PAGE.format(status=refused.status, sentence=sentence, base=base, style=style)
    return Response(
        page.encode("utf-8", "backslashreplace"), refused.status, refused.headers,
        media_type="text/html; charset=utf-8",
    )  # fmt: skip
