"""``queues``, and what is asked of one queue: ``queue pause``, ``queue resume``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..model.limits import Rate
from ..model.records import WorkerInfo
from ..queues import QueueInfo
from .output import say, write_json, write_table
from .session import Session
from .text import lasting
from .workers import claiming_workers, serves_queue, worker_name

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]
_FEW = 3
"""So many workers of a queue are named."""


async def queues(session: Session) -> None:
    """List the queues: what is in them, since when the first waits, their limits, and who serves them."""
    async with session.reading() as app:
        found = await app.queues()
        workers = claiming_workers(await (await app.store()).workers())
    if session.json:
        write_json([_queue(info, workers) for info in found])
    elif found:
        columns = (
            "queue", "state", "ready", "running", "waiting", "delayed", "oldest", "limits", "served by",
        )  # fmt: skip
        write_table(columns, [_row(info, workers) for info in found])
        _warn(found)
    else:
        say("no queues: nothing was started here so far, and no worker has named any")


async def pause(session: Session, name: QueueArgument) -> None:
    """Hold a queue: no run of it is claimed from now on. What is being executed goes on; starts are taken as before."""
    async with session.writing() as app:
        known = name in {info.name for info in await app.queues()}
        await app.pause_queue(name)
    if not known:
        say(f"nothing has named a queue {name!r} so far; it is paused all the same")
    _tell(session, name, paused=True)


async def resume(session: Session, name: QueueArgument) -> None:
    """Let a paused queue go on."""
    async with session.writing() as app:
        paused = {info.name: info.paused for info in await app.queues()}
        await app.resume_queue(name)
    if not paused.get(name):
        say(f"queue {name!r} was not paused")
    _tell(session, name, paused=False)


def _tell(session: Session, name: str, **state: bool) -> None:
    if session.json:
        write_json({"queue": name} | state)
    else:
        print(name)


# -- the table -----------------------------------------------------------------------------------------------------


def _row(info: QueueInfo, workers: Sequence[WorkerInfo]) -> tuple[str, ...]:
    numbers = (info.ready, info.running, info.waiting, info.delayed)
    oldest = "" if info.oldest is None else lasting(info.oldest)
    state = "paused" if info.paused else "open"
    return info.name, state, *map(str, numbers), oldest, limits_in_words(info), _served_by(info, workers)


def _served_by(info: QueueInfo, workers: Sequence[WorkerInfo]) -> str:
    names = _servers(info, workers)
    if not names:
        return "NOBODY SERVES IT" if info.ready or info.delayed or info.waiting else "nobody"
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _servers(info: QueueInfo, workers: Sequence[WorkerInfo]) -> list[str]:
    return [worker_name(worker) for worker in workers if serves_queue(worker, info.name)]


def limits_in_words(info: QueueInfo) -> str:
    """``20 at once, 100 per 60 s; of a key 2 at once``; what an operator has set is marked."""

    def said(name: str, text: str) -> str:
        return text + (" (set)" if name in info.overridden else "")

    whole = [said("concurrency", f"{info.concurrency} at once")] if info.concurrency is not None else []
    whole += [said("rate", rate_in_words(info.rate))] if info.rate is not None else []
    whole += [said("max_ready", f"{info.max_ready} ready")] if info.max_ready is not None else []
    keys = [said("key_concurrency", f"{info.key_concurrency} at once")] if info.key_concurrency is not None else []
    keys += [said("key_rate", rate_in_words(info.key_rate))] if info.key_rate is not None else []
    return "; ".join([*([", ".join(whole)] if whole else []), *([f"of a key {', '.join(keys)}"] if keys else [])])


def rate_in_words(rate: Rate) -> str:
    """``100 per 60 s``."""
    return f"{rate.count} per {lasting(rate.per)}"


def _queue(info: QueueInfo, workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    return {
        "queue": info.name,
        "paused": info.paused,
        "ready": info.ready,
        "running": info.running,
        "waiting": info.waiting,
        "delayed": info.delayed,
        "oldest": info.oldest,
        "concurrency": info.concurrency,
        "rate": _rate(info.rate),
        "key_concurrency": info.key_concurrency,
        "key_rate": _rate(info.key_rate),
        "max_ready": info.max_ready,
        "set": list(info.overridden),
        "workers": info.workers,
        "served_by": _servers(info, workers),
    }


def _rate(rate: Rate | None) -> dict[str, float] | None:
    return None if rate is None else {"count": rate.count, "per": rate.per}


def _warn(found: Sequence[QueueInfo]) -> None:
    for info in found:
        if info.ready and not info.workers:
            say(
                f"queue {info.name!r} has {info.ready} ready, and nobody serves it: start a worker for it with "
                f"`stepfast worker module:app --queues {info.name}`"
            )
