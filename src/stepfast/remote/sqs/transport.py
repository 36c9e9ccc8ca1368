"""The SQS transport: steps for workers elsewhere are messages of a queue for each group."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError, InvalidState
from ...settings import Settings
from ...worker.db_retry import dutifully
from ...worker.shutdown import ended
from ...worker.threads import REAL, Clockwork
from ..protocol import COMPLETED, DEFAULT_PREFIX, Result, Task, check_group, check_step_name
from .location import SqsLocation, checked
from .messages import Unreadable, decode_result, encode_task
from .queues import RECEIVED_AT_ONCE, Message, Outgoing, Queue, Queues

_HIDDEN = 30
"""Seconds for which a result is hidden from other workers of the application; extended while it is kept here."""
_MOST_KEPT = 2_000
"""Results that wait here to be recorded; no more are received until there is room."""
_LISTENS = 60.0
"""Seconds for which results are received after they were last asked for: each receive is paid for."""
_MOST_RECEIVED = 10
"""How often a result is received that belongs to no run here, before it goes to the dead-letter queue."""
_LOOK = 0.5
"""Seconds until it looks again whether there is room."""


class _Kept:
    """A result that was received and is not recorded yet."""

    def __init__(self, message: Message, result: Result, now: float) -> None:
        self.message = message
        self.result = result
        self.since = now
        self.wanted = False
        """Whether its step was asked for."""


class SqsTransport:
    """Where remote steps go: queues of Amazon SQS, or of a server that speaks its protocol.

    Tasks go to ``<prefix>-tasks-<group>``, or to the queue that ``queue_urls`` has for the group; results come from
    ``<prefix>-results``, or ``results_url``. Credentials, and what is not given here, come from the usual chain of the
    AWS SDK. ``marker`` names a message attribute for queues that are shared with others; ``bucket`` an S3 bucket for
    bodies that are too large for a message; ``fifo`` says that the queues keep an order. Queues that are missing are
    made unless ``create=False``. One engine for each queue of results.
    """

    def __init__(
        self,
        region: str | None = None,
        endpoint_url: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        *,
        queue_urls: Mapping[str, str] | None = None,
        results_url: str | None = None,
        marker: str | None = None,
        bucket: str | None = None,
        fifo: bool = False,
        create: bool = True,
        settings: Settings | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        urls = dict(queue_urls or {})
        self.where = checked(SqsLocation(region, endpoint_url, prefix, urls, results_url, marker, bucket, fifo))
        self.prefix = f"sqs:{prefix}"
        """What tells it from others, and from a transport that is a database."""
        self.create = create
        self._own_settings = settings
        self._settings = Settings.from_environment() if settings is None else settings
        self._logger = logging.getLogger("stepfast.remote") if logger is None else logger
        self._clock: Clockwork = REAL
        self._open: _Open | None = None
        self._tell: Callable[[], None] = lambda: None

    def copy(self, create: bool | None = None, settings: Settings | None = None) -> SqsTransport:
        """A transport over the same queues that is not open: one event loop uses it."""
        where = self.where
        return SqsTransport(
            where.region, where.endpoint_url, where.prefix, queue_urls=where.queue_urls, results_url=where.results_url,
            marker=where.marker, bucket=where.bucket, fifo=where.fifo,
            create=self.create if create is None else create,
            settings=self._own_settings or settings, logger=self._logger,
        )  # fmt: skip

    def on_result(self, tell: Callable[[], None]) -> None:
        """Call a function when results have come."""
        self._tell = tell

    async def open(self) -> None:
        """Connect, and find the queue of results."""
        queues = Queues(self.where, self._clock, self._logger, create=self.create)
        await queues.open()
        try:
            self._open = _Open(queues, await queues.results(), self._settings, self._clock, self._logger, self._heard)
        except BaseException:
            await queues.close()
            raise

    async def close(self) -> None:
        """Disconnect. Results that were not recorded are given back."""
        found, self._open = self._open, None
        if found is not None:
            await found.close()

    def _heard(self) -> None:
        self._tell()

    async def __aenter__(self) -> SqsTransport:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> float | None:
        """Send tasks; for how many seconds their queues keep them. If it fails half way and is called again, what was
        sent is not sent twice."""
        self._refuse(connection)
        return await self._opened.dispatch(tasks)

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """None of them: SQS takes no message back that was not received. It is served, and its result is deleted when
        it comes; what has come of these steps is deleted now."""
        self._refuse(connection)
        await self._opened.discard(step_ids)
        return []

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """Refused: SQS does not tell."""
        raise InvalidState("SQS cannot be asked whether a worker has begun a task")

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """All of them: SQS cannot be asked, so that only what was not sent, or is kept no longer, is asked for."""
        return list(step_ids)

    # -- results ---------------------------------------------------------------------------------------------------

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far: one result each."""
        self._refuse(connection)
        return self._opened.results(step_ids)

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Delete these results."""
        self._refuse(connection)
        await self._opened.remove(results)

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of the steps whose results have been here for longer than a lease."""
        return self._opened.leftovers(after, limit)

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            raise ConfigurationError("the transport is not open: use `async with`, or await its open()")
        return self._open

    def _refuse(self, connection: Any) -> None:
        if connection is not None:
            raise ConfigurationError("SqsTransport takes no connection=: its queues are in no database")


