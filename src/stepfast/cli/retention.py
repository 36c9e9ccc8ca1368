"""``prune`` and ``delete``: runs that have ended are removed."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

from ..model.retention import DELETABLE
from ..monitoring.text import count, lasting
from ..run import Run
from .bulk import cancelled_by_sigterm
from .command import Bar, DryRunOption, Session, YesOption, consent, option, time_option
from .output import say, write_json
from .run_commands import RunsArgument, Told, each_run


async def prune(
    session: Session,
    older_than: Annotated[float, time_option("--older-than", help="Those that ended longer ago: 30d, 12h …")],
    archive: Annotated[
        str | None, option("--archive", metavar="FILE", help="Write them there first: a JSON object per line.")
    ] = None,
    status: Annotated[str | None, option("--status", "-s", help=", ".join(DELETABLE))] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove runs that ended a while ago, with their steps and all that belongs to them. What other runs still need
    stays.

    Counts first, and asks; without a terminal it needs --yes, or an archive. It can be interrupted, and called again.
    With an archive, a run is removed only when its line is on the disk; lines are added to what the file holds.
    """
    async with session.writing() as app:
        number = await app.prune(older_than, status=status, dry_run=True)
        what = f"{count(number, 'run')} that ended longer than {lasting(older_than)} ago"
        if dry_run or not number:
            _told(session, f"would remove {what}" if number else "there is nothing to remove", 0, number, None)
            return
        if archive is None or sys.stdin.isatty():  # with an archive nothing is lost: a cron job need not say so twice
            consent(f"Remove {what}{'' if archive is None else f', and keep them in {archive}'}?", yes)
        with Bar("removing", number) as bar, cancelled_by_sigterm():
            try:
                removed = await app.prune(older_than, archive=archive, status=status, progress=bar.at)
            except asyncio.CancelledError:
                say(f"interrupted: about {count(bar.done, 'run')} removed. Call it again for the rest")
                raise
    _told(session, f"removed {count(removed, 'run')}", removed, number, archive)


def _told(session: Session, sentence: str, removed: int, found: int, archive: str | None) -> None:
    if session.json:
        write_json({"found": found, "removed": removed, "archive": archive})
    else:
        say(sentence)


async def delete(session: Session, runs: RunsArgument) -> None:
    """Remove runs that have ended, with all that belongs to them, before their time. Refused while they go on, and
    while other runs need them. Prints the ids of those that are gone.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.delete()
        return run.id, {}

    await each_run(session, runs, "deleted", ask)
