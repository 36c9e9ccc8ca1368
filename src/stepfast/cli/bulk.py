"""Actions on all runs that filters select: counted, confirmed, carried out in batches, and stopped in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer

from ..app import Stepfast
from ..bulk import Ask, Bulk, BulkResult, Fits, count_selected, for_statuses
from ..filters import ListKeywords
from ..model.bulk_actions import BulkAction
from ..monitoring.text import count
from .command import Bar, Choice, Session, consent
from .exit_codes import FAILED, OK, TERMINATED, as_typed
from .output import say, write_json


@contextlib.contextmanager
def cancelled_by_sigterm() -> Iterator[None]:
    """Cancel the block on SIGTERM, and exit with the code for it."""
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
"""Runs are counted up to this: to count more would take as long as the action."""
_PRINTED = 3
"""Refused runs that are printed."""


async def apply_to_selected(
    session: Session, choice: Choice, action: BulkAction, *, ask: Ask | None = None, fits: Fits | None = None
) -> NoReturn:
    """Count the selected runs, ask for confirmation, and apply the action. With refused runs, exit with 1."""
    async with session.writing() as app:
        choices = for_statuses(action, await choice.filters_in(app))
        number = await _number(app, choices, fits, choice.limit)
        if choice.dry_run or not number:
            _print_count(session, action, number)
            raise typer.Exit(OK)
        consent(f"{action.verb.capitalize()} {_so_many(number)}?", choice.yes)
        bulk = Bulk(app, action, ask=ask, fits=fits)
        with Bar(action.verb, number) as bar, cancelled_by_sigterm():
            try:
                await bulk.run(choices, choice.limit, bar.at)
            except asyncio.CancelledError:
                say(f"interrupted: {count(bulk.result.done, 'run')} {action.done}. Call it again for the rest")
                if session.json:
                    write_json(_shape(action, number, bulk.result) | {"interrupted": True})
                raise
    _print_result(session, action, number, bulk.result)
    raise typer.Exit(FAILED if bulk.result.refused else OK)


async def _number(app: Stepfast, choices: Sequence[ListKeywords], fits: Fits | None, limit: int | None) -> int:
    most = _COUNTED if limit is None else min(limit, _COUNTED)
    number = await count_selected(app, choices, fits, most)
    return number if limit is None else min(number, limit)


def _so_many(number: int) -> str:
    return count(number, "run") if number <= _COUNTED else f"more than {count(_COUNTED, 'run')}"


def _print_count(session: Session, action: BulkAction, number: int) -> None:
    if session.json:
        write_json({"found": number, action.done: 0, "refused": []})
    else:
        say(f"would {action.verb} {_so_many(number)}" if number else "no run matches")


def _print_result(session: Session, action: BulkAction, number: int, result: BulkResult) -> None:
    shape = _shape(action, number, result)
    if session.json:
        write_json(shape)
        return
    refused = shape["refused"]
    say(f"{count(result.done, 'run')} {action.done}" + (f", {len(refused)} refused:" if refused else ""))
    for each in refused[:_PRINTED]:
        say(f"  {each['error']}")
    if len(refused) > _PRINTED:
        say(f"  and {len(refused) - _PRINTED} more (--json lists all)")


def _shape(action: BulkAction, number: int, result: BulkResult) -> dict[str, Any]:
    refused = [{"id": run_id, "error": as_typed(why)} for run_id, why in result.refused.items()]
    return {"found": number, action.done: result.done, "refused": refused}
