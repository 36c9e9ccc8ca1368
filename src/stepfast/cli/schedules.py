"""``schedules``, and the commands for one: ``schedule put|delete|pause|resume|trigger|backfill``."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated, Any, cast

import typer

from ..engine.options import ScheduleKeywords
from ..monitoring.text import ago, count, schedule_shape, state_in_words, times_in_words, when_in_words
from ..schedules import ScheduleInfo
from .command import Bar, Session, json_argument, moment_option, option, time_option
from .output import say, write_json, write_table

ScheduleArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


async def schedules(session: Session) -> None:
    """List the schedules: their workflow, when they fire, their state, and their next five ticks."""
    async with session.looking() as app:
        found = await app.schedules()
    if session.json:
        write_json([schedule_shape(info) for info in found])
    elif found:
        columns = ("schedule", "workflow", "when", "state", "last", "next")
        write_table(columns, [_row(info) for info in found])
        for info in found:
            if info.error is not None:
                say(f"schedule {info.name!r} cannot be started: {info.error}")
    else:
        say("no schedules: app.schedule declares one in code, `stepfast schedule put` makes one here")


async def put(
    session: Session,
    name: ScheduleArgument,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="What it starts.")],
    cron: Annotated[str | None, option("--cron", help="Five fields, as '0 3 * * *'; six with seconds.")] = None,
    every: Annotated[float | None, time_option("--every", help="Instead: between two ticks.")] = None,
    tz: Annotated[str, option("--tz", help="The time zone of --cron. (UTC)")] = "UTC",
    input: Annotated[str | None, option("--input", metavar="JSON", help="Of each run; - reads stdin.")] = None,
    missed: Annotated[str, option("--missed", help="Missed ticks: skip, latest or all. (latest)")] = "latest",
    overlap: Annotated[str, option("--overlap", help="While a run is unfinished: allow or skip. (allow)")] = "allow",
    jitter: Annotated[float, time_option("--jitter", help="Put runs off by up to this.")] = 0,
    queue: Annotated[str | None, option("--queue", help="Else the workflow's own.")] = None,
    priority: Annotated[int, option("--priority", help="Of its runs; higher is sooner.")] = 0,
    tag: Annotated[list[str] | None, option("--tag", help="May be given several times.")] = None,
) -> None:
    """Make a schedule, or change the one of this name; not one that code declares."""
    given: dict[str, Any] = {
        "cron": cron, "every": every, "tz": tz, "input": json_argument(input, "the input"), "missed": missed,
        "overlap": overlap, "jitter": jitter, "queue": queue, "priority": priority or None, "tags": tag,
    }  # fmt: skip
    kept = {name: value for name, value in given.items() if value is not None}
    async with session.writing() as app:
        info = await app.put_schedule(name, workflow, **cast(ScheduleKeywords, kept))
    _tell(session, name, schedule_shape(info))
    if not session.json:
        say(f"next: {times_in_words(info)}")


async def delete(session: Session, name: ScheduleArgument) -> None:
    """Delete a schedule that was made at run time, or that no live worker declares. Its runs stay."""
    async with session.writing() as app:
        await app.delete_schedule(name)
    _tell(session, name, {"name": name, "deleted": True})


async def pause(session: Session, name: ScheduleArgument) -> None:
    """Pause a schedule: its ticks start no runs until it is resumed."""
    async with session.writing() as app:
        await app.pause_schedule(name)
    _tell(session, name, {"name": name, "paused": True})


async def resume(session: Session, name: ScheduleArgument) -> None:
    """Resume a schedule with its next tick. Ticks that passed while it was paused are skipped."""
    async with session.writing() as app:
        await app.resume_schedule(name)
    _tell(session, name, {"name": name, "paused": False})


async def trigger(session: Session, name: ScheduleArgument) -> None:
    """Start a run of a schedule now, in addition to its ticks, and print its id."""
    async with session.writing() as app:
        run = await app.trigger(name)
    _tell(session, run.id, {"name": name, "id": run.id})


async def backfill(
    session: Session,
    name: ScheduleArgument,
    since: Annotated[datetime, moment_option("--since", help="From here on, as 2030-01-31 or 2030-01-31T09:30+01:00.")],
    until: Annotated[datetime, moment_option("--until", help="Before this.")],
) -> None:
    """Start a run for each tick in a span that has come already, and print the ids. A tick that has a run starts none,
    so that it may be repeated."""
    bars: list[Bar] = []
    async with session.writing() as app:
        with contextlib.ExitStack() as stack:

            def progress(done: int, of: int) -> None:
                if not bars:
                    bars.append(stack.enter_context(Bar("backfill", of)))
                bars[0].at(done)

            runs = await app.backfill(name, since, until, progress=progress)
    if runs:
        say(f"each of {count(len(runs), 'tick')} has a run")
    else:
        say(f"schedule {name!r} has no tick in this span that has come already")
    _tell(session, "\n".join(run.id for run in runs), {"name": name, "ids": [run.id for run in runs]})


def _row(info: ScheduleInfo) -> tuple[str, ...]:
    last = "" if info.last_at is None else ago(info.last_at, info.read_at)
    coming = "" if info.paused else times_in_words(info)
    return info.name, info.workflow, when_in_words(info), state_in_words(info), last, coming


def _tell(session: Session, text: str, document: dict[str, Any]) -> None:
    if session.json:
        write_json(document)
    elif text:
        print(text)
