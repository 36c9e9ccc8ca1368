"""``queues``, and the commands for one queue: ``queue pause``, ``resume``, ``limits`` and ``purge``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import typer

from ..model import status
from ..model.bulk_actions import CANCEL
from ..model.health import claiming_workers
from ..model.names import check_queue
from ..model.queue_config import NAMES, LimitKeywords
from ..model.records import WorkerInfo
from ..monitoring.text import lasting, limit_of, limits_in_words, queue_shape, served_by
from ..queues import QueueInfo
from .bulk import apply_to_selected
from .command import Choice, DryRunOption, Session, YesOption, option
from .output import say, write_json, write_table

ConcurrencyOption = Annotated[str | None, option("--concurrency", metavar="N", help="Runs that are executed at once.")]
RateOption = Annotated[str | None, option("--rate", metavar="N/TIME", help="Starts in a time: 100/60s.")]
KeyConcurrencyOption = Annotated[str | None, option("--key-concurrency", metavar="N", help="The same, of each key.")]
KeyRateOption = Annotated[str | None, option("--key-rate", metavar="N/TIME", help="The same, of each key.")]
MaxReadyOption = Annotated[str | None, option("--max-ready", metavar="N", help="Starts beyond it are refused.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]


async def queues(session: Session) -> None:
    """List the queues: their runs, since when the first waits, their limits, and the workers that serve them."""
    async with session.reading() as app:
        found = await app.queues()
        workers = claiming_workers(await (await app.store()).workers())
    if session.json:
        write_json([queue_shape(info, workers) for info in found])
    elif found:
        columns = (
            "queue", "state", "ready", "running", "waiting", "delayed", "oldest", "limits", "served by",
        )  # fmt: skip
        write_table(columns, [_row(info, workers) for info in found])
        _warn(found)
    else:
        say("no queues: no run was started here so far, and no worker has named a queue")


async def pause(session: Session, name: QueueArgument) -> None:
    """Pause a queue: no run of it is claimed from now on. Running runs continue, and runs can be started."""
    async with session.writing() as app:
        known = name in {info.name for info in await app.queues()}
        await app.pause_queue(name)
    if not known:
        say(f"no run, workflow or worker names queue {name!r} so far; it is paused nevertheless")
    _tell(session, name, paused=True)


async def resume(session: Session, name: QueueArgument) -> None:
    """Resume a paused queue."""
    async with session.writing() as app:
        paused = {info.name: info.paused for info in await app.queues()}
        await app.resume_queue(name)
    if not paused.get(name):
        say(f"queue {name!r} was not paused")
    _tell(session, name, paused=False)


async def limits(
    session: Session,
    name: QueueArgument,
    concurrency: ConcurrencyOption = None,
    rate: RateOption = None,
    key_concurrency: KeyConcurrencyOption = None,
    key_rate: KeyRateOption = None,
    max_ready: MaxReadyOption = None,
    reset: Annotated[bool, typer.Option("--reset", help="Apply the limits of the code again.")] = False,
) -> None:
    """Show the limits of a queue, or set some. They win over what the code declares, until --reset; none lifts one."""
    texts = {
        "concurrency": concurrency, "rate": rate, "key_concurrency": key_concurrency, "key_rate": key_rate,
        "max_ready": max_ready,
    }  # fmt: skip
    given = {limit: limit_of(limit, text) for limit, text in texts.items() if text is not None}
    async with session.writing() if given or reset else session.reading() as app:
        if given or reset:
            await app.set_limits(name, reset=reset, **cast(LimitKeywords, given))
        found = {info.name: info for info in await app.queues()}
        info = found.get(name)
    if session.json:
        shown = {} if info is None else queue_shape(info, ())
        write_json({"queue": name} | {limit: shown.get(limit) for limit in (*NAMES, "set")})
    elif info is None:
        say(f"no run, workflow or worker names queue {name!r} so far")
    else:
        print(limits_in_words(info) or "no limits")


async def purge(session: Session, name: QueueArgument, dry_run: DryRunOption = False, yes: YesOption = False) -> None:
    """Cancel the queued runs of a queue, ready or delayed. They are counted, and after confirmation cancelled in
    batches; this can be interrupted and repeated. Running and waiting runs continue."""
    check_queue(name)
    choice = Choice(queue=name, status=status.QUEUED, dry_run=dry_run, yes=yes)
    await apply_to_selected(session, choice, CANCEL)


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
    return info.name, state, *map(str, numbers), oldest, limits_in_words(info), served_by(info, workers)


def _warn(found: Sequence[QueueInfo]) -> None:
    for info in found:
        if info.ready and not info.workers:
            say(
                f"queue {info.name!r} has {info.ready} ready, and no live worker serves it: start one with "
                f"`stepfast worker module:app --queues {info.name}`"
            )
