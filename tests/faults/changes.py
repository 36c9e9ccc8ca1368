"""What a test may change in its own worker processes: faults at an exact place, and rules of the product taken out.

Each function is named in the arguments of a process and called before its application is made.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from typing import Any

from holdfast.store.postgres import claiming, connections, flushing
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite import flushing as sqlite_flushing
from holdfast.store.sqlite.store import SqliteStore
from holdfast.worker import heartbeat
from holdfast.worker.worker import Worker

Arguments = dict[str, Any]


# -- faults at an exact place ----------------------------------------------------------------------------------------


def freeze_inside_flush(_: Arguments) -> None:
    """The process stops between the fence and the writes of a flush, with the rows locked: a machine that vanishes."""
    write = flushing.Flusher._write
    done: list[str] = []

    async def frozen(*arguments: Any) -> None:
        if not done:
            done.append("flush")
            os.kill(os.getpid(), signal.SIGSTOP)
        await write(*arguments)

    flushing.Flusher._write = frozen  # type: ignore[method-assign]


def freeze_inside_claim(_: Arguments) -> None:
    """The process stops while a large claim is sent to it, with more under way than the buffers hold."""
    take = claiming.Claims._take
    done: list[str] = []

    async def frozen(self: Any, *arguments: Any) -> Any:
        if not done:
            worker, token, name, (*others, _limit), *_ = arguments
            done.append(name)
            connection = await self._line._open()
            await connection.fetch(self._sql[name], worker, token, *others, 0)  # prepared: the next one is sent at once
            connection._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.5, stop, connection._transport)
        return await take(self, *arguments)

    def stop(transport: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        transport.resume_reading()

    claiming.Claims._take = frozen  # type: ignore[method-assign]


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
    _rewrite(("claim_lane", r"FROM picked p WHERE r\.id = p\.id", "FROM picked p, pg_sleep(0.05) WHERE r.id = p.id"))


def trust_every_connection(_: Arguments) -> None:
    """The server is not told to give up connections whose other end has vanished."""
    options = connections.Connector._options

    def told_less(self: connections.Connector) -> dict[str, Any]:
        found = options(self)
        for name in ("idle_in_transaction_session_timeout", "tcp_user_timeout"):
            found.get("server_settings", {}).pop(name, None)
        return found

    connections.Connector._options = told_less  # type: ignore[method-assign]


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
    rule, answer = r"r\.worker [A-Z= ]+ \$1 AND r\.claim = f\.claim", r"r\.id, r\.claim"
    for name in ("flush", "fence"):
        _rewrite((name, rule, "$1::uuid IS NOT NULL"), (name, answer, "r.id, f.claim"))


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
    _rewrite(("move", r"r\.wakes <> m\.wakes", "false"))
    _rewrite(("move", r"r\.wakes <> m\.wakes", "false"), store=SqliteStore)


def without_token(_: Arguments) -> None:
    """A claim whose reply was lost is not asked for again."""
    _rewrite(("claimed", r"r\.token = \$2", "r.token = $2 AND false"))


def tell_tasks(_: Arguments) -> None:
    """For a diagnosis: SIGUSR1 makes the process write where each of its tasks stands."""

    def tell(*_: object) -> None:
        for task in asyncio.all_tasks(loops[0]):
            task.print_stack(limit=6, file=sys.stderr)
        sys.stderr.flush()

    loops: list[asyncio.AbstractEventLoop] = []
    run = Worker.start

    async def start(self: Worker) -> None:
        loops.append(asyncio.get_running_loop())
        await run(self)

    Worker.start = start  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, tell)
