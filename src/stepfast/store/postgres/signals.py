"""Mail on Postgres: looking into boxes, sending, and taking what was only inserted to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec.structs import replace

from ...model.ids import successor_id
from ...model.names import SIGNAL_ID
from ...model.records import Answer, Lane, Look, Mail, Mailbox, holds_all
from ...model.status import MAIL_ENDS, NO_SUCH_STEP, WAITING
from ...model.transitions.signals import way_to_signal
from ...settings import Settings
from ..answers import mailbox_full
from .caller_connections import Callers
from .connections import KeptConnection


class Mailboxes:
    """Looks over a connection that is kept for it; what senders do takes any connection."""

    def __init__(
        self,
        looking: KeptConnection,
        statements: dict[str, str],
        callers: Callers,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._callers = callers
        self._looking = looking
        self._sql = statements

    async def look(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """One question for all of them."""
        boxes: dict[str, Mailbox] = {}
        names = [None if look.names is None else msgspec.json.encode(look.names).decode() for look in looks]
        seen = [mail_id for look in looks for mail_id in look.seen]
        most = self._settings.mail_bytes
        for row in await self._looking.fetch(self._sql["mail"], [look.run_id for look in looks], names, seen, most):
            run_id = str(row["run_id"])
            box = boxes.get(run_id)
            if box is None:
                box = boxes[run_id] = Mailbox(row["wakes"], row["ends"])
            if row["id"] is not None:
                box.mail.append(Mail(run_id, str(row["id"]), *row[4:10]))
        for box in boxes.values():
            box.more = not holds_all([mail for mail in box.mail if mail.kind in MAIL_ENDS], most)
        return boxes

    # -- sending ---------------------------------------------------------------------------------------------

    async def send_usual(self, connection: Any, mail: Mail, check: bool) -> Answer | None:
        """Put a signal into the box and wake the run, by one statement. None: this is not the usual case, and nothing
        was done."""
        try:
            row = await connection.fetchrow(self._sql["send_usual"], *_values(mail), self._most // 2, mail.trace, check)
        except (asyncpg.UniqueViolationError, asyncpg.SerializationError):
            return None  # it came by another way in between; or a pool that was given to us sees no newer rows
        if row["plans"] is not None:
            return Answer(WAITING, awaited=row["plans"])
        if row["status"] is None:
            return None
        lane = Lane(row["queue"], row["workflow"], row["priority"]) if row["waits"] else None
        return Answer(row["status"], row["reason"], True, lane, running=row["held"])

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """Only insert it, in the sender's transaction."""
        async with self._callers.within(connection) as theirs:
            return await self.leave(theirs, mail)

    async def leave(self, connection: Any, mail: Mail, again: bool = False) -> Answer:
        """Put a signal into the box, for a sweep to deliver: no row that exists is locked or changed."""
        run = await connection.fetchrow(self._sql["status_of"], mail.run_id)
        if run is None:
            return Answer(None)
        step = await self._step(connection, mail) if run["dag"] else None
        receiver = mail.run_id if step is None else str(step["id"])
        key = None if mail.given is None else SIGNAL_ID + mail.given
        holder = mail.run_id if key is None else await self._holder(connection, run, mail.run_id)
        for which in dict.fromkeys((mail.run_id, holder)) if key is not None else ():
            if await connection.fetchval(self._sql["has_signal_id"], which, key):
                return Answer(run["status"], run["reason"], done=True)
        if again and await self._was_taken(connection, run, receiver, mail.id):
            return Answer(run["status"], run["reason"], done=True)
        way, whose = way_to_signal(run["status"], run["reason"]), None
        if way == "forward" and run["reads"]:
            run, whose = await self._last(connection, run, mail.run_id)
            way = way_to_signal(run["status"], run["reason"])
            way = "refused" if way == "forward" else way  # the one it continued as is gone
        if way == "refused":
            return Answer(run["status"], run["reason"], whose=whose)
        if run["dag"] and (step is None or way_to_signal(step["status"]) != "take"):
            return Answer(run["status"], NO_SUCH_STEP)
        if key is not None and not await connection.fetchval(self._sql["put_signal_id"], holder, key):
            return Answer(run["status"], run["reason"], done=True, whose=whose)
        await self._put(connection, replace(mail, run_id=receiver), whose or receiver)
        return Answer(run["status"], run["reason"], done=True, whose=whose)

    async def _was_taken(self, connection: Any, run: Any, run_id: str, mail_id: str) -> bool:
        """Whether a run took this mail before, or one of those that it continued as. A caller who may not read which
        they are looks for them by the ids that they must have."""
        if run["reads"]:
            return bool(await connection.fetchval(self._sql["was_taken_by_any"], run_id, mail_id))
        while run is not None:
            if await connection.fetchval(self._sql["was_taken"], run_id, mail_id):
                return True
            if way_to_signal(run["status"], run["reason"]) != "forward":
                return False
            run_id = successor_id(run_id)
            run = await connection.fetchrow(self._sql["status_of"], run_id)
        return False

    async def _holder(self, connection: Any, run: Any, run_id: str) -> str:
        """The last of the runs that one continued as, which has the ids of their signals. A caller who may not read
        which it is finds it by the ids that they must have."""
        while way_to_signal(run["status"], run["reason"]) == "forward":
            run = await connection.fetchrow(self._sql["status_of"], successor_id(run_id))
            if run is None:
                break
            run_id = successor_id(run_id)
        return run_id

    async def _last(self, connection: Any, run: Any, run_id: str) -> tuple[Any, str]:
        """The last of the runs that one continued as, and its id. It decides; what it takes is left with the run that
        was named all the same: what was left there before is passed on first."""
        while way_to_signal(run["status"], run["reason"]) == "forward":
            continuation = str(await connection.fetchval(self._sql["continuation"], run_id) or run_id)
            found = None if continuation == run_id else await connection.fetchrow(self._sql["status_of"], continuation)
            if found is None:
                break
            run, run_id = found, continuation
        return run, run_id

    async def _step(self, connection: Any, mail: Mail) -> Any:
        """The step of a dag run that a signal is for."""
        return await connection.fetchrow(self._sql["step_named"], mail.run_id, mail.name)

    @property
    def _most(self) -> int:
        return self._settings.max_signals

    async def _put(self, connection: Any, mail: Mail, reader: str) -> None:
        """Put mail into the box, unless it is there already. An error is raised if too many others are: in this box and
        in that of the run which is going to read it, if that is another."""
        if await connection.fetchval(self._sql["leave_mail"], *_values(mail), self._most, mail.trace, reader):
            return
        for box in dict.fromkeys((mail.run_id, reader)):
            if await connection.fetchval(self._sql["is_there"], box, mail.id):
                return
        raise mailbox_full(reader, self._most)


def _values(mail: Mail) -> tuple[Any, ...]:
    return (mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format)
