"""What all verbs share: which database, which namespace, whose code, and whether a person or a script reads along."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import typer

from ..announcing import unnamed
from ..app import Stepfast
from ..errors import PayloadError, SchemaError
from ..model.urls import parse_url
from ..monitoring.unreadable import Candid, Lenient, Sealed
from ..store import Store, open_store
from .loading import load_app
from .options import option
from .output import say

CHILD_URL = "STEPFAST_CHILD_URL"
"""How a worker process tells the ones it keeps what was given as --url."""
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
        """Options may stand before the verb or after it; after it they win."""
        return Session(
            self.url if url is None else url,
            self.namespace if namespace is None else namespace,
            self.code if code is None else code,
            self.json or json,
        )

    def application(self, codec: Sealed | None = None) -> Stepfast:
        """The code's application, with what was said on the command line put in place of what it says; or one without
        code, which never makes tables by itself."""
        if self.url is not None:
            parse_url(self.url)  # an empty one is a mistake, not a wish for the default
        if self.code is None:
            return Stepfast(self.url, self.namespace, auto_migrate=False, codec=codec)
        app = load_app(self.code)
        app.redirect(url=self.url, namespace=self.namespace)
        return app

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Stepfast]:
        """An application that starts or changes runs; with its code it makes its tables as it would by itself."""
        app = self.application()
        Candid.around(app._payloads)
        if self.code is None:
            _refuse_absent_file(app)
        _warn_if_unnamed(app)
        async with _closing(app):
            try:
                yield app
            except PayloadError as error:
                if self.code is None and "codec" in str(error):
                    raise PayloadError("the payload went through a codec; give the code: --app module:app") from None
                raise

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Stepfast]:
        """An application that only looks: it makes neither tables nor files."""
        app = self.application(codec=Sealed())
        Candid.around(app._payloads)
        app.redirect(auto_migrate=False)
        _refuse_absent_file(app)
        _warn_if_unnamed(app)
        async with _closing(app):
            yield app

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[Stepfast]:
        """An application for lists and pictures: a payload that cannot be read does not keep the rest from being
        shown."""
        async with self.reading() as app:
            shown = copy.copy(app)
            shown._payloads = Lenient.like(app._payloads)
            yield shown

    @contextlib.asynccontextmanager
    async def operating(self) -> AsyncIterator[Stepfast]:
        """An application that looks and acts, and makes neither tables nor files. Without the code, what passed through
        a codec is shown as not readable."""
        app = self.application()
        Candid.around(app._payloads)
        app.redirect(auto_migrate=False)
        if self.code is None:
            app._payloads.stand_in = Sealed()
        _refuse_absent_file(app)
        _warn_if_unnamed(app)
        async with _closing(app):
            yield app

    @contextlib.asynccontextmanager
    async def store(self, app: Stepfast) -> AsyncIterator[Store]:
        """The database whatever its tables look like."""
        _warn_if_unnamed(app)
        store = open_store(app.url, app.namespace, app.settings)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@contextlib.asynccontextmanager
async def _closing(app: Stepfast) -> AsyncIterator[Stepfast]:
    try:
        yield app
    finally:
        await app.close()


def absent_file(app: Stepfast) -> str | None:
    """The SQLite file that is not there: opening it would create it."""
    path = app.url.path
    return path if app.url.kind == "sqlite" and path is not None and not os.path.exists(path) else None


def _warn_if_unnamed(app: Stepfast) -> None:
    """Nobody said which database: what is found or started there may be in the wrong place."""
    if not app.url_named:
        say(f"warning: {unnamed(app.url, '--url')}")


def _refuse_absent_file(app: Stepfast) -> None:
    path = absent_file(app)
    if path is not None:
        raise SchemaError(f"there is no SQLite file {path!r} yet; give --url, or run `stepfast migrate` to make it")
