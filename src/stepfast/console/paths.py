"""The address of a request: the prefix that the console is mounted under, and the parts behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote


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
