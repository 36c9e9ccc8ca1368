"""What a test may change in its own worker processes: faults at an exact place, and rules of the product taken out.

Each function is named in the arguments of a process and called before its application is made.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from stepfast.engine import compensation
from stepfast.model.ids import new_id
from stepfast.model.records import Batch, FlushAnswer, Mail
from stepfast.model.status import TERMINAL
from stepfast.model.transitions import finish
from stepfast.store import transact
from stepfast.store.flows import flush as flow
from stepfast.store.flows.flush import record, tell
from stepfast.store.postgres import connections, ctx_transaction, transactions
from stepfast.store.postgres import flush as postgres_flush
from stepfast.store.postgres.store import Claims, PostgresStore
from stepfast.store.sqlite import flush as sqlite_flushing
from stepfast.store.sqlite.store import SqliteStore
from stepfast.worker import heartbeat
from tests.faults.composing import STOP
from tests.judge.ledger import Ledger, now

Arguments = dict[str, Any]


# -- faults at an exact place ----------------------------------------------------------------------------------------


def freeze_inside_flush(_: Arguments) -> None:
    """The process stops between the fence and the writes of a flush, with the rows locked: a machine that vanishes."""
    done: list[str] = []

    def frozen(batch: Batch, answer: FlushAnswer, all_new: bool = False) -> Any:
        if not done:
            done.append("flush")
            os.kill(os.getpid(), signal.SIGSTOP)
        yield from record(batch, answer, all_new)

    flow.record = frozen


def freeze_inside_claim(_: Arguments) -> None:
    """The process stops while a large claim is sent to it, with more under way than the buffers hold."""
    take = Claims._take
    done: list[str] = []

    async def frozen(self: Any, *arguments: Any) -> Any:
        if not done:
            worker, token, name, (*others, _limit), *_ = arguments
            done.append(name)
            connection = await self._kept._open()
            await connection.fetch(self._sql[name], worker, token, *others, 0)  # prepared: the next one is sent at once
            connection._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.5, stop, connection._transport)
        return await take(self, *arguments)

    def stop(transport: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        transport.resume_reading()

    Claims._take = frozen  # type: ignore[assignment, method-assign]


def hear_late(_: Arguments) -> None:
    """The worker hears the answers to its heartbeats a second late: until then it believes in its lease."""
    beat_once = heartbeat.Heartbeat._beat_once

    class Late:
        def __init__(self, pulse: Any) -> None:
            self._pulse = pulse

        def beat(self, worker: str, running: int) -> Any:
            answer = self._pulse.beat(worker, running)
            time.sleep(1)
            return answer

    heartbeat.Heartbeat._beat_once = lambda self, pulse: beat_once(self, Late(pulse))  # type: ignore[method-assign,arg-type]


def claim_slowly(_: Arguments) -> None:
    """The server takes its time between choosing and taking, so that claims overlap."""
    _rewrite(
        ("claim_lane", r"FROM sized p WHERE r\.id = p\.id", "FROM sized p CROSS JOIN pg_sleep(0.05) WHERE r.id = p.id")
    )


def trust_every_connection(_: Arguments) -> None:
    """The server is not told to give up connections whose other end has vanished."""
    options = connections.Connector._options

    def told_less(self: connections.Connector) -> dict[str, Any]:
        found = options(self)
        for name in ("idle_in_transaction_session_timeout", "tcp_user_timeout"):
            found.get("server_settings", {}).pop(name, None)
        return found

    connections.Connector._options = told_less  # type: ignore[method-assign]


def deaf(_: Arguments) -> None:
    """No wake-up reaches the process: all it has is polling."""

    async def hear_nothing(*_: Any) -> None:
        await asyncio.Event().wait()

    for store in (PostgresStore, SqliteStore):
        store.listen = hear_nothing  # type: ignore[assignment, method-assign]
    SqliteStore.can_wake = property(lambda _: False)  # type: ignore[assignment, method-assign]


def _before_each_flush(act: Callable[[Any, Batch], Awaitable[None]]) -> None:
    for store in (PostgresStore, SqliteStore):

        async def flush(self: Any, worker: str, batch: Batch, flush: Any = store.flush) -> Any:
            await act(self, batch)
            return await flush(self, worker, batch)

        store.flush = flush  # type: ignore[method-assign]


def signal_before_waiting(arguments: Arguments) -> None:
    """A signal comes between the look into the mailbox and the word that the run waits for it."""
    ledger, sent = Ledger(arguments["folder"]), set[str]()

    async def send(store: Any, batch: Batch) -> None:
        for move in batch.transitions:
            if (move.waiting_for or "").startswith("signal") and move.run_id not in sent:
                sent.add(move.run_id)
                nonce = ledger.signal(move.run_id, "word", STOP, len(sent))
                await store.send(Mail(move.run_id, new_id(), "signal", "word", json.dumps(nonce)))
                ledger.signalled(nonce)

    _before_each_flush(send)


def cancel_before_start(arguments: Arguments) -> None:
    """An operator's wish comes between the decision to start a child and its record."""
    ledger = Ledger(arguments["folder"])

    async def cancel(store: Any, batch: Batch) -> None:
        for entry in batch.joint:
            if entry.starts:
                at = now()
                granted = (await store.cancel(entry.run_id)).done
                ledger.wish(entry.run_id, "cancel", granted, at)

    _before_each_flush(cancel)


