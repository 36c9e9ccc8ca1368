"""What a page or an action gives back: a page with its JSON twin, or the address to go on to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.responses import Response

from ..monitoring.text import harmless_json
from .outlook import Outlook
from .rendering import render
from .visit import Visit


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
    news: Outlook | None = None
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
class Piece:
    """One payload, loaded when somebody opens it; as JSON, its text."""

    template: str
    shown: Mapping[str, Any]
    json: str


@dataclass(frozen=True, slots=True)
class Word:
    """An answer to a script of ours: JSON, whatever is asked for."""

    shape: Any


Answer = Page | Done | Piece | Word


def respond(visit: Visit, answer: Answer) -> Response:
    """The response that carries an answer."""
    if isinstance(answer, Done):
        if visit.wants_json:
            return json_response(answer.shape)
        return Response(status_code=303, headers={"Location": answer.go_on})
    if isinstance(answer, Word):
        return json_response(answer.shape)
    if isinstance(answer, Piece):
        if visit.wants_json:
            return _response(harmless_json(answer.json), "application/json")
        return _response(render(visit, answer.template, {**answer.shown, "again": None, "news": None}), "text/html")
    if visit.wants_json:
        return json_response(answer.shape, answer.status, answer.headers)
    shown = {**answer.shown, "again": answer.again, "news": None if answer.again is None else answer.news}
    return _response(render(visit, answer.template, shown), "text/html", answer.status, answer.headers)


def json_response(shape: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return _response(harmless_json(msgspec.json.encode(shape).decode()), "application/json", status, headers)


def _response(text: str, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Half a character, which no encoding knows, must not keep the rest from being shown."""
    return Response(
        text.encode("utf-8", "backslashreplace"), status, dict(headers or {}), media_type=f"{kind}; charset=utf-8"
    )
