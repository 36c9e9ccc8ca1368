"""``check``, ``export`` and ``replay``: whether today's code fits what is recorded of runs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..compatibility import DIVERGES, FITS, TOO_LONG, UNKNOWN, CheckedRun
from ..errors import ConfigurationError
from ..monitoring.text import count, find_run, listed
from .command import RunArgument, Session, ThisOption, option, time_option
from .exit_codes import FAILED, OK, TIMEOUT
from .output import say, write_json, write_table, write_text

_NEWS_EVERY = 5.0
"""Seconds between two words on how far it is."""
_TOLD = 3
"""So many ids of runs that came out the same are listed."""


async def check(
    session: Session,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, as in orders:app.")],
    workflow: Annotated[str | None, option("--workflow", "-w", help="Only runs of this workflow.")] = None,
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="At most so many runs, the newest.")] = None,
    timeout: Annotated[float, time_option("--timeout", "-t", help="For each run. (10)")] = 10.0,
    everything: Annotated[bool, typer.Option("--all", "-a", help="List those that fit, too.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out runs of workflows that only other services have.")
    ] = False,
) -> None:
    """Replay what is recorded of unfinished runs against this code, and list which would diverge, and where.

    Nothing is written and no step is called; only the code between the steps is executed. Ask before a deploy, with
    the code that is to be deployed, while workers run. Exits with 1 if a run would diverge, or is of a workflow that
    this code does not have; with 4 if none is, but some took too long to tell.
    """
    async with session.with_options(None, None, app, False).reading() as application:
        # What the code prints between its steps must not get among the data.
        with contextlib.redirect_stdout(sys.stderr):
            found = await application.check(
                workflow=workflow, limit=limit, timeout=timeout, partial=partial, progress=News()
            )
    if session.json:
        write_json(found)
    else:
        _write(found, everything)
    verdicts = {checked.verdict for checked in found}
    raise typer.Exit(FAILED if verdicts & {DIVERGES, UNKNOWN} else TIMEOUT if TOO_LONG in verdicts else OK)


class News:
    """Says how far it is, if that takes a while."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._said = time.monotonic()

    def __call__(self, checked: CheckedRun) -> None:
        """Count a checked run, and print the counts from time to time."""
        self._counts[checked.verdict] += 1
        if time.monotonic() - self._said >= _NEWS_EVERY:
            self._said = time.monotonic()
            say(f"{count(self._counts.total(), 'run')} so far, {self._counts[DIVERGES]} would diverge …")


def _write(found: Sequence[CheckedRun], everything: bool) -> None:
    shown = [r for r in found if everything or r.verdict != FITS]
    if shown:
        write_table(("runs", "workflow", "verdict", "where", "ids"), [_row(equal) for equal in _alike(shown)])
    write_text(_summary(found))


def _alike(found: Sequence[CheckedRun]) -> list[list[CheckedRun]]:
    """What came out the same, together: one change of the code meets a thousand runs at the same place."""
    groups: dict[tuple[str, ...], list[CheckedRun]] = {}
    for checked in found:
        where = checked.detail.replace(checked.id, "")
        groups.setdefault((checked.workflow, checked.verdict, where), []).append(checked)
    return list(groups.values())


def _row(equal: Sequence[CheckedRun]) -> tuple[str, ...]:
    first = equal[0]
    ids = [checked.id for checked in equal[:_TOLD]]
    if len(equal) > _TOLD:
        ids.append(f"{len(equal) - _TOLD} more (--json lists all)")
    return str(len(equal)), first.workflow, first.verdict, first.detail, ", ".join(ids)


def _summary(found: Sequence[CheckedRun]) -> str:
    counts = Counter(checked.verdict for checked in found)
    if not found:
        return "nothing is recorded of unfinished runs: any code fits"
    parts = [f"{counts[FITS]} fit", f"{counts[DIVERGES]} would diverge"]
    if counts[TOO_LONG]:
        parts.append(f"{counts[TOO_LONG]} took too long")
    if counts[UNKNOWN]:
        unknown = Counter(checked.workflow for checked in found if checked.verdict == UNKNOWN)
        parts.append(f"{counts[UNKNOWN]} of workflows whose code is not here ({', '.join(sorted(unknown))})")
    advice = ""
    if counts[UNKNOWN]:
        advice = "\nThis code does not execute those. If another service serves them, say --partial"
    return f"{count(len(found), 'unfinished run')}: {listed(parts)}{advice}"


async def export(
    session: Session,
    run: RunArgument,
    output: Annotated[str | None, option("--output", "-o", metavar="FILE", help="Else to stdout.")] = None,
    this: ThisOption = False,
) -> None:
    """Write a run as JSON, with all that is recorded of it: to be replayed by a test (`app.replay`), or by `replay`.

    Inputs, results and the secret behind its random values are among it: keep it as you keep the database.
    """
    async with session.reading() as app:
        exported = await (await find_run(app, run, this=this)).export()
    text = msgspec.json.format(msgspec.json.encode(exported), indent=1).decode()
    if output is None:
        write_text(text)
        return
    try:
        Path(output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{output!r} cannot be written: {error.strerror}") from None
    say(f"written to {output}")


async def replay(
    session: Session,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or a file that export has written.")],
    timeout: Annotated[float, time_option("--timeout", "-t", help="For the code between the steps. (10)")] = 10.0,
) -> None:
    """Replay a run against today's code (--app): its records answer in place of steps, and nothing is done.

    Exits with 1 if the code does not fit what is recorded, or if a completed run would return something else.
    """
    if session.code is None:
        raise ConfigurationError("replay needs the code: give --app module:app")
    if Path(run).is_file():
        app, exported = session.application(), Path(run).read_text(encoding="utf-8")
        checked = await _replayed(app.replay(exported, timeout=timeout))
    else:
        async with session.reading() as app:
            checked = await _replayed(app.replay(await (await find_run(app, run)).export(), timeout=timeout))
    if session.json:
        write_json(checked)
    else:
        write_text(f"{checked.workflow} {checked.id}: {checked.verdict}: {checked.detail}")
    raise typer.Exit(OK if checked.verdict == FITS else TIMEOUT if checked.verdict == TOO_LONG else FAILED)


async def _replayed(replaying: Coroutine[object, object, CheckedRun]) -> CheckedRun:
    """What the code prints between its steps must not get among the data."""
    with contextlib.redirect_stdout(sys.stderr):
        return await replaying
