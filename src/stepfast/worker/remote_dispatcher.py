"""The dispatcher of remote steps: sends them when they are due, over a transport, and brings back their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..documents import cite
from ..engine.observers import tell_each
from ..errors import ConfigurationError, DatabaseRefused, StepfastError, sentence
from ..model.remote_steps import DispatchRoute, Result, Task, key_of
from ..store import Store
from ..store.answers import Due, Key
from .context import WorkerContext
from .shutdown import to_the_end

if TYPE_CHECKING:
    from .worker import WorkerRuntime


class Transport(Protocol):
    """The engine's side. ``connection`` is one of the transport's own database, with the caller's transaction open on
    it: what is done there comes with its commit. A transport that is no database refuses it."""

    prefix: str
    """What tells it from others: a step that went out over one is not looked for over another."""

    async def open(self) -> None:
        """Connect, and make what is needed if that is wanted."""
        ...

    async def close(self) -> None:
        """Disconnect from what is the transport's own."""
        ...

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> float | None:
        """Send tasks out. One that is there already stays as it is; a later attempt takes the place of an earlier one,
        and of the failures that it left.

        A transport that cannot be asked whether a task is there says for how many seconds it keeps them. Its ``lost``
        names all steps, and is called only for those that were not sent, or are kept no longer."""
        ...

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far. Of other steps, which may be other engines', nothing is touched."""
        ...

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Take away results that were recorded: exactly these, and not what has come in their place since."""
        ...

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back what no worker has begun; the ids of those that were. Others come to an end, and their results are
        the caller's to remove."""
        ...

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, whose tasks no worker has begun, for people who wonder."""
        ...

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, that have vanished: neither a task nor a result of them is there. Send them
        again."""
        ...

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of the steps, in the order of their ids, of which there is a task or a result that has lain there for
        longer than a lease. Some of them may be over."""
        ...


_NONE = (
    "ctx.remote needs a transport, over which workers elsewhere are reached: those that serve remote steps cannot read "
    "this application's SQLite file. Pass Stepfast(transport=SqlTransport(url)) with the URL of a PostgreSQL or "
    "MariaDB/MySQL database that they can reach (from stepfast.remote import SqlTransport), or keep the application "
    f"itself on PostgreSQL. See {cite('how-to/remote-steps')}"
)


class TransportHandle:
    """The transport, its prefix, and whether it takes part in the store's own transactions."""

    def __init__(self, store: Store, make: Callable[[], Transport] | None, joined: bool = False) -> None:
        self._store = store
        self._make = make
        self._joined = joined
        self._opening: asyncio.Future[DispatchRoute] | None = None
        self._made: Transport | None = None
        self._transport: Transport | None = None
        """The one that was made, once it is open."""
        self.way: DispatchRoute | None = None
        """How remote steps go out, once it was queried."""

    @property
    def exists(self) -> bool:
        """Whether there is any transport."""
        return self._make is not None

    @property
    def transport(self) -> Transport:
        """The transport, which was opened."""
        assert self._transport is not None
        return self._transport

    async def find_way(self) -> DispatchRoute:
        """How remote steps go out. If that is over another database, a run need not wait until it can be reached: its
        steps are in the outbox until then."""
        if self._joined:
            return await self.open()
        return self._way_of(self._given())

    async def open(self) -> DispatchRoute:
        """Open it, once for all callers. Its tables are created unless the settings exclude it."""
        if self._transport is not None:
            return self._way_of(self._transport)
        transport = self._given()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open(transport))
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _given(self) -> Transport:
        if self._make is None:
            raise ConfigurationError(_NONE)
        if self._made is None:
            self._made = self._make()
        return self._made

    async def _open(self, transport: Transport) -> DispatchRoute:
        await transport.open()
        if self._joined:
            self._store.carry(transport)
        self._transport = transport
        return self._way_of(transport)

    def _way_of(self, transport: Transport) -> DispatchRoute:
        self.way = DispatchRoute(transport.prefix, self._joined)
        return self.way

    def _opened(self, opening: asyncio.Future[DispatchRoute]) -> None:
        """The next caller after a failure begins again."""
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # retrieved: it may not be waited for any more

    async def close(self) -> None:
        """Close what was opened."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        transport, self._transport, self._made, self.way = self._transport, None, None, None
        if transport is not None:
            await transport.close()


T = TypeVar("T")

_PAGE = 500
"""Steps that are asked for at once."""
_SEND = 200
"""Tasks that are sent at once: each may bring a large input."""
_FIRST: Key = ("00000000-0000-0000-0000-000000000000", -(2**31))
_SHARE = 4
"""While it finds no results, it looks for them one part of its time in so many and one; otherwise half of it."""
_GROWTH = 1.5
_LATE_ROUNDS = 3
"""How often it looks for leftovers after the last step was over, a lease apart."""


class RemoteDispatcher:
    """Serves all remote steps of the namespace that go over this worker's transport, from all senders."""

    def __init__(self, context: WorkerContext, transport: TransportHandle, runtime: WorkerRuntime) -> None:
        self._context = context
        self._store, self._settings, self._clock = context.store, context.settings, context.clock
        self._transport = transport
        self._runtime = runtime
        self._needed = asyncio.Event()
        self._bell = asyncio.Event()
        self._pace = 0.0
        self._search_took = 0.0
        """Seconds that the last look for results took, without what was done with them."""
        self._withdraw_at = 0.0
        self._tidy_at = 0.0
        self._unjudged = set[str]()
        """Steps whose results the database refuses."""
        self._tidied = ""
        """The last of the leftovers that were looked at; the next page is beyond it."""
        self._sweep_ms = int(context.settings.sweep_interval * 1000)
        self._spans = self._sweep_ms, int(max(context.settings.sweep_interval, context.settings.lease) * 1000)
        """Milliseconds after which a task is looked for, and for which one may be on its way to another database:
        its sender may be slow, but is dead after a lease."""
        self._late_rounds = 0
        self.stopped = False
        """The worker stops: no further round."""

    def needed(self) -> None:
        """There are remote steps that wait for something."""
        if self._transport.exists:
            self._needed.set()

    def hurry(self) -> None:
        """Remote steps were just sent, or are to be: their results may come quickly."""
        self._pace = self._settings.min_poll_interval
        self._needed.set()
        self._bell.set()

    async def run(self) -> None:
        """Be at work whenever it is needed, until the worker stops."""
        while not self.stopped:
            try:
                await self._rest()
                self._needed.clear()
                await self._work()
            except Exception as error:  # any, for the transport may be the application's own
                if self.stopped:
                    raise
                known = isinstance(error, StepfastError)
                told = "remote steps: %s; trying again"
                self._context.logger.error(told, sentence(error), exc_info=None if known else error)
                await self._clock.sleep(self._settings.sweep_interval)
                self._needed.set()

    async def _rest(self) -> None:
        """Until there is something to do: a step that waits, or, for a while after the last one, leftovers."""
        while not self._needed.is_set() and self._late_rounds:
            try:
                async with self._clock.timeout(self._settings.lease):
                    await self._needed.wait()
            except TimeoutError:
                self._late_rounds -= 1
                while not await self._tidy():
                    pass
        await self._needed.wait()

    async def _work(self) -> None:
        """Round after round, while steps wait."""
        await self._ask(self._transport.open)
        if (on_result := getattr(self._transport.transport, "on_result", None)) is not None:
            on_result(self.hurry)
        self._pace = self._settings.min_poll_interval
        self._late_rounds = _LATE_ROUNDS
        while not self.stopped:
            self._bell.clear()
            moved, waiting = await self.round()
            if not waiting and not moved:
                return
            self._pace = (
                self._settings.min_poll_interval if moved else min(self._pace * _GROWTH, self._settings.poll_interval)
            )
            await self._pause(backoff_pause(self._pace, self._search_took, bool(moved), self._settings.sweep_interval))

    async def _pause(self, seconds: float) -> None:
        """Until the bell rings, but not less than the last look took."""
        least = min(self._search_took, seconds)
        await self._clock.sleep(least)
        try:
            async with self._clock.timeout(seconds - least):
                await self._bell.wait()
        except TimeoutError:
            pass

    async def round(self) -> tuple[int, bool]:
        """Once around: withdraw what is not waited for any more, send what is due, bring what has come. Return how much
        was moved, and whether any step still waits."""
        moved, now = 0, self._clock.now()
        if now >= self._withdraw_at:
            moved += await self._withdraw()
            took = self._clock.now() - now
            self._withdraw_at = now + took + max(self._settings.poll_interval, min(took * _SHARE, self._settings.lease))
        moved += await self._see_to_due()
        brought, waiting = await self._bring()
        if now >= self._tidy_at and await self._tidy():
            self._tidy_at = now + self._settings.lease
        return moved + brought, waiting

    async def drained(self) -> bool:
        """For a worker that stops when nothing is runnable: send what is due, and bring what has come; whether there
        was anything."""
        if not self._transport.exists:
            return False
        await self._ask(self._transport.open)
        moved, _ = await self.round()
        return bool(moved)

    # -- what is due -------------------------------------------------------------------------------------------

    async def _see_to_due(self) -> int:
        moved = 0
        while not self.stopped:
            due = await self._send_due()
            moved += due.sent
            await self._handle(due)
            if len(due.doubtful) + len(due.over) + due.sent < _SEND:
                break
        return moved

    async def _send_due(self) -> Due:
        """What is due. What of it goes over another database is sent even if the worker stops just now: its rows say
        already that it was, and it would stay there until its loss is noticed."""
        found, way = [Due()], self._way

        async def send() -> None:
            due = await self._ask(lambda: self._store.due_remote(way.carrier, way.joined, *self._spans, _SEND))
            if due.tasks:
                await self._dispatch(due.tasks)
            found.append(due)

        await (send() if way.joined else to_the_end(send))
        return found[-1]

    async def _handle(self, due: Due) -> None:
        transport = self._transport.transport
        if due.doubtful:
            lost = set(await self._ask(lambda: transport.lost([task.step_id for task in due.doubtful])))
            if lost:
                await self._send_again([task for task in due.doubtful if task.step_id in lost])
        if due.over:
            await self._take_back(due.over)

    async def _dispatch(self, tasks: list[Task]) -> None:
        """Send tasks over another database. One that it refuses, for its size say, fails alone: halve the batch until
        it is found."""
        transport = self._transport.transport
        try:
            keeps = await self._context.ask(
                lambda: transport.dispatch(tasks), "remote steps", lambda: self.stopped, refusable=True
            )
        except DatabaseRefused as error:
            said = str(error)
        else:
            if keeps is not None:
                await self._ask(lambda: self._store.hand_over_remote(tasks, int(keeps * 1000)))
            return
        if len(tasks) == 1:
            await self._ask(lambda: self._store.refuse_remote(tasks, said))
            self._runtime.outcomes_left()
            return
        middle = len(tasks) // 2
        await self._dispatch(tasks[:middle])
        await self._dispatch(tasks[middle:])

    async def _send_again(self, lost: list[Task]) -> None:
        ids = [{"run_id": task.run_id, "step_id": task.step_id, "step": task.name} for task in lost]
        tell_each(self._context.logger, "the task has vanished from the transport; sent once more", ids)
        if await self._ask(lambda: self._store.resend_remote(lost, "its task vanished from the transport")):
            self._runtime.outcomes_left()
        self._bell.set()

    async def _take_back(self, step_ids: list[str]) -> None:
        """What no worker has begun, at once; of the rest what came of it, until nothing is there any more."""
        transport = self._transport.transport
        taken = set(await self._ask(lambda: transport.cancel(step_ids)))
        rest = [step_id for step_id in step_ids if step_id not in taken]
        results = await self._ask(lambda: transport.results(rest))
        await self._ask(lambda: transport.remove(results))
        gone = await self._ask(lambda: transport.lost(step_ids))
        await self._ask(lambda: self._store.clear_remote(gone))

    # -- what has come -----------------------------------------------------------------------------------------

    async def _bring(self) -> tuple[int, bool]:
        """How many results were found, and whether any step waits for one."""
        carrier, transport, found, after = self._way.carrier, self._transport.transport, 0, _FIRST
        self._search_took = 0.0
        while True:
            began = self._clock.now()
            keys = await self._ask(lambda: self._store.open_remote(carrier, after, _PAGE))  # noqa: B023
            results = await self._ask(lambda: transport.results([_step_id(key) for key in keys]))  # noqa: B023
            self._search_took += self._clock.now() - began
            results = [result for result in results if result.step_id not in self._unjudged]
            if results:
                await self._judge(results)
                found += len(results)
            if len(keys) < _PAGE:
                return found, bool(keys) or after is not _FIRST
            after = keys[-1]

    async def _judge(self, results: Sequence[Result]) -> None:
        """Record what they mean; then, if they are not in the same database, remove them: a reader in between
        finds the steps over."""
        joined, transport, random = self._way.joined, self._transport.transport, self._clock.random
        try:
            done = await self._context.ask(
                lambda: self._store.judge_remote(results, joined, self._sweep_ms, random),
                "remote steps",
                lambda: self.stopped,
                refusable=True,
            )
        except DatabaseRefused as error:
            await self._judge_halves(results, error)
            return
        if done.outcomes:
            self._runtime.outcomes_left()
        if not joined:
            await self._ask(lambda: transport.remove(results))
            await self._ask(lambda: self._store.clear_remote([result.step_id for result in results]))
        if done.leftover:
            await self._ask(lambda: transport.cancel(done.leftover))

    async def _judge_halves(self, results: Sequence[Result], error: DatabaseRefused) -> None:
        """The database refuses what one of these means: find it, so that the others do not hang on it. Its step comes
        to the end of its timeout."""
        if len(results) == 1:
            step_id = results[0].step_id
            self._unjudged.add(step_id)
            ids = {"run_id": step_id.rpartition(":")[0], "step_id": step_id}
            self._context.logger.error(
                "remote step %s: the database refuses its result (%s)", step_id, error, extra=ids
            )
            return
        middle = len(results) // 2
        await self._judge(results[:middle])
        await self._judge(results[middle:])

    # -- what is over ------------------------------------------------------------------------------------------

    async def _withdraw(self) -> int:
        """Steps of runs that have ended, or that gave them up, are taken back."""
        carrier, after, moved = self._way.carrier, _FIRST, 0
        while True:
            keys = await self._ask(lambda: self._store.over_remote(carrier, after, _PAGE))  # noqa: B023
            if keys:
                moved += await self._ask(lambda: self._store.withdraw_remote(keys))  # noqa: B023
            if len(keys) < _PAGE:
                break
            after = keys[-1]
        return moved

    async def _tidy(self) -> bool:
        """Remove what a step that is over has left behind, because a worker was late or died between two commits. Of
        steps that are not ours nothing is touched. Queries one page, so that results need not wait while there is much;
        return whether it was the last."""
        transport = self._transport.transport
        page = await self._ask(lambda: transport.leftovers(self._tidied, _PAGE))
        keys = [key for step_id in page if (key := key_of(step_id)) is not None]
        closed = [_step_id(key) for key in await self._ask(lambda: self._store.closed_remote(keys))]
        if closed:
            await self._ask(lambda: transport.cancel(closed))
            results = await self._ask(lambda: transport.results(closed))
            await self._ask(lambda: transport.remove(results))
        self._tidied = page[-1] if len(page) == _PAGE else ""
        return not self._tidied

    @property
    def _way(self) -> DispatchRoute:
        assert self._transport.way is not None
        return self._transport.way

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._context.ask(call, "remote steps", lambda: self.stopped)


def backoff_pause(pace: float, looked: float, moved: bool, longest: float) -> float:
    """Seconds until the next round, after a round that took so long: with many steps waiting, polling must not be all
    that a database does. But after a delay, by an outage say, results are not left unread for long."""
    return max(pace, min(looked if moved else looked * _SHARE, longest))


def _step_id(key: Key) -> str:
    return f"{key[0]}:{key[1]}"