class _Open:
    """An open transport: what was received, and the two duties that receive it and keep it from others."""

    def __init__(
        self,
        queues: Queues,
        queue: Queue,
        settings: Settings,
        clock: Clockwork,
        logger: logging.Logger,
        tell: Callable[[], None],
    ) -> None:
        self._queues = queues
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._logger = logger
        self._tell = tell
        self._kept: dict[str, dict[str, _Kept]] = {}
        """By step and message."""
        self._count = 0
        self._listen_until = 0.0
        self._wanted = asyncio.Event()
        self._nonces: dict[tuple[str, int], str] = {}
        """Of tasks that are being sent."""
        self._sent: set[tuple[str, int]] = set()
        """Of a dispatch that failed half way, what was sent."""
        self._duties = [asyncio.create_task(duty, name="stepfast-sqs") for duty in (self._receive(), self._hold())]

    async def close(self) -> None:
        """End the duties; give back what was not recorded."""
        self._queues.leaving = True
        await ended(self._duties, self._clock)
        receipts = {kept.message.receipt: kept.message.receipt for kept in self._all()}
        if receipts:
            try:
                async with self._clock.timeout(3):
                    await self._queues.hide(self._queue, receipts, 0)
            except Exception as error:  # they come again by themselves
                self._logger.info("results were not given back at once: %s", error)
        await self._queues.close()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def dispatch(self, tasks: Sequence[Task]) -> float | None:
        """See the transport."""
        keeps: float | None = None
        by_queue: dict[str, tuple[Queue, list[Outgoing]]] = {}
        keys: dict[str, tuple[str, int]] = {}
        for task in tasks:
            check_step_name(task.name)
            key = (task.step_id, task.attempt)
            nonce = self._nonces.setdefault(key, self._clock.new_id())
            keys[nonce] = key
            queue = await self._queues.tasks(check_group(task.group))
            keeps = queue.keeps if keeps is None else min(keeps, queue.keeps)
            if key not in self._sent:
                out = Outgoing(task.step_id, encode_task(task), nonce, _whose(task))
                by_queue.setdefault(queue.url, (queue, []))[1].append(out)
        for queue, messages in by_queue.values():
            self._queues.check_size(queue, messages, "the task")
        for queue, messages in by_queue.values():
            await self._queues.send(queue, messages, lambda message: self._sent.add(keys[message.nonce]))
        for key in keys.values():
            self._sent.discard(key)
            self._nonces.pop(key, None)
        return keeps

    # -- results ---------------------------------------------------------------------------------------------------

    def results(self, step_ids: Sequence[str]) -> list[Result]:
        """One result of each step: the completed one, or that of the latest attempt."""
        if not step_ids:
            return []
        self._listen()
        found = []
        for step_id in step_ids:
            kept = self._kept.get(step_id)
            if kept:
                best = max(kept.values(), key=_rank)
                best.wanted = True
                found.append(best.result)
        return found

    async def remove(self, results: Sequence[Result]) -> None:
        """Delete them. They are forgotten first: what fails then comes again, and finds its step over."""
        gone = []
        for result in results:
            kept = self._kept.get(result.step_id, {})
            for message_id in [id_ for id_, one in kept.items() if one.result == result]:
                gone.append(kept.pop(message_id).message)
            if not kept:
                self._kept.pop(result.step_id, None)
        self._count -= len(gone)
        await self._end(gone)

    async def discard(self, step_ids: Sequence[str]) -> None:
        """Delete all results of steps that no run waits for: there may be several of each."""
        gone = [kept.message for step_id in step_ids for kept in self._kept.pop(step_id, {}).values()]
        self._count -= len(gone)
        await self._end(gone)

    async def _end(self, gone: Sequence[Message]) -> None:
        await self._queues.delete(self._queue, [message.receipt for message in gone])
        for message in gone:
            await self._queues.forget_body(message.body)

    def leftovers(self, after: str, limit: int) -> list[str]:
        """See the transport."""
        self._listen()
        before = self._clock.now() - self._settings.lease
        old = {kept.result.step_id for kept in self._all() if kept.since < before}
        return sorted(step_id for step_id in old if step_id > after)[:limit]

    def _listen(self) -> None:
        self._listen_until = self._clock.now() + max(_LISTENS, 2 * self._settings.lease)
        self._wanted.set()

    def _all(self) -> list[_Kept]:
        return [one for kept in self._kept.values() for one in kept.values()]

    async def _receive(self) -> None:
        while True:
            await self._wanted.wait()
            if self._clock.now() > self._listen_until:
                self._wanted.clear()
            elif self._count >= _MOST_KEPT:
                await self._clock.sleep(_LOOK)
            else:
                await self._ride(self._receive_once, "receiving results of remote steps")

    async def _receive_once(self) -> None:
        heard = False
        for message in await self._queues.receive(self._queue, RECEIVED_AT_ONCE, _HIDDEN):
            try:
                result = decode_result(await self._queues.load(message), message.sent_at)
            except Unreadable as problem:
                await self._queues.dead_letter(self._queue, message, str(problem))
                continue
            kept = self._kept.setdefault(result.step_id, {})
            self._count += message.id not in kept
            kept[message.id] = _Kept(message, result, self._clock.now())
            heard = True
        if heard:
            self._tell()

    async def _hold(self) -> None:
        """Keep results hidden from others until they are recorded, but not those that no run here waits for."""
        while True:
            await self._clock.sleep(_HIDDEN / 3)
            await self._ride(self._hold_once, "holding results of remote steps")

    async def _hold_once(self) -> None:
        patience = self._clock.now() - max(_LISTENS, 2 * self._settings.lease)
        for kept in self._all():
            if kept.since < patience and not kept.wanted:
                self._forget(kept)
                if kept.message.received >= _MOST_RECEIVED:
                    await self._queues.dead_letter(
                        self._queue, kept.message, "it is the result of no run of this application"
                    )
            elif kept.since < patience:
                kept.wanted = False  # until it is asked for once more
        receipts = {(one.result.step_id, one.message.id): one.message.receipt for one in self._all()}
        gone = await self._queues.hide(self._queue, receipts, _HIDDEN) if receipts else set()
        for step_id, message_id in gone:
            found = self._kept.get(step_id, {}).get(message_id)
            if found is not None and found.message.receipt == receipts[step_id, message_id]:
                self._forget(found)

    def _forget(self, kept: _Kept) -> None:
        of_step = self._kept.get(kept.result.step_id, {})
        if of_step.get(kept.message.id) is kept:
            del of_step[kept.message.id]
            self._count -= 1
            if not of_step:
                del self._kept[kept.result.step_id]

    async def _ride(self, call: Callable[[], Any], what: str) -> None:
        await dutifully(call, what, self._logger, self._clock, self._settings.outage_backoff_max)


def _rank(kept: _Kept) -> tuple[bool, int, int]:
    result = kept.result
    return result.status == COMPLETED, result.attempt or 0, result.created_at


def _whose(task: Task) -> str:
    """What stands beside a body in S3, for a worker that may not read it."""
    found = {"runId": task.run_id, "seq": task.seq, "stepId": task.step_id, "name": task.name, "attempt": task.attempt}
    return json.dumps(found)