def die_after_the_end_of_a_child(_: Arguments) -> None:
    """The process dies right after the commit that ends a child."""
    usual, mixed = postgres_flush.Flusher._flush_usual, postgres_flush.Flusher._flush_mixed
    sqlite_flush = SqliteStore.flush

    def die(batch: Batch) -> None:
        if any(move.child and move.status in TERMINAL for move in batch.transitions):
            os.kill(os.getpid(), signal.SIGKILL)

    async def flush(self: Any, worker: str, batch: Batch) -> Any:
        answer = await mixed(self, worker, batch)
        die(batch)
        return answer

    async def flush_usual(self: Any, worker: str, batch: Batch, columns: Any) -> Any:
        answer = await usual(self, worker, batch, columns)
        if answer is not None:
            die(batch)
        return answer

    async def flush_sqlite(self: Any, worker: str, batch: Batch) -> Any:
        answer = await sqlite_flush(self, worker, batch)
        die(batch)
        return answer

    postgres_flush.Flusher._flush_mixed = flush  # type: ignore[method-assign]
    postgres_flush.Flusher._flush_usual = flush_usual  # type: ignore[method-assign]
    SqliteStore.flush = flush_sqlite  # type: ignore[method-assign]


def die_while_taking(_: Arguments) -> None:
    """The process dies between taking a signal and the commit of its record."""

    def recorded(batch: Batch, answer: FlushAnswer, all_new: bool = False) -> Any:
        yield from record(batch, answer, all_new)
        if any(entry.takes for entry in batch.joint):
            os.kill(os.getpid(), signal.SIGKILL)

    flow.record = recorded


