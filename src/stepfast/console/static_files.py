"""The files that pages refer to: a few, kept in memory, named with a mark of their content."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from starlette.responses import Response

_KINDS = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "diagrams.css": "text/css",
    "icon.svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    kind: str
    tag: str
    """Changes with the content, so that a browser may keep the file for as long as it likes."""


def _load(name: str, kind: str) -> StaticFile:
    folder = files("stepfast.diagrams") if name == "diagrams.css" else files("stepfast.console").joinpath("static")
    content = folder.joinpath(name).read_bytes()
    return StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:12])


FILES = {name: _load(name, kind) for name, kind in _KINDS.items()}


def static_response(name: str) -> Response | None:
    """The file of that name; None if there is none."""
    found = FILES.get(name)
    if found is None:
        return None
    kept = {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(found.content, headers=kept, media_type=f"{found.kind}; charset=utf-8")
