"""Asking the person at the terminal before something is done to many runs, and telling how far it is."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import ConfigurationError
from .output import say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]

_NEWS_EVERY = 5.0
"""Seconds between two words on how far it is, where there is no terminal."""


def consent(question: str, yes: bool) -> None:
    """Go on only if somebody says so. Where nobody can be asked, --yes has to have been given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} There is no terminal to ask at: give --yes, or --dry-run to only count")
    typer.confirm(question, abort=True, err=True)


class Bar:
    """How far it is: a bar on a terminal, a line now and then elsewhere. Always on stderr."""

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

    def at(self, done: int) -> None:
        """So many are done. There may be more of them by now than were counted before."""
        self.done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=max(done, self._total))
        elif time.monotonic() - self._said >= _NEWS_EVERY:
            self._said = time.monotonic()
            say(f"{self._what}: {done} of {max(done, self._total)} …")
