"""``retry``: queueing ended runs again, or starting them anew."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from ..model import status
from ..run import Run
from .batches import Told, each_run
from .choosing import Choice, RunsOrChoice
from .many import VerbForMany, ask_chosen
from .session import Session

_RETRY = VerbForMany("retry", "retried", (status.FAILED,))


async def retry(
    session: Session,
    choice: Choice,
    runs: RunsOrChoice = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Leave them as they are, and start new runs with the same input.")
    ] = False,
) -> None:
    """Queue failed or cancelled runs again: recorded steps are kept, the failed one is made anew.

    Dead letters too: stepfast runs --dead lists them. Prints the ids of what was queued. Runs whose steps were undone
    can only be started anew, with --from-start; then the ids of the new runs are printed. With --workflow, --reason …
    all failed runs that fit (with --status cancelled, cancelled ones): counted, asked, and queued in batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        queued = await run.retry(from_start=from_start)
        return queued.id, {"run": queued.id} if from_start else {}

    if choice.is_made(runs or ()):
        if from_start:
            raise ConfigurationError("--from-start takes ids: called again, it would start chosen runs once more")
        await ask_chosen(session, choice, _RETRY, lambda run: run.retry())
    await each_run(session, runs or (), "retried", ask)
