"""What runs are to each other: the end of a child is mail to its parent, a cancellation goes down to the children, and
a run that goes on as another one leaves it what it has. Called in the transaction that ends the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ...model import status
from ...model.records import Mail, NewRun
from .starting import start
from .wide import execute_wide


def tell_parents(database: sqlite3.Connection, sql: dict[str, str], ended: Sequence[str]) -> bool:
    """Leave mail for the parents of those that have one; whether any has."""
    return execute_wide(database, sql["tell_parents"], [(run_id,) for run_id in ended]) > 0


def cancel_children(database: sqlite3.Connection, sql: dict[str, str], cancelled: Sequence[str]) -> bool:
    """Leave mail for the children of those that were really cancelled; whether there are any."""
    return execute_wide(database, sql["tell_children"], [(run_id,) for run_id in cancelled]) > 0


def succeed(
    database: sqlite3.Connection, sql: dict[str, str], ended: str, successor: NewRun, asked: str | None
) -> None:
    """Start the run that goes on from an ended one. What was asked of the ended one, and it left unheard, is for it."""
    shape = successor.shape._replace(tags=())  # they are inherited, like the parent
    start(database, sql, [NewRun(successor.id, shape, successor.input, successor.key, None, successor.origin)])
    both = {"ended": ended, "successor": successor.id}
    for name in ("inherit", "inherit_tags", "inherit_mail"):
        database.execute(sql[name], both)
    if asked == status.ASK_PAUSE:
        database.execute(sql["hold"], (successor.id,))
    elif asked == status.ASK_CANCEL:
        post(database, sql, Mail(successor.id, ended, status.MAIL_CANCEL, "", None))


def post(database: sqlite3.Connection, sql: dict[str, str], mail: Mail) -> bool:
    """Leave mail to be delivered later; False: the run has ended, or there is none, or it has this mail already."""
    row = (mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format, mail.run_id)
    return database.execute(sql["post"], row).rowcount > 0
