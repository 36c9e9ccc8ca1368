"""``start`` and ``result``: starting a run, and waiting for its end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from ..app import Stepfast
from ..errors import RunCancelled, RunFailed
from ..monitoring.text import find_run
from ..run import Run
from .command import (
    AttributeOption,
    KeyOption,
    RunArgument,
    Session,
    attributes_given,
    json_argument,
    moment_option,
    option,
    time_option,
)
from .exit_codes import FAILED, complain
from .output import say, write_json, write_value


async def start(
    session: Session,
    name: Annotated[str, typer.Argument(help="The workflow.")],
    input: Annotated[
        str | None, typer.Argument(metavar="[JSON]", show_default=False, help="Its input; - reads stdin.")
    ] = None,
    key: Annotated[str | None, option("--key", help="Same key: the same run.")] = None,
    unique: Annotated[str | None, option("--unique", help="A name that one live run has at a time.")] = None,
    on_conflict: Annotated[
        str | None,
        option("--on-conflict", help="With --unique: return the live run (default), raise, queue or cancel."),
    ] = None,
    signal: Annotated[str | None, option("--signal", metavar="NAME[=JSON]", help="For the run of --unique.")] = None,
    debounce: Annotated[
        float | None, time_option("--debounce", help="With --key: wait so long for more starts of it.")
    ] = None,
    debounce_max: Annotated[float | None, time_option("--debounce-max", help="And at most so long in all.")] = None,
    queue: Annotated[str | None, option("--queue", help="Else the workflow's own.")] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher is sooner.")] = 0,
    concurrency_key: Annotated[
        str | None, option("--concurrency-key", help="Whose limits of the queue it counts for.")
    ] = None,
    delay: Annotated[float | None, time_option("--delay", help="Not before this has passed.")] = None,
    at: Annotated[datetime | None, moment_option("--at", help="Not before this, as 2030-01-31T09:30+01:00.")] = None,
    expires_in: Annotated[float | None, time_option("--expires-in", help="Fail unless picked up within this.")] = None,
    deadline: Annotated[float | None, time_option("--deadline", help="For the whole run, waits included.")] = None,
    max_attempts: Annotated[int | None, option("--max-attempts", help="Attempts in all.")] = None,
    timeout: Annotated[float | None, time_option("--timeout", help="For one attempt, waits excluded.")] = None,
    tag: Annotated[list[str] | None, option("--tag", help="May be given several times.")] = None,
    attribute: AttributeOption = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for its end and print its result.")] = False,
) -> None:
    """Start a run and print its id. Times are seconds, or 500ms, 5m, 2h, 1d.

    The input is checked against the code (--app) or against what the database knows of the workflow.
    """
    names: dict[str, Any] = {"unique": unique, "on_conflict": on_conflict, "signal": signal and _signal(signal)}
    async with session.writing() as app:
        run = await app.start(
            name, json_argument(input, "the input"), key=key, debounce=debounce, debounce_max=debounce_max, queue=queue,
            priority=priority, concurrency_key=concurrency_key, delay=delay, at=at, expires_in=expires_in,
            deadline=deadline, max_attempts=max_attempts, timeout=timeout, tags=tag or (),
            attributes=await attributes_given(app, attribute, known=False), **names,
        )  # fmt: skip
        if wait:
            say(f"run {run.id}")
            await _print_result(app, run.id, None, session.json)
        else:
            _print_id(run, session.json, unique is not None)


def _print_id(run: Run[Any], as_json: bool, by_name: bool) -> None:
    if as_json:
        write_json({"id": run.id} | ({"existed": run.existed} if by_name else {}))
    else:
        print(run.id)


def _signal(text: str) -> tuple[str, Any]:
    """A signal as the command line names it: its name, and after an equals sign its value."""
    name, _, value = text.partition("=")
    return name, json_argument(value or None, "the value of the signal")


async def result(
    session: Session,
    run: RunArgument,
    key: KeyOption = None,
    timeout: Annotated[float | None, time_option("--timeout", "-t", help="Exit with 4 after this.")] = None,
) -> None:
    """Wait for a run's end and print its result as JSON. Exits with 1 if the run failed or was cancelled."""
    async with session.writing() as app:
        await _print_result(app, (await find_run(app, run, key)).id, timeout, session.json)


@contextlib.contextmanager
def aloud(logger: logging.Logger) -> Iterator[None]:
    """Print warnings of the log while the block is executed: the command has no other log."""
    speaker = Speaker(logging.WARNING)
    logger.addHandler(speaker)
    try:
        yield
    finally:
        logger.removeHandler(speaker)


class Speaker(logging.Handler):
    """A handler of the log that writes to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message as a line on stderr."""
        say(record.getMessage())


async def _print_result(app: Stepfast, run_id: str, timeout: float | None, as_json: bool) -> None:
    # By a handle without a type: what is stored is JSON already, and is printed as it is.
    run = app.get(run_id)
    outcome: dict[str, Any] = {"id": run.id, "status": "completed", "reason": None, "output": None, "error": None}
    try:
        with aloud(app.logger):
            outcome["output"] = await run.result(timeout)
    except (RunFailed, RunCancelled) as error:
        if as_json:
            info = await run.info()
            write_json(outcome | {"status": info.status, "reason": info.reason, "error": info.error})
        complain(error)
        raise typer.Exit(FAILED) from None
    if as_json:
        write_json(outcome)
    else:
        write_value(outcome["output"])
