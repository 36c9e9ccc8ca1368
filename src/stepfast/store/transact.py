"""What ``ctx.transaction`` has in common on servers: calling the function, and what is wrong with what it did."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ..errors import ContextMisuse, LeaseLost, StepTimeout
from ..model.records import StepDone, StepRecord


async def called(call: Callable[[Any], Any], connection: Any, timeout: float | None) -> Any:
    """What a function returns, within its time."""
    bound = asyncio.timeout(timeout)
    try:
        async with bound:
            result = call(connection)
            return await result if inspect.isawaitable(result) else result
    except TimeoutError:
        if not bound.expired():
            raise
        raise StepTimeout(f"the transaction took longer than its timeout of {timeout:g} s") from None


def as_read(d: StepDone, now: int) -> StepRecord:
    """A record as it is read after it was written."""
    return StepRecord(
        d.branch, d.position, d.seq, d.name, d.kind, d.status, d.output, d.error, d.arguments, d.attempts,
        now - d.duration_ms, now, d.line, d.format, d.undo,
    )  # fmt: skip


def lost(run_id: str) -> LeaseLost:
    """The run has another worker by now."""
    return LeaseLost(f"run {run_id} is no longer this worker's")


def misuse(done: StepDone, part: str) -> ContextMisuse:
    """The function has ended the transaction. ``part``: how to do a part of it that may fail."""
    return ContextMisuse(
        f"{done.name!r} committed or rolled back the transaction it was given: leave both to ctx.transaction, which "
        f"commits what the function wrote together with its result; for a part that may fail there is {part}"
    )
