"""A user's function inside the writer's transaction: what it writes is committed with the record of its result.

It runs in the writer's thread, in the savepoint of its job, while nobody else writes. So a run that is lost is seen
before the call already; and after it again, in case the function itself has changed the run.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from typing import Any

from ...errors import ContextMisuse, LeaseLost
from ...model.records import StepDone, StepRecord
from ..flows.recording import step_row
from ..protocol import Transacted
from .guard import Guard, GuardedConnection
from .troubles import is_away
from .wide import execute_wide

SECONDS = 10.0
"""What a function has if it is given no timeout. A third of a lease: heartbeats wait for it too."""


class Undone(Exception):
    """The job is to be rolled back, and its caller to be told the cause as it is, be it a BaseException."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def transact(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, run_id: str, claim: int, address: tuple[str, int],
    call: Callable[[Any], Any], record: Callable[[Any], StepDone], timeout: float | None,
) -> Transacted:  # fmt: skip
    """Call it and record what it returns, unless that is recorded already."""
    where = (run_id, *address, claim)
    found = database.execute(sql["recorded_step"], where).fetchone()
    if found is None:
        _fence(database, sql, worker, run_id, claim)
        done = _result(database, call, record, timeout)
        _fence(database, sql, worker, run_id, claim)
        (now,) = database.execute(sql["now"]).fetchone()
        execute_wide(database, sql["record_steps"], [step_row(done, now)])
        found = database.execute(sql["recorded_step"], where).fetchone()
    if found is None:
        raise Undone(_lost(run_id, claim))  # somebody else's record is there
    asked, *columns = found
    return Transacted(StepRecord(*columns), asked)


def _fence(database: sqlite3.Connection, sql: dict[str, str], worker: str, run_id: str, claim: int) -> None:
    held = database.execute(sql["held_run"], (run_id, worker)).fetchone()
    if held is None or held[0] != claim:
        raise Undone(_lost(run_id, claim))


def _result(
    database: sqlite3.Connection, call: Callable[[Any], Any], record: Callable[[Any], StepDone], timeout: float | None
) -> StepDone:
    """Whatever the function raises is the caller's, and not a trouble of the writer; unless the disk is at fault."""
    assert isinstance(database, GuardedConnection)
    try:
        with Guard(database, SECONDS if timeout is None else timeout):
            result = call(database)
            _refuse_awaitable(result)
        return record(result)
    except BaseException as error:
        if is_away(error):
            raise
        raise Undone(error) from None


def _refuse_awaitable(result: Any) -> None:
    if not inspect.isawaitable(result):
        return
    close = getattr(result, "close", None)
    if close is not None:
        close()  # or Python complains that it was never awaited
    raise ContextMisuse(
        "on SQLite the function given to ctx.transaction must be a plain def: it runs in the one thread that writes, "
        "which cannot wait for a coroutine"
    )


def _lost(run_id: str, claim: int) -> LeaseLost:
    return LeaseLost(f"run {run_id} is no longer this worker's (claim {claim})")
