"""``signal``, ``cancel``, ``pause`` and ``resume``: what is asked of runs that go on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..model import status
from ..run import Run
from .batches import RunsArgument, Told, each_run
from .ids import RunArgument, find_run
from .options import json_argument
from .output import say, write_json
from .session import Session


async def signal(
    session: Session,
    run: RunArgument,
    name: Annotated[str, typer.Argument(help="The signal that it waits for, or will.")],
    value: Annotated[
        str | None, typer.Argument(metavar="[JSON]", show_default=False, help="Its value; - reads stdin.")
    ] = None,
) -> None:
    """Send a signal to a run, which keeps it until it takes it. Without a value it is null."""
    given = json_argument(value, "the value")
    async with session.writing() as app:
        handle = await find_run(app, run)
        await handle.signal(name, given)
    if session.json:
        write_json({"id": handle.id, "signal": name, "sent": True})
    else:
        print(handle.id)


async def cancel(session: Session, runs: RunsArgument) -> None:
    """End runs: at once, or after the step that is being executed. Their children are cancelled too, and completed
    steps undone where they say how. Prints the ids of those it was asked of.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.cancel()
        return await _asked(run, "it will be ended after the step that is being executed")

    await each_run(session, runs, "cancelled", ask)


async def pause(session: Session, runs: RunsArgument) -> None:
    """Hold runs, from their next step on, until they are resumed. Signals are kept for them, and a sleep goes on.

    Prints the ids of those it was asked of.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.pause()
        return await _asked(run, "it will be paused after the step that is being executed")

    await each_run(session, runs, "paused", ask)


async def resume(session: Session, runs: RunsArgument) -> None:
    """Let paused runs go on. One that asks again and again whether something is so (ctx.wait_until) asks at once.

    Prints the ids of those that go on.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.resume()
        return run.id, {"status": await run.status()}

    await each_run(session, runs, "resumed", ask)


async def _asked(run: Run[Any], later: str) -> tuple[str, Told]:
    """How the run stands now that it was asked: a worker that has it in hand acts a little later."""
    now = await run.status()
    if now == status.RUNNING:
        say(f"run {run.id} is running: {later}")
    return run.id, {"status": now}
