"""One wish for several runs: each is asked in turn, and one that is refused does not keep the others from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from ..errors import DatabaseUnavailable, InvalidState, RunNotFound
from ..run import Run
from .exits import complain, exit_code
from .output import write_json
from .session import Session

RunsArgument = Annotated[list[str], typer.Argument(metavar="RUN...", help="Their ids.")]

Told = dict[str, Any]


async def each_run(
    session: Session, ids: Sequence[str], word: str, ask: Callable[[Run[Any]], Awaitable[tuple[str, Told]]]
) -> None:
    """Ask every run. What went well is printed, by the id that ``ask`` gives; for scripts each run is told of, with
    ``word`` saying whether it was done. Exits with the code of the worst refusal."""
    told: list[Told] = []
    code = 0
    async with session.writing() as app:
        for run in [app.get(run_id) for run_id in dict.fromkeys(ids)]:
            try:
                shown, more = await ask(run)
            except (RunNotFound, InvalidState, DatabaseUnavailable) as refused:
                complain(refused)
                code = max(code, exit_code(refused))
                told.append({"id": run.id, word: False, "error": str(refused)})
                if isinstance(refused, DatabaseUnavailable):
                    break  # the others would only wait for the same
            else:
                told.append({"id": run.id, word: True, "error": None} | more)
                if not session.json:
                    print(shown)
    if session.json:
        write_json(told)
    raise typer.Exit(code)
