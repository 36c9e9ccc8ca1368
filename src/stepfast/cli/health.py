"""``workers`` and ``doctor``: who works, and whether all is well."""

from __future__ import annotations

import typer

from ..app import Stepfast
from ..errors import DatabaseUnavailable
from ..model.records import WorkerInfo
from ..monitoring.doctor import check_shape, examine, unreachable
from ..monitoring.text import lasting, queues_of, worker_name, worker_shape
from ..store.store import Check
from .exits import FAILED, UNAVAILABLE
from .output import say, write_json, write_table
from .session import Session, absent_file


async def workers(session: Session) -> None:
    """List the workers: where they run, what they serve, when they were last heard of."""
    async with session.reading() as app:
        found = await (await app.store()).workers()
    if session.json:
        write_json([worker_shape(worker) for worker in found])
    elif found:
        columns = ("id", "worker", "state", "runs", "queues", "workflows", "up for", "last heartbeat")
        write_table(columns, [_worker_row(worker) for worker in found])
    else:
        say("no workers; start one with `stepfast worker module:app`")


def _worker_row(worker: WorkerInfo) -> tuple[str, ...]:
    up = lasting((worker.beat_at - worker.started_at + worker.age_ms) / 1000)
    slots = f"{worker.running} of {worker.concurrency}"
    beat = f"{lasting(worker.age_ms / 1000)} ago"
    names = ", ".join(sorted(worker.workflows)) or "none"
    return worker.id, worker_name(worker), worker.state, slots, queues_of(worker), names, up, beat


async def doctor(session: Session) -> None:
    """Check connection, server, tables and workers; say what to do. Exits with 1 if something is wrong."""
    app = session.application()
    code = 0
    try:
        checks = await _examine(session, app)
    except DatabaseUnavailable as error:
        checks, code = [unreachable(error)], UNAVAILABLE
    if session.json:
        write_json([check_shape(check) for check in checks])
    else:
        rows = [("ok" if c.ok else "wrong", c.name, c.found, "" if c.ok else c.advice) for c in checks]
        write_table(("", "check", "found", "what to do"), rows)
    raise typer.Exit(code or (0 if all(check.ok for check in checks) else FAILED))


async def _examine(session: Session, app: Stepfast) -> list[Check]:
    path = absent_file(app)
    if path is not None:
        found = f"there is no SQLite file {path!r}"
        return [Check("connection", False, found, "give --url, or run `stepfast migrate`")]
    async with session.store(app) as store:
        return await examine(app, store)
