"""Words and figures for people: spans of time in and out, ages, values cut to a readable length."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

import msgspec

from ..model.graph import STEP, DagStep
from ..settings import Settings

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|min|[smhdw])")
_LONGEST = 300
"""Characters of a payload shown to people; scripts get all of it."""
_USUAL_RETRIES = Settings().dag_retries
"""Retries of a step of a dag that go without saying. It is not the setting of the process that draws: a drawing means
the same to every reader."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_BEYOND_ASCII = re.compile(r"[\x7f-\x9f]")


def span(text: str | float) -> float:
    """Seconds, from ``90``, ``1.5``, ``90s``, ``5m``, ``2h``, ``1d`` or ``1h30m``."""
    if isinstance(text, (int, float)):
        return float(text)
    compact = text.strip().lower()
    try:
        value = float(compact)
    except ValueError:
        if not re.fullmatch(rf"(?:{_PART.pattern}\s*)+", compact):
            raise _no_span(text) from None
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
    if not math.isfinite(value) or value < 0:
        raise _no_span(text)
    return value


def _no_span(text: str) -> ValueError:
    return ValueError(f"{text!r} is not a time; write seconds (90, 0.5) or 500ms, 90s, 5m, 2h, 1d, 1h30m")


def moment(text: str | datetime) -> datetime:
    """A point in time in ISO format, or as it is shown (``… UTC``); without a zone it is this machine's local time."""
    if isinstance(text, datetime):
        return text
    try:
        found = datetime.fromisoformat(re.sub(r"\s*UTC$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2030-01-31T09:30 or 2030-01-31T09:30+01:00") from None
    return found.astimezone() if found.tzinfo is None else found


def lasting(seconds: float) -> str:
    """A span as people say it: ``40 ms``, ``3.2 s``, ``45 s``, ``5 min``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s", until=600)
    if whole < 86400:
        return _two(whole, 3600, "h", 60, "min", until=86400)
    return _two(whole, 86400, "d", 3600, "h", until=864000)


def _two(whole: int, large: int, large_name: str, small: int, small_name: str, *, until: int) -> str:
    """Two units while the smaller one still matters."""
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest and whole < until else "")


def ago(then: datetime, now: datetime) -> str:
    """``3 s ago``, or ``in 12 s``."""
    seconds = (now - then).total_seconds()
    return f"in {lasting(-seconds)}" if seconds < 0 else f"{lasting(seconds)} ago"


def listed(names: list[str]) -> str:
    """Names as a sentence lists them: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 worker``, ``3 workers``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def retries_of(dag_step: DagStep) -> str:
    """How often a step of a dag is retried, if that differs from the default; empty otherwise."""
    if dag_step.kind != STEP or dag_step.retries in (None, _USUAL_RETRIES):
        return ""
    return {0: "no retries", 1: "1 retry"}.get(dag_step.retries or 0, f"{dag_step.retries} retries")


def brief(value: Any) -> str:
    """A payload as JSON on one line, cut where it gets long."""
    return shortened(msgspec.json.encode(value).decode())


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Text on one line, cut where it gets long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]}… ({len(line)} characters; --json shows all)"


def printable(text: str) -> str:
    """Text that cannot take over a terminal: control characters are spelled out."""
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def harmless_json(text: str) -> str:
    """JSON that cannot take over a terminal, and still means the same: the encoder leaves control characters beyond
    ASCII as they are, and some terminals obey them."""
    return _BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
