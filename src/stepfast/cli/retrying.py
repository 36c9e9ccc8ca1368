"""``retry``: queueing ended runs again, or starting them anew."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..run import Run
from .batches import RunsArgument, Told, each_run
from .session import Session


async def retry(
    session: Session,
    runs: RunsArgument,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Leave them as they are, and start new runs with the same input.")
    ] = False,
) -> None:
    """Queue failed or cancelled runs again: recorded steps are kept, the failed one is made anew.

    Dead letters too: stepfast runs --dead lists them. Prints the ids of what was queued. Runs whose steps were undone
    can only be started anew, with --from-start; then the ids of the new runs are printed.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        queued = await run.retry(from_start=from_start)
        return queued.id, {"run": queued.id} if from_start else {}

    await each_run(session, runs, "retried", ask)
