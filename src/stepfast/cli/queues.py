"""``queues``, and what is asked of one queue: ``queue pause``, ``resume``, ``limits`` and ``purge``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from ..errors import ConfigurationError
from ..model import status
from ..model.limits import NAMES, LimitKeywords, Rate
from ..model.names import check_queue
from ..model.records import WorkerInfo
from ..queues import QueueInfo
from ..telling.words import lasting
from ..telling.workers import claiming_workers, serves_queue, worker_name
from .choosing import Choice
from .consent import DryRunOption, YesOption
from .many import Wish, ask_chosen
from .options import option
from .output import say, write_json, write_table
from .session import Session
from .times import span

ConcurrencyOption = Annotated[str | None, option("--concurrency", metavar="N", help="Runs that are executed at once.")]
RateOption = Annotated[str | None, option("--rate", metavar="N/TIME", help="Starts in a time: 100/60s.")]
KeyConcurrencyOption = Annotated[str | None, option("--key-concurrency", metavar="N", help="The same, of each key.")]
KeyRateOption = Annotated[str | None, option("--key-rate", metavar="N/TIME", help="The same, of each key.")]
MaxReadyOption = Annotated[str | None, option("--max-ready", metavar="N", help="Starts beyond it are refused.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]
_PURGE = Wish("cancel", "cancelled", (status.QUEUED,))
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


async def limits(
    session: Session,
    name: QueueArgument,
    concurrency: ConcurrencyOption = None,
    rate: RateOption = None,
    key_concurrency: KeyConcurrencyOption = None,
    key_rate: KeyRateOption = None,
    max_ready: MaxReadyOption = None,
    reset: Annotated[bool, typer.Option("--reset", help="Let what the code declares hold again.")] = False,
) -> None:
    """Show the limits of a queue, or set some. They win over what the code declares, until --reset; none lifts one."""
    texts = {
        "concurrency": concurrency, "rate": rate, "key_concurrency": key_concurrency, "key_rate": key_rate,
        "max_ready": max_ready,
    }  # fmt: skip
    given = {limit: _limit(limit, text) for limit, text in texts.items() if text is not None}
    async with session.writing() if given or reset else session.reading() as app:
        if given or reset:
            await app.set_limits(name, reset=reset, **cast(LimitKeywords, given))
        found = {info.name: info for info in await app.queues()}
        info = found.get(name)
    if session.json:
        shown = {} if info is None else _queue(info, ())
        write_json({"queue": name} | {limit: shown.get(limit) for limit in (*NAMES, "set")})
    elif info is None:
        say(f"nothing has named a queue {name!r} so far")
    else:
        print(limits_in_words(info) or "no limits")


def _limit(name: str, text: str) -> int | Rate | None:
    """A limit as it is typed: ``20``, ``100/60s``, ``none``."""
    if text.lower() == "none":
        return None
    if "rate" in name:
        number, slash, per = text.partition("/")
        if not slash or not number.strip().isdigit():
            raise ConfigurationError(f"{text!r} is no rate: write 100/60s, 10/s, 5/1h, or none")
        return Rate(int(number), span(per if per.strip()[:1].isdigit() else f"1{per.strip()}"))
    if not text.isdigit():
        raise ConfigurationError(f"{name.replace('_', '-')} takes a whole number or none, not {text!r}")
    return int(text)


async def purge(session: Session, name: QueueArgument, dry_run: DryRunOption = False, yes: YesOption = False) -> None:
    """Cancel what waits in a queue: runs that are queued, ready or put off. They are counted, it is asked, and done in
    batches; it can be interrupted and repeated. What is being executed, or waits for something, goes on."""
    check_queue(name)
    choice = Choice(queue=name, status=status.QUEUED, dry_run=dry_run, yes=yes)
    await ask_chosen(session, choice, _PURGE, lambda run: run.cancel())


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
    """``20 at once, 100 per 60 s; of a key 2 at once``. What an operator has set or lifted is marked."""

    def said(name: str, text: str | None, lifted: str) -> str:
        return f"{text or lifted} (set)" if name in info.overridden else text or ""

    whole = [
        said("concurrency", _number(info.concurrency, "at once"), "any number at once"),
        said("rate", rate_in_words(info.rate) if info.rate else None, "no rate"),
        said("max_ready", _number(info.max_ready, "ready"), "any number ready"),
    ]
    keys = [
        said("key_concurrency", _number(info.key_concurrency, "at once"), "any number at once"),
        said("key_rate", rate_in_words(info.key_rate) if info.key_rate else None, "no rate"),
    ]
    of_a_key = [f"of a key {', '.join(filter(None, keys))}"] if any(keys) else []
    return "; ".join([*([", ".join(filter(None, whole))] if any(whole) else []), *of_a_key])


def _number(limit: int | None, what: str) -> str | None:
    return None if limit is None else f"{limit} {what}"


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
