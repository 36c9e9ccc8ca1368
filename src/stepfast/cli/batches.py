"""One wish for several runs: each is asked in turn, and one that is refused does not keep the others from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from ..app import Stepfast
from ..errors import DatabaseUnavailable, InvalidState, RunNotFound
from ..monitoring.text import find_run
from ..run import Run
from .exits import as_typed, complain, exit_code
from .output import write_done, write_json
from .session import Session

RunsArgument = Annotated[list[str], typer.Argument(metavar="RUN...", help="Their ids, or the beginnings of them.")]

Told = dict[str, Any]


async def each_run(
    session: Session, ids: Sequence[str], word: str, ask: Callable[[Run[Any]], Awaitable[tuple[str, Told]]]
) -> None:
    """Ask every run. What went well is printed, by the id that ``ask`` gives; for scripts each run is told of, with
    ``word`` saying whether it was done. Exits with the code of the worst refusal. A name that could mean several runs
    stops all of it before anything is asked."""
    told: list[Told] = []
    code = 0
    async with session.writing() as app:
        for name, run in (await _named(app, ids)).items():
            try:
                if isinstance(run, RunNotFound):
                    raise run
                shown, more = await ask(run)
            except (RunNotFound, InvalidState, DatabaseUnavailable) as refused:
                complain(refused)
                code = max(code, exit_code(refused))
                told.append({"id": name, word: False, "error": as_typed(str(refused))})
                if isinstance(refused, DatabaseUnavailable):
                    break  # the others would only wait for the same
            else:
                told.append({"id": name, word: True, "error": None} | more)
                if not session.json:
                    write_done(shown)
    if session.json:
        write_json(told)
    raise typer.Exit(code)


async def _named(app: Stepfast, ids: Sequence[str]) -> dict[str, Run[Any] | RunNotFound]:
    """Each run once, however often and however shortened it is named."""
    found: dict[str, Run[Any] | RunNotFound] = {}
    for text in ids:
        try:
            run = await find_run(app, text)
            found[run.id] = run
        except RunNotFound as error:
            found[text] = error
    return found
