"""What SQLite reads in words of its own: lists of runs, outputs of dag steps, mailboxes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ...model import status
from ...model.records import Look, Mail, Mailbox, holds_all
from ...model.status import AT_REST, RUNNING
from ...model.transitions.signals import way_to_signal
from ..answers import mailbox_full
from .bulk_rows import fetch, fetch_wide


def page_statement(tag: str | None, status: str | None, workflow: str | None) -> str:
    """The statement that starts from the narrowest index the filters allow."""
    if tag is not None:
        return "runs_tagged"
    if status == RUNNING:
        return "runs_running"
    if status in AT_REST:
        return "runs_at_rest"
    return "runs" if workflow is None else "runs_of_workflow"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def mail(database: sqlite3.Connection, sql: dict[str, str], looks: Sequence[Look], most: int) -> dict[str, Mailbox]:
    """Two questions for all of them, the counters first: no snapshot holds them together. Large values apart."""
    ids = [look.run_id for look in looks]
    boxes = {run_id: Mailbox(wakes, ends) for run_id, wakes, ends in fetch(database, sql["counters"], (ids,))}
    wanted = _json([(look.run_id, look.names) for look in looks])
    seen = _json([mail_id for look in looks for mail_id in look.seen])
    brought = sorted(fetch_wide(database, sql["mail"], (wanted, seen, most)), key=lambda row: (row[0], row[2]))
    for _, run_id, mail_id, kind, name, value, error, format_, trace, large in brought:
        if large:
            found = database.execute(sql["mail_value"], (run_id, mail_id)).fetchone()
            if found is None:
                continue  # taken in between
            (value,) = found
        if run_id in boxes:
            boxes[run_id].mail.append(Mail(run_id, mail_id, kind, name, value, error, format_, trace))
    for box in boxes.values():
        box.more = not holds_all([each for each in box.mail if each.kind in status.MAIL_ENDS], most)
    return boxes


def post(database: sqlite3.Connection, sql: dict[str, str], mail: Mail) -> None:
    """Leave mail to be delivered later, unless the run has ended, or there is none, or it has this mail already."""
    row = (mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format, mail.trace, mail.run_id)
    database.execute(sql["post"], row)


def post_to_step(database: sqlite3.Connection, sql: dict[str, str], mail: Mail) -> str | None:
    """Leave a signal for the step of its name, to be delivered later; the id of that step, if it takes signals."""
    row = (mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format, mail.trace, mail.run_id, mail.name)
    database.execute(sql["post_to_step"], row)
    step = database.execute(sql["step_named"], (mail.run_id, mail.name)).fetchone()
    return None if step is None or way_to_signal(step[1]) != "take" else str(step[0])


def refuse_if_full(database: Any, sql: dict[str, str], run_id: str, most: int) -> None:
    """Raise once the signal is in the mailbox: it goes when the transaction is rolled back."""
    if database.execute(sql["count_signals"], (run_id, most + 1)).fetchone()[0] > most:
        raise mailbox_full(run_id, most)