def die_before_recording(_: Arguments) -> None:
    """The process dies when the function of a transaction has returned, before anything is recorded or committed."""

    async def recorded(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ctx_transaction.Transactions._record = recorded  # type: ignore[method-assign,assignment]


# -- rules taken out -------------------------------------------------------------------------------------------------


def _rewrite(*replacements: tuple[str, str, str], store: Any = PostgresStore) -> None:
    """Replace patterns in statements by name; they must be there, or the change would change nothing."""
    make = store.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        for name, old, new in replacements:
            self._sql[name], times = re.subn(old, new, self._sql[name])
            assert times, f"statement {name} has no {old!r}"

    store.__init__ = made


def without_fence(_: Arguments) -> None:
    """Whoever writes is believed."""
    sqlite_flushing._passing = lambda batch, claims, answer: batch
    held = ("fence", r"r\.worker IS \?1 AND r\.claim = f\.claim", "?1 IS NOT NULL")
    _rewrite(held, ("fence", r"r\.claim,", "f.claim,"), store=SqliteStore)
    rule = r"r\.worker [A-Z= ]+ \$1 AND r\.claim = f\.claim"
    for name, answer, known in (("flush", r"r\.id, r\.claim", "r.id, f.claim"), ("fence", r"r\.claim,", "f.claim,")):
        _rewrite((name, rule, "$1::uuid IS NOT NULL"), (name, answer, known))


def without_row_lock(_: Arguments) -> None:
    """Two workers may look at the same row and both take it."""
    _rewrite(
        ("claim_lane", "FOR NO KEY UPDATE SKIP LOCKED", ""),
        ("claim_lanes", "FOR NO KEY UPDATE OF r SKIP LOCKED", ""),
        ("flush", "FOR NO KEY UPDATE OF r SKIP LOCKED", ""),
        ("fence", "FOR NO KEY UPDATE OF r SKIP LOCKED", ""),
    )


def without_wakes(_: Arguments) -> None:
    """A run says that it waits, and is believed, whatever has come in meanwhile."""
    finish._woken = lambda run, move: False


def without_token(_: Arguments) -> None:
    """A claim whose reply was lost is not asked for again."""
    _rewrite(("claimed", r"r\.token = \$2", "r.token = $2 AND false"))


def without_joint_ends(_: Arguments) -> None:
    """Parents are told of the ends of their children in a transaction of its own, after the one that ended them."""
    flush, is_usual, untold = postgres_flush.Flusher.flush, postgres_flush._is_usual, list[Any]()

    def none_tells(batch: Batch, columns: Any) -> bool:
        return is_usual(batch, columns) and not any(move.child for move in batch.transitions)

    def tell_later(moves: Any, _: Any) -> Any:
        untold.append(moves)
        yield from ()

    async def flush_and_tell(self: Any, worker: str, batch: Batch) -> Any:
        answer = await flush(self, worker, batch)
        async with self._kept.use() as connection, connection.transaction():
            while untold:
                await self._driver.join(connection, tell(untold.pop(), answer))
        return answer

    postgres_flush._is_usual = none_tells
    flow.tell = tell_later  # type: ignore[assignment]
    sqlite_flushing.tell = tell_later  # type: ignore[assignment, attr-defined]
    postgres_flush.Flusher.flush = flush_and_tell  # type: ignore[method-assign]


def without_joint_take(arguments: Arguments) -> None:
    """Signals are taken in a transaction of its own, before the one that records them."""
    answer = transactions.Driver._answer

    async def take_first(self: Any, connection: Any, request: Any) -> Any:
        if getattr(request, "name", None) == "take_mail":
            apart = await asyncpg.connect(arguments["url"])
            await apart.execute(self._sql["take_mail"], *map(list, zip(*request.rows, strict=True)))
            await apart.close()
        return await answer(self, connection, request)

    transactions.Driver._answer = take_first  # type: ignore[method-assign]


def without_transaction_fence(_: Arguments) -> None:
    """Whoever comes back from a transaction is believed."""
    _rewrite(("fence_one", r"worker = \$2 AND claim = \$3", "$2::uuid IS NOT NULL AND $3::integer IS NOT NULL"))


def without_joint_row(arguments: Arguments) -> None:
    """What a transaction writes is committed apart from its record."""
    called = transact.called

    async def call(function: Any, _: Any, timeout: float | None) -> Any:
        apart = await asyncpg.connect(arguments["url"])
        try:
            return await called(function, apart, timeout)
        finally:
            await apart.close()

    vars(ctx_transaction)["called"] = call


def without_bar(_: Arguments) -> None:
    """A run that is to be cancelled starts children all the same."""

    def bar(*_: Any) -> Any:
        yield from ()

    flow.bar = bar  # type: ignore[assignment]
    sqlite_flushing.bar = bar  # type: ignore[assignment, attr-defined]


def without_reverse(_: Arguments) -> None:
    """What was done first is undone first."""
    compensation.sorted = lambda items, key, reverse: sorted(items, key=key)  # type: ignore[attr-defined]
