"""What all commands share: the database, the namespace and the application, options, and exit codes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..app import Stepfast
from ..errors import ConfigurationError, InvalidInput, PayloadError, SchemaError
from ..filters import ListKeywords, typed_attributes
from ..model import status as statuses
from ..model.urls import parse_url
from ..monitoring import text as monitoring_text
from ..monitoring.unreadable import SafeCodec, TolerantPayloads, UnreadablePayload
from ..runtime import unnamed
from ..store import Store, open_store
from .app_loader import load_app
from .exit_codes import INTERRUPTED, complain, exit_code, is_expected
from .output import say

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
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


RunArgument = Annotated[str, typer.Argument(help="The run's id, or the beginning of it.")]


ThisOption = Annotated[
    bool, typer.Option("--this", help="Read this run alone, not the last that it continued as (ctx.continue_as).")
]


KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Name a workflow instead of an id: its run of this key.", show_default=False),
]


def option(*names: str, help: str | None = None, **more: Any) -> Any:
    """An option whose default is not shown."""
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


CHILD_URL = "STEPFAST_CHILD_URL"
"""Passes the value of --url to worker processes that this process starts."""
UrlOption = Annotated[
    str | None,
    option(
        "--url", "-u", metavar="URL", help="The database. Else that of the code, STEPFAST_URL, or sqlite:///stepfast.db.",
        envvar=CHILD_URL, show_envvar=False,
    ),
]  # fmt: skip
NamespaceOption = Annotated[
    str | None, option("--namespace", metavar="NAME", help="Else STEPFAST_NAMESPACE, or stepfast.")
]
AppOption = Annotated[
    str | None, option("--app", metavar="MODULE:APP", help="The code: its database, workflows and codec.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts.")]


@dataclass(frozen=True, slots=True)
class Session:
    """The shared options of one call."""

    url: str | None = None
    namespace: str | None = None
    code: str | None = None
    json: bool = False

    def with_options(self, url: str | None, namespace: str | None, code: str | None, json: bool) -> Session:
        """Return the options given before the command, replaced by those after it."""
        return Session(
            self.url if url is None else url,
            self.namespace if namespace is None else namespace,
            self.code if code is None else code,
            self.json or json,
        )

    def application(self, codec: UnreadablePayload | None = None) -> Stepfast:
        """Return the application of the code, changed by the options; or one without code, which makes no tables."""
        if self.url is not None:
            parse_url(self.url)  # an empty one is a mistake, and does not mean the default
        if self.code is None:
            return Stepfast(self.url, self.namespace, auto_migrate=False, codec=codec)
        app = load_app(self.code)
        app.redirect(url=self.url, namespace=self.namespace)
        return app

    @contextlib.asynccontextmanager
    async def _opened(self, app: Stepfast, *, makes_tables: bool = False) -> AsyncIterator[Stepfast]:
        SafeCodec.around(app._payloads)
        if not makes_tables:
            app.redirect(auto_migrate=False)
            _refuse_absent_file(app)
        _warn_if_unnamed(app)
        try:
            yield app
        finally:
            await app.close()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Stepfast]:
        """An application that starts or changes runs; with its code it makes its tables as it would by itself."""
        async with self._opened(self.application(), makes_tables=self.code is not None) as app:
            try:
                yield app
            except PayloadError as error:
                if self.code is None and "codec" in str(error):
                    raise PayloadError("the payload went through a codec; give the code: --app module:app") from None
                raise

    def reading(self) -> contextlib.AbstractAsyncContextManager[Stepfast]:
        """An application that only reads: it makes neither tables nor files."""
        return self._opened(self.application(codec=UnreadablePayload()))

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[Stepfast]:
        """An application for lists and drawings: a payload that cannot be read is replaced by a note."""
        async with self.reading() as app:
            shown = copy.copy(app)
            shown._payloads = TolerantPayloads.like(app._payloads)
            yield shown

    def operating(self) -> contextlib.AbstractAsyncContextManager[Stepfast]:
        """An application that reads and changes runs, and makes neither tables nor files. Without the code, payloads
        that passed through a codec are shown as not readable."""
        app = self.application()
        if self.code is None:
            app._payloads.stand_in = UnreadablePayload()
        return self._opened(app)

    @contextlib.asynccontextmanager
    async def store(self, app: Stepfast) -> AsyncIterator[Store]:
        """The database, in any state of its tables."""
        _warn_if_unnamed(app)
        store = open_store(app.url, app.namespace, app.settings)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def absent_file(app: Stepfast) -> str | None:
    """Return the path of an SQLite file that does not exist; opening it would create it."""
    path = app.url.path
    return path if app.url.kind == "sqlite" and path is not None and not os.path.exists(path) else None


def _warn_if_unnamed(app: Stepfast) -> None:
    if not app.url_named:
        say(f"warning: {unnamed(app.url, '--url')}")


def _refuse_absent_file(app: Stepfast) -> None:
    path = absent_file(app)
    if path is not None:
        raise SchemaError(f"there is no SQLite file {path!r} yet; give --url, or run `stepfast migrate` to make it")


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]

_NEWS_EVERY = 5.0
"""Seconds between two lines on the progress, without a terminal."""


def consent(question: str, yes: bool) -> None:
    """Ask for confirmation. Without a terminal, --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} There is no terminal to ask at: give --yes, or --dry-run to only count")
    typer.confirm(question, abort=True, err=True)


