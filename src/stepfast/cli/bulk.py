"""Actions on all runs that filters select: counted, confirmed, carried out in batches, and stopped in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import typer

from ..app import Stepfast
from ..bulk import Bulk, BulkProgress, Fits, chosen
from ..filters import ListKeywords
from ..monitoring.text import count
from ..run import Run
from .command import Bar, Choice, Session, consent
from .exit_codes import FAILED, OK, TERMINATED, as_typed
from .output import say, write_json


@contextlib.contextmanager
def cancelled_by_sigterm() -> Iterator[None]:
    """What stands in this block is cancelled by SIGTERM, and the command exits with the code for it."""
    loop, task, heard = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def hear() -> None:
        heard.set()
        task.cancel()

    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # no signals here, or not in this thread
        loop.add_signal_handler(signal.SIGTERM, hear)
    try:
        yield
    except asyncio.CancelledError:
        if heard.is_set():
            raise typer.Exit(TERMINATED) from None
        raise
    finally:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGTERM)


_COUNTED = 10_000
"""Beyond so many it is not counted: that would take as long as the work."""
_TOLD = 3


class VerbForMany(NamedTuple):
    """What is asked, and how it is told."""

    verb: str
    done: str
    """The word for what was done: ``cancelled``."""
    usual: Sequence[str]
    """The statuses of runs that it is usually about."""
    fits: Fits = lambda _: True
    """Which of those that the options choose are meant."""


async def ask_chosen(
    session: Session, choice: Choice, wish: VerbForMany, ask: Callable[[Run[Any]], Awaitable[object]]
) -> NoReturn:
    """Count, ask whether to go on, and go on. Refused runs are told, and make it exit with 1."""
    choices = choice.narrowed(wish.usual)
    async with session.writing() as app:
        number = await _number(app, choices, wish.fits, choice.limit)
        if choice.dry_run or not number:
            _tell_count(session, wish, number)
            raise typer.Exit(OK)
        consent(f"{wish.verb.capitalize()} {_so_many(number)}?", choice.yes)
        bulk = Bulk(app, wish.verb, ask, wish.fits)
        with Bar(wish.verb, number) as bar, cancelled_by_sigterm():
            try:
                await bulk.run(choices, choice.limit, bar.at)
            except asyncio.CancelledError:
                say(f"interrupted: {count(bulk.tally.done, 'run')} {wish.done}. Call it again for the rest")
                if session.json:
                    write_json(_shape(wish, number, bulk.tally) | {"interrupted": True})
                raise
    _tell(session, wish, number, bulk.tally)
    raise typer.Exit(FAILED if bulk.tally.refused else OK)


async def _number(app: Stepfast, choices: Sequence[ListKeywords], fits: Fits, limit: int | None) -> int:
    most = _COUNTED if limit is None else min(limit, _COUNTED)
    number = await chosen(app, choices, fits, most)
    return number if limit is None else min(number, limit)


def _so_many(number: int) -> str:
    return count(number, "run") if number <= _COUNTED else f"more than {count(_COUNTED, 'run')}"


def _tell_count(session: Session, wish: VerbForMany, number: int) -> None:
    if session.json:
        write_json({"found": number, wish.done: 0, "refused": []})
    else:
        say(f"would {wish.verb} {_so_many(number)}" if number else "no run is like that")


def _tell(session: Session, wish: VerbForMany, number: int, tally: BulkProgress) -> None:
    shape = _shape(wish, number, tally)
    if session.json:
        write_json(shape)
        return
    refused = shape["refused"]
    say(f"{count(tally.done, 'run')} {wish.done}" + (f", {len(refused)} refused:" if refused else ""))
    for each in refused[:_TOLD]:
        say(f"  {each['error']}")
    if len(refused) > _TOLD:
        say(f"  and {len(refused) - _TOLD} more (--json lists all)")


def _shape(wish: VerbForMany, number: int, tally: BulkProgress) -> dict[str, Any]:
    refused = [{"id": run_id, "error": as_typed(why)} for run_id, why in tally.refused.items()]
    return {"found": number, wish.done: tally.done, "refused": refused}
