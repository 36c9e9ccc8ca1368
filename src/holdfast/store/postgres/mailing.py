"""Mail on Postgres: looking into boxes, sending, and taking what was only inserted to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.records import Asked, Lane, Mail, Mailbox
from ...model.status import TERMINAL, WAITING
from ..protocol import Delivery
from .callers import within
from .connections import Line
from .operating import cancel_locked


class Mailroom:
    """Looks over one line, delivers over another; what senders do takes any connection."""

    def __init__(self, looking: Line, delivering: Line, statements: dict[str, str]) -> None:
        self._looking = looking
        self._delivering = delivering
        self._sql = statements

    async def look(self, runs: Sequence[str]) -> dict[str, Mailbox]:
        """One question for all of them."""
        boxes: dict[str, Mailbox] = {}
        for row in await self._looking.fetch(self._sql["mail"], list(runs)):
            run_id = str(row["run_id"])
            box = boxes.get(run_id)
            if box is None:
                box = boxes[run_id] = Mailbox(row["wakes"], row["ends"])
            if row["id"] is not None:
                box.mail.append(
                    Mail(run_id, str(row["id"]), row["kind"], row["name"], row["value"], row["error"], row["format"])
                )
        return boxes

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(self, connection: Any, mail: Mail, again: bool) -> Asked:
        """Put a signal into the box and wake the run, in one transaction. One that was taken before has done so."""
        async with connection.transaction():
            run = await connection.fetchrow(self._sql["lock_run"], mail.run_id)
            refused = _refusal(run)
            if refused is not None:
                return refused
            taken = again and await connection.fetchval(self._sql["was_taken"], mail.run_id, mail.id)
            woken = None if taken else await connection.fetchrow(self._sql["send"], *_values(mail))
        asked = Asked(run["status"], run["reason"], done=True, running=run["held"])
        if woken is not None and run["status"] == WAITING:
            asked.lane = Lane(run["queue"], run["workflow"], run["priority"])
        return asked

    async def send_within(self, connection: Any, mail: Mail) -> Asked:
        """Only insert it, in the sender's transaction."""
        async with within(connection) as theirs:
            run = await theirs.fetchrow(self._sql["status_of"], mail.run_id)
            refused = _refusal(run)
            if refused is None:
                await theirs.execute(self._sql["leave_mail"], *_values(mail))
        return refused or Asked(run["status"], run["reason"], done=True)

    # -- delivering ------------------------------------------------------------------------------------------

    async def deliver(self, limit: int) -> Delivery:
        """The oldest mail whose runs nobody holds just now."""
        async with self._delivering.use() as connection, connection.transaction():
            found = await connection.fetch(self._sql["undelivered"], limit)
            if not found:
                orphans = await connection.fetch(self._sql["remove_orphans"], limit)
                return Delivery(set(), False, False, len(orphans))
            pairs = [row["run_id"] for row in found], [row["id"] for row in found]
            rows = await connection.fetch(self._sql["deliver"], *pairs)
            lanes = {Lane(r["queue"], r["workflow"], r["priority"]) for r in rows if r["queue"] is not None}
            cancelled = [str(r["run_id"]) for r in rows if r["cancel"]]
            ends = await cancel_locked(connection, self._sql, cancelled) if cancelled else []
            lanes |= {end.lane for end in ends if end.lane is not None}
            return Delivery(
                lanes, any(end.ended for end in ends), any(r["held"] for r in rows), sum(r["moved"] for r in rows)
            )


def _refusal(run: Any) -> Asked | None:
    """A run that does not exist, or has ended, takes no mail."""
    if run is None:
        return Asked(None)
    return Asked(run["status"], run["reason"]) if run["status"] in TERMINAL else None


def _values(mail: Mail) -> tuple[Any, ...]:
    return (mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
