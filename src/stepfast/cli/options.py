"""Options as the verbs declare them, in short; and arguments that are JSON."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from ..errors import InvalidInput
from .times import moment, span

RunArgument = Annotated[str, typer.Argument(help="The run's id, or the beginning of it.")]


KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Name a workflow instead of an id: its run of this key.", show_default=False),
]


def option(*names: str, help: str | None = None, **more: Any) -> Any:
    """An option whose default is not worth a word."""
    return typer.Option(*names, help=help, show_default=False, **more)


def time_option(*names: str, help: str) -> Any:
    """An option whose value is a span of time."""
    return option(*names, help=help, parser=span, metavar="TIME")


def moment_option(*names: str, help: str) -> Any:
    """An option whose value is a point in time."""
    return option(*names, help=help, parser=moment, metavar="WHEN")


def json_argument(text: str | None, what: str) -> Any:
    """A value given on the command line; ``-`` reads it from stdin, nothing is null."""
    if text is None:
        return None
    piped = text == "-"
    document = sys.stdin.read() if piped else text
    try:
        return msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        where, hint = ("stdin", "") if piped else (what, "; a string needs its quotes: '\"text\"'")
        raise InvalidInput(f"{where} is not JSON: {error}{hint}") from None
