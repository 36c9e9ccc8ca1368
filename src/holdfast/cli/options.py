"""Options as the verbs declare them, in short."""

from __future__ import annotations

from typing import Any

import typer

from .text import moment, span


def option(*names: str, help: str | None = None, **more: Any) -> Any:
    """An option whose default is not worth a word."""
    return typer.Option(*names, help=help, show_default=False, **more)


def time_option(*names: str, help: str) -> Any:
    """A span of time."""
    return option(*names, help=help, parser=span, metavar="TIME")


def moment_option(*names: str, help: str) -> Any:
    """A point in time."""
    return option(*names, help=help, parser=moment, metavar="WHEN")