class Bar:
    """The progress on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._said = time.monotonic()
        self.done = 0
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def on_terminal(self) -> bool:
        """Whether it is a bar, and not lines now and then."""
        return self._bar is not None

    def rename(self, what: str) -> None:
        """Show other words beside the bar."""
        if self._bar is not None:
            self._bar.update(self._task, description=escape(what))

    def at(self, done: int, total: int | None = None) -> None:
        """Show how many are done. There may be more by now than were counted."""
        self.done = done
        self._total = self._total if total is None else total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=max(done, self._total))
        elif time.monotonic() - self._said >= _NEWS_EVERY:
            self._said = time.monotonic()
            say(f"{self._what}: {done} of {max(done, self._total)} …")


AttributeOption = Annotated[
    list[str] | None, option("--attribute", metavar="NAME=VALUE", help="May be given several times.")
]


async def attributes_given(app: Stepfast, pairs: Sequence[str] | None, known: bool = True) -> dict[str, Any]:
    """The attributes of a command line, of the types that their names have. ``known``: others are refused."""
    return typed_attributes(pairs, await (await app.store()).attribute_types(), known) if pairs else {}


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that select runs. A command with a parameter of this type has them all."""

    workflow: Annotated[str | None, option("--workflow", "-w", help="Instead of ids: all runs of this workflow.")] = (
        None
    )
    status: Annotated[str | None, option("--status", "-s", help=", ".join(statuses.RUN_STATUSES))] = None
    queue: Annotated[str | None, option("--queue", "-q")] = None
    reason: Annotated[str | None, option("--reason", help=", ".join(statuses.REASONS))] = None
    tag: Annotated[str | None, option("--tag")] = None
    attribute: AttributeOption = None
    parent: Annotated[str | None, option("--parent", metavar="RUN", help="Started by this run.")] = None
    key: Annotated[str | None, option("--key", help="Started with this key.")] = None
    since: Annotated[float | None, time_option("--since", help="Created within the last 10m, 2h, 1d …")] = None
    older_than: Annotated[float | None, time_option("--older-than", help="Created longer ago than 10m, 2h, 1d …")] = (
        None
    )
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="At most so many, the oldest.")] = None
    dry_run: DryRunOption = False
    yes: YesOption = False

    @property
    def filters(self) -> ListKeywords:
        """The filters that were given."""
        given: ListKeywords = {
            "workflow": self.workflow, "status": self.status, "queue": self.queue, "reason": self.reason,
            "tag": self.tag, "key": self.key, "since": self.since, "older_than": self.older_than,
            "parent": self.parent,
        }  # fmt: skip
        return given

    async def filters_in(self, app: Stepfast) -> ListKeywords:
        """The filters, with attributes of the types that they have in this database."""
        return {**self.filters, "attributes": await attributes_given(app, self.attribute) or None}

    @property
    def is_given(self) -> bool:
        """Whether there is any filter."""
        return bool(self.attribute) or any(value is not None for value in self.filters.values())

    def is_made(self, ids: Sequence[str]) -> bool:
        """Whether runs are chosen rather than named. One of both has to be so."""
        made = self.is_given
        if made and ids:
            raise ConfigurationError("name runs by their ids or choose them by --workflow, --status …, not both")
        if not made and not ids:
            raise ConfigurationError("which runs? Name them by their ids, or choose them by --workflow, --status …")
        if not made and (self.limit is not None or self.dry_run):
            raise ConfigurationError("--limit and --dry-run go with --workflow, --status …, not with ids")
        return made


def choice_parameters() -> list[inspect.Parameter]:
    """The options as the parameters of a function."""
    kinds = get_type_hints(Choice, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in fields(Choice)
    ]


RunsOrChoice = Annotated[
    list[str] | None, typer.Argument(metavar="RUN...", help="Their ids, or the beginnings of them.")
]


Verb = Callable[..., Coroutine[Any, Any, None] | None]

_SHARED = (
    ("url", UrlOption, None),
    ("namespace", NamespaceOption, None),
    ("app", AppOption, None),
    ("json", JsonOption, False),
)


def add_verb(cli: typer.Typer, function: Verb, without: Collection[str] = ()) -> None:
    """Make the function a command of its own name; ``without`` names shared options that it does not take."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    chooses = [p.name for p in own if p.annotation is Choice]
    own = [each for p in own for each in (choice_parameters() if p.annotation is Choice else [p])]
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
            given[name] = Choice(**{field.name: given.pop(field.name) for field in fields(Choice)})
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
