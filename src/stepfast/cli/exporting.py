"""``export`` and ``replay``: a run as JSON, and what today's code makes of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..checking import FITS, TOO_LONG, CheckedRun
from ..errors import ConfigurationError
from ..monitoring.text import find_run
from .exits import FAILED, OK, TIMEOUT
from .options import RunArgument, option, time_option
from .output import say, write_json, write_text
from .session import Session


async def export(
    session: Session,
    run: RunArgument,
    output: Annotated[str | None, option("--output", "-o", metavar="FILE", help="Else to stdout.")] = None,
) -> None:
    """Write a run as JSON, with all that is recorded of it: to be replayed by a test (`app.replay`), or by `replay`.

    Inputs, results and the secret behind its random values are among it: keep it as you keep the database.
    """
    async with session.reading() as app:
        exported = await (await find_run(app, run)).export()
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
