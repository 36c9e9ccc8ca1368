"""The mailman: looks into the mailboxes of runs that this worker holds, one question for all who want to know."""

from __future__ import annotations

import asyncio

from ..engine.execution import Execution
from ..model.records import Look, Mailbox
from .kit import Kit

_MARGIN = 1.0
"""Seconds a claim may take: news that came while it was under way may be missing in what it brought."""


class Mailman:
    """Asks when a run asks, and again whenever there may be something new."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._watched: set[Execution] = set()
        """Runs in memory that wait for mail."""
        self._news = 0.0
        """When we were last told that there may be something new."""
        self._wanted: dict[str, tuple[Execution, asyncio.Future[None]]] = {}
        self._round: asyncio.Task[None] | None = None

    def look(self, execution: Execution) -> asyncio.Future[None]:
        """Ask for a run; the future comes when its mail is in its inbox."""
        known = self._wanted.get(execution.run_id)
        if known is not None and known[0] is execution:
            return known[1]
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted[execution.run_id] = (execution, future)
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._go_round(), name="stepfast-mail")
        return future

    def watch(self, execution: Execution) -> None:
        """Look again into this mailbox when there may be something new; at once, if there may be since the last
        look."""
        self._watched.add(execution)
        if self._news > (execution.inbox.looked_at or execution.began - _MARGIN):
            self.look(execution)

    def told(self) -> None:
        """Somebody says that there is something new, for some run or other."""
        self._news = self._kit.clock.now()
        self.look_again()

    def look_again(self) -> None:
        """There may be something new."""
        for execution in list(self._watched):
            if execution.closed is not None or not execution.waits.wants_mail:
                self._watched.discard(execution)
            else:
                self.look(execution)

    async def _go_round(self) -> None:
        await asyncio.sleep(0)  # whoever asks in the same turn goes along
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            looks, began = (
                [execution.inbox.look(run_id) for run_id, (execution, _) in wanted.items()],
                self._kit.clock.now(),
            )
            try:
                found = await self._kit.ask(lambda: self._kit.store.mail(looks), "mail")  # noqa: B023
            except Exception as error:
                self._fail(error, [future for _, future in wanted.values()])
                continue
            for look, (run_id, asked) in zip(looks, wanted.items(), strict=True):
                try:
                    self._bring(look, found.get(run_id), *asked, began)
                except Exception as error:
                    self._fail(error, [asked[1]])

    def _fail(self, error: Exception, futures: list[asyncio.Future[None]]) -> None:
        """A bug: those who wait for this look must not wait for ever, nor the others with them."""
        self._kit.logger.error("mail: unexpected error", exc_info=error)
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: not everybody waits for it

    def _bring(
        self, look: Look, box: Mailbox | None, execution: Execution, future: asyncio.Future[None], began: float
    ) -> None:
        """Put what was found into the inbox. Ends of children that were too much for one look come with the next."""
        inbox = execution.inbox
        box = box or Mailbox(inbox.wakes, inbox.ends)  # the run is gone
        inbox.looked_at = began
        inbox.put(box, look, self._kit.settings.mail_bytes)
        if box.more and execution.closed is None:
            holder, next_look = self._wanted.setdefault(look.run_id, (execution, future))
            if holder is execution:
                if next_look is not future:  # somebody has asked meanwhile, and brings the rest
                    next_look.add_done_callback(lambda _: _resolve(future))
                return
        _resolve(future)

    async def close(self) -> None:
        """Stop asking: nobody waits for mail any more."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
