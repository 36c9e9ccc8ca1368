"""``retry``: queueing ended runs again."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import HoldfastError, InvalidState, RunNotFound
from .exits import complain, exit_code
from .output import write_json
from .session import Session


async def retry(
    session: Session,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Their ids.")],
) -> None:
    """Queue failed or cancelled runs again: recorded steps are kept, the failed one is made anew.

    Dead letters too: holdfast runs --dead lists them. Prints the ids of what was queued.
    """
    told, code = [], 0
    async with session.writing() as app:
        handles = [app.get(run_id) for run_id in runs]
        for run in handles:
            error: HoldfastError | None = None
            try:
                await run.retry()
            except (RunNotFound, InvalidState) as refused:
                error, code = refused, max(code, exit_code(refused))
                complain(refused)
            told.append({"id": run.id, "retried": error is None, "error": None if error is None else str(error)})
            if error is None and not session.json:
                print(run.id)
    if session.json:
        write_json(told)
    raise typer.Exit(code)
