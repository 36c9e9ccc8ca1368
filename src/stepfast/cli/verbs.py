"""How a function becomes a verb: it gets the shared options, its errors become exit codes.

A verb is a function of a ``Session`` and of its own options, ``async`` or not. With a parameter of the type ``Choice``
it has all the options that choose runs.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import typer

from . import choosing
from .choosing import Choice
from .exits import INTERRUPTED, complain, exit_code, is_expected
from .session import AppOption, JsonOption, NamespaceOption, Session, UrlOption

Verb = Callable[..., Coroutine[Any, Any, None] | None]

_SHARED = (
    ("url", UrlOption, None),
    ("namespace", NamespaceOption, None),
    ("app", AppOption, None),
    ("json", JsonOption, False),
)


def add_verb(cli: typer.Typer, function: Verb, without: Collection[str] = ()) -> None:
    """Make the function a command of its own name; ``without`` names the shared options it has no use for."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    chooses = [p.name for p in own if p.annotation is Choice]
    own = [each for p in own for each in (choosing.parameters() if p.annotation is Choice else [p])]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _SHARED
        if name not in without
    ]

    def command(context: typer.Context, **given: Any) -> None:
        options = {p.name: given.pop(p.name) for p in shared}
        before = context.obj if isinstance(context.obj, Session) else Session()
        session = before.with_options(
            options.get("url"), options.get("namespace"), options.get("app"), options.get("json", False)
        )
        for name in chooses:
            given[name] = choosing.taken_from(given)
        _call(function, session, given)

    parameters = [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
        *shared,
    ]
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    cli.command(function.__name__.replace("_", "-"), help=_paragraphs(inspect.getdoc(function) or ""))(command)


def _paragraphs(text: str) -> str:
    """Without the line breaks of the source, which would show in the help."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def _call(function: Verb, session: Session, given: dict[str, Any]) -> None:
    try:
        outcome = function(session, **given)
        if outcome is not None:
            asyncio.run(outcome)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not is_expected(error):
            raise
        complain(error)
        raise typer.Exit(exit_code(error)) from None
