"""Errands: what a run asks of the database beside its journal, ridden out through outages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..cancellation import seen
from ..engine.execution import Execution
from ..engine.host import StoreQueries as EngineErrands
from ..engine.step import exited
from ..engine.waits import MailAnswer, MailboxReader
from ..errors import DatabaseRefused, DatabaseUnavailable, InvalidInput, LeaseLost, PayloadError, RecordsVanished
from ..model.attributes import Attribute, too_many
from ..model.records import Claimed, Mail, NewRun, Parent, QuestionAnswer, StepDone, StepRecord, WorkerInfo
from ..model.remote_steps import DispatchRoute
from ..model.rows import CallbackRow, DagStepRow, NextEvents, Outcome
from .context import WorkerContext
from .journal import UnverifiedWrites
from .remote_dispatcher import TransportHandle

if TYPE_CHECKING:
    from .worker import WorkerRuntime


_PAGE = 1000
"""Records that the store gives at once."""

NewChild = Callable[[Any, Any, dict[str, Any], Parent], Coroutine[Any, Any, tuple[list[NewRun], Any]]]


class _OfTheCode(Exception):
    """What the code of a run raised inside a call of the store, and therefore says nothing of the database."""


class _Watched:
    """The code of a run that a transaction calls; remembers what it raised."""

    def __init__(self, call: Callable[[Any], Any], record: Callable[[Any], StepDone]) -> None:
        self._call = call
        self._record = record
        self.raised: BaseException | None = None

    def call(self, connection: Any) -> Any:
        """The function; what it gives may have to be awaited."""
        self.raised = None
        with self._watching():
            result = self._call(connection)
        return _Awaited(result, self._watching) if inspect.isawaitable(result) else result

    def record(self, result: Any) -> StepDone:
        """The result of the code as a record; the application's codec has a word in that."""
        with self._watching():
            return self._record(result)

    def error(self) -> BaseException:
        """What it raised, as a step may raise it: only the engine itself says that a run is gone."""
        error = self.raised
        assert error is not None
        return error if isinstance(error, Exception) else exited(error)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


