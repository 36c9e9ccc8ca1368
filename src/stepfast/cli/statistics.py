"""``stats``: what has happened lately."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from ..monitoring.text import count, lasting
from ..stats import Stats
from .options import time_option
from .output import say, write_heading, write_json, write_table
from .session import Session

FAILURES = ("workflow", "step", "reason", "error", "runs", "per hour", "last")


async def stats(
    session: Session,
    since: Annotated[float, time_option("--since", help="How far to look back. (1h)")] = 3600.0,
) -> None:
    """Tell what has happened lately: runs by workflow, queue and status, failures by error, the slowest steps.

    Unfinished runs are counted whenever they were started, others if they ended within the span. Every question to the
    database is bounded: where there is more, the newest 20 000 runs are told of, and that is said.
    """
    async with session.looking() as app:
        found = await app.stats(since)
    if session.json:
        write_json({**dataclasses.asdict(found), "complete": found.complete})
        return
    if not found.runs:
        say(f"nothing is under way, and nothing has ended within {lasting(since)}")
        return
    _write_runs(found)
    _write_failures(found)
    _write_steps(found)
    if not found.complete:
        newest, back = count(found.looked_at, "run"), lasting(found.reaches or 0)
        say(f"what has ended is told of the newest {newest}, which go back {back}; there were more")


def _write_runs(found: Stats) -> None:
    rows = [
        [row.workflow, "" if row.queue == row.workflow else row.queue, row.status, str(row.count),
         "" if row.oldest is None else lasting(row.oldest)]
        for row in found.runs
    ]  # fmt: skip
    write_table(("workflow", "queue", "status", "runs", "oldest"), rows)


def _write_failures(found: Stats) -> None:
    if not found.failures:
        return
    write_heading(f"failed within {lasting(found.since)}")
    write_table(FAILURES, failure_rows(found))


def failure_rows(found: Stats) -> list[list[str]]:
    """The rows of a table of failures."""
    return [
        [row.workflow, row.step or "", row.reason or "", row.error_type or "(sealed)", str(row.count),
         written(row.per_hour), f"{lasting(row.last)} ago"]
        for row in found.failures
    ]  # fmt: skip


def _write_steps(found: Stats) -> None:
    if not found.steps:
        return
    write_heading("slowest steps")
    rows = [
        [row.workflow, row.step, str(row.count), lasting(row.p50), lasting(row.p95), lasting(row.longest)]
        for row in found.steps
    ]
    write_table(("workflow", "step", "calls", "p50", "p95", "longest"), rows)


def written(number: float) -> str:
    """A number as people write it: whole when it is large, with three digits when it is small."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
