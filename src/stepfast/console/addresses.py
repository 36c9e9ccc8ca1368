"""Addresses of the console: its prefix, the pages in the navigation, and static files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.responses import Response


def base_of(scope: Mapping[str, Any]) -> str:
    """The prefix as it stands in links, without a slash at its end; empty where the console stands by itself."""
    return quote(_root(scope))


def _root(scope: Mapping[str, Any]) -> str:
    return str(scope.get("root_path", "")).rstrip("/")


def parts_of(scope: Mapping[str, Any]) -> list[str]:
    """The parts of the path behind the prefix. A part may have an encoded slash in it, so that they are taken apart
    before they are decoded."""
    root, raw = _root(scope), scope.get("raw_path")
    if isinstance(raw, bytes):
        text = raw.partition(b"?")[0].decode("ascii", "replace")
        for prefix in (root, quote(root)):
            if text.startswith(prefix):
                return _split(text[len(prefix) :], decode=True)
    path = str(scope["path"])
    return _split(path[len(root) :] if path.startswith(root) else path, decode=False)


def _split(path: str, *, decode: bool) -> list[str]:
    parts = path.strip("/").split("/") if path.strip("/") else []
    return [unquote(part, errors="replace") for part in parts] if decode else parts


NAVIGATION = (
    ("Runs", "runs"),
    ("Queues", "queues"),
    ("Workers", "workers"),
    ("Schedules", "schedules"),
    ("Failures", "failures"),
    ("System", "system"),
    ("Audit", "audit"),
    ("Start", "start"),
)


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
