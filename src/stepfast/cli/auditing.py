"""``audit``: who did what by the console."""

from __future__ import annotations

from typing import Annotated

import typer

from ..model.cron import clock
from ..model.ids import check_id
from ..model.moments import moment
from ..monitoring.audit import line_shape
from ..store.store import AuditLine
from .options import option
from .output import say, write_json, write_table
from .session import Session


async def audit(
    session: Session,
    which: Annotated[
        str | None, typer.Argument(metavar="[WHICH]", help="A run, queue or schedule: only what was done to it.")
    ] = None,
    limit: Annotated[int, option("--limit", "-n", min=1, max=10_000, help="Lines, the newest first. (50)")] = 50,
    before: Annotated[str | None, option("--before", metavar="ID", help="The last line of the page before.")] = None,
) -> None:
    """List what was done by the console: when, who, what, to which run, queue or schedule, from where, what came of it.

    Unknown says that nothing was heard of it any more, as of a process that was killed: it may or may not have been
    done.
    """
    async with session.reading() as app:
        found = await (await app.store()).audit(which, None if before is None else check_id(before), limit)
    if session.json:
        write_json([line_shape(line) for line in found])
    elif found:
        write_table(("when", "who", "what", "which", "from", "outcome", "in words"), [_row(line) for line in found])
        if len(found) == limit:
            say(f"more: --before {found[-1].id}")
    else:
        say("nobody has done anything by the console")


def _row(line: AuditLine) -> tuple[str, ...]:
    at = clock(moment(line.at))
    return at, line.who, line.what, line.which, line.origin, line.outcome, line.said or ""
