"""Spans and points of time as options give them: what is wrong with one is said beside the option."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import typer

from ..monitoring import text as monitoring_text

Given = TypeVar("Given")
Taken = TypeVar("Taken")


def span(text: str | float) -> float:
    """Seconds, from ``90``, ``1.5``, ``90s``, ``5m``, ``2h``, ``1d`` or ``1h30m``."""
    return _parsed(monitoring_text.span, text)


def moment(text: str | datetime) -> datetime:
    """A point in time in ISO format; without a zone it is this machine's local time."""
    return _parsed(monitoring_text.parse_time, text)


def _parsed(parse: Callable[[Given], Taken], text: Given) -> Taken:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