class _Awaited:
    """What the function gave to be awaited; where it cannot be awaited, it is closed."""

    def __init__(self, work: Awaitable[Any], watching: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._work = work
        self._watching = watching

    def __await__(self) -> Generator[Any, Any, Any]:
        with self._watching():
            return (yield from self._work.__await__())

    def close(self) -> None:
        """Close a coroutine that will not be awaited."""
        if inspect.iscoroutine(self._work):
            self._work.close()


class StoreQueries(EngineErrands):
    """The queries of the runs of one worker, made one by one, as they are requested."""

    def __init__(
        self,
        context: WorkerContext,
        new_child: NewChild,
        transport: TransportHandle,
        unverified: UnverifiedWrites,
        runtime: WorkerRuntime,
    ) -> None:
        self._context = context
        self._store = context.store
        self._new_child = new_child
        self._transport = transport
        self._unverified = unverified
        self._runtime = runtime
        self._attributes: tuple[asyncio.Future[dict[str, list[Attribute]]], list[str]] | None = None
        """The next question for attributes: its answer, and of which runs."""

    def new_child(
        self, workflow: Any, input: Any, options: dict[str, Any], parent: Parent
    ) -> Coroutine[Any, Any, tuple[list[NewRun], Any]]:
        """A child to be started, checked as any start."""
        return self._new_child(workflow, input, options, parent)

    async def history(self, claimed: Claimed) -> list[StepRecord]:
        """All records of a run, page by page."""
        records: list[StepRecord] = []
        after = ("", -1)
        while True:
            page = await self._context.ask(lambda: self._store.steps(claimed.id, after), "history")  # noqa: B023
            records += page
            if len(page) < _PAGE:
                return records
            after = (page[-1].branch, page[-1].position)

    async def peers(self, workflow: str) -> list[WorkerInfo]:
        """The other living workers that know a workflow."""
        workers = await self._context.ask(self._store.workers, "workers")
        return [w for w in workers if w.state == "live" and workflow in w.workflows and w.id != self._context.me.id]

    async def outcome(self, run_id: str) -> Outcome | None:
        """How a run ended, if it has."""
        found = await self._patiently(lambda: self._store.outcomes([run_id]))
        return found[0] if found else None

    async def exists(self, run_id: str) -> bool:
        """Whether a run is kept."""
        return await self._patiently(lambda: self._store.run(run_id)) is not None

    async def value(self, run_id: str, key: str) -> str | None:
        """A value that a run has set, as it is kept."""
        found = await self._patiently(lambda: self._store.value(run_id, key))
        return None if found is None else found[0]

    async def error_of(self, run_id: str) -> str | None:
        """The error that a run has now."""
        row = await self._patiently(lambda: self._store.run(run_id))
        return None if row is None else row.error

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run."""
        found: list[DagStepRow] = await self._patiently(lambda: self._store.dag_steps(dag_id))
        return found

    async def retry(self, run_id: str) -> bool:
        """Queue a failed run again; False if it cannot be continued: it was undone, or is under way again."""
        lanes = await self._patiently(lambda: self._store.retry(run_id))
        if lanes is not None:
            self._runtime.ready(lanes)
        return lanes is not None

    async def refuse_question(self, run_id: str, claim: int, refusal: QuestionAnswer) -> None:
        """Refuse a question in the mailbox of a run; LeaseLost if the run was lost."""
        me = self._context.me.id
        if not await self._patiently(lambda: self._store.refuse_question(me, run_id, claim, refusal)):
            raise self._lost(run_id, claim)
        self._runtime.answered()

    def _lost(self, run_id: str, claim: int) -> LeaseLost:
        """The fence has refused a write for a run: stop its handler; the error to raise."""
        self._runtime.executor.lose(run_id, claim)
        return LeaseLost(f"run {run_id} is no longer this worker's (claim {claim})")

    async def callback(self, id_: str, claim: int, attempt: int) -> CallbackRow | None:
        """The state of a callback that the run waits for."""
        row: CallbackRow | None = await self._patiently(lambda: self._store.look_at_callback(id_, claim, attempt))
        return row

    async def reject_callback(self, run_id: str, claim: int, id_: str, value: str | None) -> bool:
        """Open a callback again whose value does not fit; LeaseLost if the run was lost."""
        me = self._context.me.id
        done = await self._patiently(lambda: self._store.reject_callback(me, claim, id_, value))
        if done is None:
            raise self._lost(run_id, claim)
        return bool(done)

    async def send_signal(self, mail: Mail) -> None:
        """Send a signal to a run, once: its id is given."""
        await self._patiently(lambda: self._context.send_signal(mail))

    async def name_attributes(self, run_id: str, attributes: Sequence[Attribute]) -> None:
        """Check attributes that a run is to have, and give new names their types."""

        async def check() -> None:
            await self._store.name_attributes(attributes)
            stored = (await self._store.attributes_of([run_id])).get(run_id, ())
            names = {each.name for each in (*stored, *attributes)}
            most = self._context.settings.max_attributes
            if len(names) > most:
                raise InvalidInput(too_many(len(names), most))

        await self._patiently(check)

    async def attributes(self, run_id: str) -> list[Attribute]:
        """The attributes of a run; requests of the same turn are answered by one query."""
        if self._attributes is None:
            self._attributes = asyncio.get_running_loop().create_future(), [run_id]
            self._runtime.chore(self._find_attributes(*self._attributes))
        else:
            self._attributes[1].append(run_id)
        found = await asyncio.shield(self._attributes[0])
        return found.get(run_id, [])

    async def _find_attributes(self, answer: asyncio.Future[dict[str, list[Attribute]]], ids: list[str]) -> None:
        await asyncio.sleep(0)
        self._attributes = None
        try:
            answer.set_result(await self._patiently(lambda: self._store.attributes_of(ids)))
        except BaseException as error:
            answer.set_exception(error) if isinstance(error, Exception) else answer.cancel()
            seen(answer)
            if not isinstance(error, Exception):
                raise

    async def next_events(
        self, run_id: str, name: str, key: str, low: int, since: int | None, limit: int
    ) -> NextEvents:
        """The next events that a run has not taken."""
        found: NextEvents = await self._patiently(lambda: self._store.next_events(run_id, name, key, low, since, limit))
        return found

    @property
    def way(self) -> DispatchRoute | None:  # type: ignore[override]
        """How remote steps go out, once that is known."""
        return self._transport.way

    async def find_way(self) -> DispatchRoute:
        """Query it until there is an answer: no run has to fail for tables, or for a right, that an operator has yet to
        create. Only the lack of any transport ends the run."""
        if not self._transport.exists:
            return await self._transport.find_way()
        found: DispatchRoute = await self._patiently(self._transport.find_way)
        return found

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The remote steps of a run that still come to something."""
        found: dict[str, int | None] = await self._patiently(lambda: self._store.alive_remote(run_id))
        return found

    async def transact(
        self,
        execution: Execution,
        address: tuple[str, int],
        call: Callable[[Any], Any],
        record: Callable[[Any], StepDone],
        timeout: float | None,
    ) -> StepRecord:
        """Ridden out: after a lost reply the record tells whether the commit came through. What the function raises is
        its own: any exception, also an error of another application's database."""
        theirs = _Watched(call, record)
        arguments = (execution.run_id, execution.claim, address, theirs.call, theirs.record, timeout)

        async def transact() -> tuple[StepRecord, str | None]:
            try:
                return await self._store.transact(self._context.me.id, *arguments, self._unverified.open)
            except RecordsVanished:
                self._runtime.vanished([(execution.run_id, execution.claim)])
                raise
            except BaseException as error:
                if error is theirs.raised and not isinstance(error, asyncio.CancelledError):
                    raise _OfTheCode from None
                raise

        try:
            made, asked = await self._context.ask(
                transact, "transaction", lambda: execution.closed is not None, refusable=True
            )
        except DatabaseUnavailable:
            raise execution.closed or LeaseLost(f"run {execution.run_id} is not this worker's any more") from None
        except DatabaseRefused as error:
            raise PayloadError(f"the database refused the record of the transaction: {error}") from None
        except _OfTheCode:
            made, asked = None, None
        if made is None:
            raise theirs.error()
        execution.asked = asked or execution.asked
        return made

    async def outcome_at(self, execution: Execution, address: tuple[str, int]) -> StepRecord | None:
        """Asked until it is answered, or the run has left this worker."""
        branch, position = address
        page = await self._context.ask(
            lambda: self._store.steps(execution.run_id, (branch, position - 1), 1),
            "outcome",
            lambda: execution.closed is not None,
        )
        return page[0] if page and (page[0].branch, page[0].position) == address else None

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._context.ask(call, "query", refusable=True)


_MARGIN = 1.0
"""Seconds a claim may take: news that came while it was under way may be missing in what it brought."""

FutureAnswer = asyncio.Future[MailAnswer]


class MailboxPoller:
    """Answers when a run asks, and tells those that wait whenever there may be something new."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._watched: dict[MailboxReader, None] = {}
        """Of runs in memory that wait for mail, in the order in which they asked."""
        self._news = 0.0
        """When the last notification of something new came."""
        self._wanted: dict[str, tuple[MailboxReader, FutureAnswer]] = {}
        """What goes into the next question, by run."""
        self._under_way: list[tuple[MailboxReader, FutureAnswer]] = []
        """What went into the question under way, or into the last one."""
        self._round: asyncio.Task[None] | None = None

    def look(self, reader: MailboxReader) -> FutureAnswer:
        """What is in the mailbox of a run; the answer comes with the next question."""
        known = self._wanted.get(reader.run_id)
        if known is not None:
            if known[0] is reader:
                return known[1]
            known[1].cancel()  # of an earlier claim of the run, which has left: it will not be answered
        answer: FutureAnswer = asyncio.get_running_loop().create_future()
        self._wanted[reader.run_id] = (reader, answer)
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._go_round(), name="stepfast-mail")
        return answer

    def watch(self, reader: MailboxReader) -> None:
        """Tell this one when there may be something new; at once, if there may be since it last looked."""
        self._watched[reader] = None
        if self._news > (reader.known_until or reader.claimed_at - _MARGIN):
            reader.hear()

    def notified(self) -> None:
        """There is something new in the mailbox of some run."""
        self._news = self._context.clock.now()
        self.look_again()

    def look_again(self) -> None:
        """There may be something new."""
        for reader in list(self._watched):
            if reader.listens:
                reader.hear()
            else:
                self._watched.pop(reader, None)

    async def _go_round(self) -> None:
        await asyncio.sleep(0)  # requests of the same turn are answered by the same query
        while self._wanted:
            self._under_way = wanted = list(self._wanted.values())
            self._wanted = {}
            looks, asked_at = [reader.what() for reader, _ in wanted], self._context.clock.now()
            try:
                found = await self._context.ask(lambda: self._context.store.mail(looks), "mail")  # noqa: B023
            except Exception as error:
                self._fail(error, [answer for _, answer in wanted])
                continue
            for look, (reader, answer) in zip(looks, wanted, strict=True):
                try:
                    self._bring(MailAnswer(look, found.get(look.run_id), asked_at), reader, answer)
                except Exception as error:
                    self._fail(error, [answer])

    def _bring(self, found: MailAnswer, reader: MailboxReader, answer: FutureAnswer) -> None:
        """Hand over what was found, before a task that waits for it continues."""
        reader.take_in(found)
        if not answer.done():
            answer.set_result(found)

    def _fail(self, error: Exception, answers: list[FutureAnswer]) -> None:
        """A bug: those who wait for this question must not wait for ever, nor the others with them."""
        self._context.logger.error("mail: unexpected error", exc_info=error)
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # retrieved: some are not waited for

    async def close(self) -> None:
        """Stop asking. No run waits for messages any more; requests that are open end without an answer."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        for _, answer in (*self._under_way, *self._wanted.values()):
            answer.cancel()
