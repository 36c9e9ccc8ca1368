"""Changes of runs: ``signal``, ``ask``, ``cancel``, ``pause``, ``resume``, ``reschedule``, ``retry``, ``fork``,
``rewind``, ``delete``, ``prune``; and of their callbacks: ``complete``, ``fail``, ``beat``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from ..app import Stepfast
from ..errors import ConfigurationError, DatabaseUnavailable, InvalidState, RunNotFound
from ..model import status
from ..model.bulk_actions import CANCEL, DELETE, PAUSE, RESCHEDULE, RESUME, RETRY, SIGNAL
from ..model.retention import DELETABLE
from ..model.rows import RunRow
from ..monitoring.text import count, find_run, lasting
from ..run import Run
from .bulk import apply_to_selected, cancelled_by_sigterm
from .command import (
    Bar,
    Choice,
    DryRunOption,
    RunArgument,
    RunsOrChoice,
    Session,
    YesOption,
    consent,
    json_argument,
    moment_option,
    option,
    time_option,
)
from .exit_codes import as_typed, complain, exit_code, put
from .output import say, write_json

Told = dict[str, Any]


async def each_run(
    session: Session, ids: Sequence[str], word: str, ask: Callable[[Run[Any]], Awaitable[tuple[str, Told]]]
) -> None:
    """Call ``ask`` for each run, and print the ids that it returns; JSON lists every run, with ``word`` saying whether
    it was done. Exits with the code of the worst refusal. An ambiguous id stops all of it before any call."""
    told: list[Told] = []
    code = 0
    async with session.writing() as app:
        for name, run in (await _named(app, ids)).items():
            try:
                if isinstance(run, RunNotFound):
                    raise run
                shown, more = await ask(run)
            except (RunNotFound, InvalidState, DatabaseUnavailable) as refused:
                complain(refused)
                code = max(code, exit_code(refused))
                told.append({"id": name, word: False, "error": as_typed(str(refused))})
                if isinstance(refused, DatabaseUnavailable):
                    break  # the others would only wait for the same
            else:
                told.append({"id": name, word: True, "error": None} | more)
                if not session.json:
                    put(shown, sys.stdout)
    if session.json:
        write_json(told)
    raise typer.Exit(code)


async def _named(app: Stepfast, ids: Sequence[str]) -> dict[str, Run[Any] | RunNotFound]:
    """Return each run once, although several of the ids may be beginnings of its id."""
    found: dict[str, Run[Any] | RunNotFound] = {}
    for text in ids:
        try:
            run = await find_run(app, text)
            found[run.id] = run
        except RunNotFound as error:
            found[text] = error
    return found


async def signal(
    session: Session,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] NAME [JSON]",
            help="The run, unless runs are chosen; the signal that it waits for, or will; its value (- reads stdin).",
        ),
    ],
    choice: Choice,
    id: Annotated[str | None, option("--id", help="A run takes one signal of each id.")] = None,
) -> None:
    """Send a signal to a run, which keeps it until it takes it. Without a value it is null.

    With --workflow, --tag … it goes to all runs that fit and wait for it (with --status, to all of that status):
    counted, asked, and sent in batches.
    """
    many = choice.is_made(()) if len(words) < 2 else choice.is_given
    named = words if many else words[1:]
    if len(named) not in (1, 2):
        raise ConfigurationError("signal takes a run, the name of the signal and its value; chosen runs are not named")
    name, given = named[0], json_argument(named[1] if len(named) == 2 else None, "the value")
    if many:
        fits = None if choice.status is not None else lambda row: _waits_for(row, name)
        await apply_to_selected(session, choice, SIGNAL, ask=lambda run: run.signal(name, given, id=id), fits=fits)
    async with session.writing() as app:
        handle = await find_run(app, words[0])
        await handle.signal(name, given, id=id)
    if session.json:
        write_json({"id": handle.id, "signal": name, "sent": True})
    else:
        print(handle.id)


async def ask(
    session: Session,
    run: Annotated[str, typer.Argument(help="Its id, or the beginning of it.")],
    name: Annotated[str, typer.Argument(help="The question that it waits for, or will.")],
    value: Annotated[str | None, typer.Argument(metavar="[JSON]", help="Its value (- reads stdin).")] = None,
    id: Annotated[str | None, option("--id", help="Asked again with the same id, it has the same answer.")] = None,
    timeout: Annotated[float | None, time_option("--timeout", help="Wait so long for the answer; 90s, 5m …")] = None,
) -> None:
    """Ask a run, which answers by ctx.wait_question, and print its answer as JSON."""
    given = json_argument(value, "the value")
    async with session.writing() as app:
        handle = await find_run(app, run)
        answer = await handle.ask(name, given, id=id, timeout=timeout)
    write_json({"id": handle.id, "question": name, "answer": answer} if session.json else answer)


TokenArgument = Annotated[str, typer.Argument(help="The token of the callback (- reads it from stdin).")]


async def complete(
    session: Session,
    token: TokenArgument,
    value: Annotated[str | None, typer.Argument(metavar="[JSON]", help="Its value (- reads stdin).")] = None,
) -> None:
    """Complete a callback, by its token. Without a value it is null. Again with the same value, it has no effect."""
    if token == value == "-":
        raise ConfigurationError("either the token or the value can be read from stdin, not both")
    given = json_argument(value, "the value")
    await _of_callback(session, token, status.COMPLETED, lambda app, token: app.complete(token, given))


async def fail(
    session: Session, token: TokenArgument, error: Annotated[str, typer.Argument(help="A text that says why.")]
) -> None:
    """Fail a callback, by its token: its run is told the text. Again with the same text, it has no effect."""
    await _of_callback(session, token, status.FAILED, lambda app, token: app.fail(token, error))


async def beat(session: Session, token: TokenArgument) -> None:
    """Say that a callback with a heartbeat is being worked on."""
    await _of_callback(session, token, status.OPEN, lambda app, token: app.beat(token))


async def _of_callback(
    session: Session, token: str, state: str, act: Callable[[Stepfast, str], Awaitable[None]]
) -> None:
    given = sys.stdin.readline().strip() if token == "-" else token
    async with session.writing() as app:
        await act(app, given)
    if session.json:
        write_json({"state": state})
    else:
        print(state)


async def cancel(
    session: Session,
    choice: Choice,
    runs: RunsOrChoice = None,
    keep_children: Annotated[bool, typer.Option("--keep-children", help="Let their children go on.")] = False,
) -> None:
    """End runs: at once, or after the step that is being executed. Their children are cancelled too, and completed
    steps undone where they have an undo. Prints the ids of cancelled runs.

    With --workflow, --status … all runs that fit: counted, and after confirmation ended in batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.cancel(children=not keep_children)
        return await _asked(run, "it will be ended after the step that is being executed")

    if choice.is_made(runs or ()):
        if keep_children:
            raise ConfigurationError("--keep-children goes with ids, not with --workflow, --status …")
        ended_so = choice.reason is not None and choice.status is None
        await apply_to_selected(session, choice, CANCEL._replace(statuses=(status.FAILED,)) if ended_so else CANCEL)
    await each_run(session, runs or (), "cancelled", ask)


async def pause(session: Session, choice: Choice, runs: RunsOrChoice = None) -> None:
    """Pause runs, from their next step on, until they are resumed. Signals are kept for them, and sleeps are not
    extended. Prints the ids of paused runs. With --workflow, --status … all runs that fit: counted, and after
    confirmation paused in batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.pause()
        return await _asked(run, "it will be paused after the step that is being executed")

    if choice.is_made(runs or ()):
        await apply_to_selected(session, choice, PAUSE)
    await each_run(session, runs or (), "paused", ask)


async def resume(session: Session, choice: Choice, runs: RunsOrChoice = None) -> None:
    """Resume paused runs. A run in ctx.wait_until checks at once.

    Prints the ids of those that continue. With --workflow, --tag … all paused runs that fit: counted, and after
    confirmation resumed in batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.resume()
        return run.id, {"status": await run.status()}

    if choice.is_made(runs or ()):
        await apply_to_selected(session, choice, RESUME)
    await each_run(session, runs or (), "resumed", ask)


async def reschedule(
    session: Session,
    choice: Choice,
    runs: RunsOrChoice = None,
    delay: Annotated[float | None, time_option("--delay", help="Due in 90s, 5m, 2h …; without it, now.")] = None,
    at: Annotated[datetime | None, moment_option("--at", help="Due at this time, in ISO format.")] = None,
    priority: Annotated[
        int | None, option("--priority", help="Another priority; alone it leaves the time as it is.")
    ] = None,
) -> None:
    """Make runs due now, or at another time: queued ones, and those that wait for their next attempt or the next try of
    a step.

    Prints the ids of those that were moved. With --workflow, --status … all runs that fit and can be moved: counted,
    and after confirmation moved in batches.
    """
    if delay is None and at is None and priority is None:
        delay = 0

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.reschedule(delay=delay, at=at, priority=priority)
        info = await run.info()
        return run.id, {"status": info.status, "due_at": info.due_at, "priority": info.priority}

    if choice.is_made(runs or ()):
        await apply_to_selected(
            session, choice, RESCHEDULE,
            ask=lambda run: run.reschedule(delay=delay, at=at, priority=priority),
            fits=lambda row: _can_be_moved(row) and (priority is not None or not row.ready),
        )  # fmt: skip
    await each_run(session, runs or (), "rescheduled", ask)


def _can_be_moved(row: RunRow) -> bool:
    return row.status == status.QUEUED or status.WAITING_RETRY in (row.waiting_for or "").split(", ")


def _waits_for(row: RunRow, name: str) -> bool:
    """Whether a run waits for a signal; where it waits for more than its row names, it may."""
    named = (row.waiting_for or "").split(", ")
    return f"{status.WAITING_SIGNAL}:{name}" in named or status.WAITING_MORE in named


async def _asked(run: Run[Any], later: str) -> tuple[str, Told]:
    """Return the id and the status of a run after a request, which a worker that executes it applies later."""
    now = await run.status()
    if now == status.RUNNING:
        say(f"run {run.id} is running: {later}")
    return run.id, {"status": now}


async def retry(
    session: Session,
    choice: Choice,
    runs: RunsOrChoice = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Leave them as they are, and start new runs with the same input.")
    ] = False,
) -> None:
    """Queue failed or cancelled runs again: recorded steps are kept, the failed one is called again.

    Dead letters too: stepfast runs --dead lists them. Prints the ids of what was queued. Runs whose steps were undone
    can only be started again, with --from-start; then the ids of the new runs are printed. With --workflow, --reason …
    all failed runs that fit (with --status cancelled, cancelled ones): counted, and after confirmation queued in
    batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        queued = await run.retry(from_start=from_start)
        return queued.id, {"run": queued.id} if from_start else {}

    if choice.is_made(runs or ()):
        if from_start:
            raise ConfigurationError("--from-start takes ids: called again, it would start chosen runs once more")
        await apply_to_selected(session, choice, RETRY)
    await each_run(session, runs or (), "retried", ask)


BeforeOption = Annotated[
    str,
    option(
        "--before", metavar="STEP", help="Its name (the first of it), or its place among the steps of `show`, from 0."
    ),
]


async def fork(
    session: Session,
    run: RunArgument,
    before: BeforeOption,
    input: Annotated[
        str | None, option("--input", metavar="JSON", help="Instead of the input of the run; - reads stdin.")
    ] = None,
) -> None:
    """Start a new run with the records of a run up to a step, which it executes first. Prints its id.

    The run stays as it is. Its undos, signals, keys and streams are its own; children that it had started are read.
    """
    given = None if input is None else json_argument(input, "the input")
    async with session.writing() as app:
        handle = await find_run(app, run)
        new = await handle.fork(before=_step_named(before), input=given)
    if session.json:
        write_json({"id": new.id, "origin": handle.id})
    else:
        print(new.id)


async def rewind(session: Session, run: RunArgument, before: BeforeOption) -> None:
    """Execute a run that has ended again from a step on, and prints its id. Records from there on are removed."""
    async with session.writing() as app:
        handle = await find_run(app, run)
        again = await handle.rewind(before=_step_named(before))
        status_now = await again.status()
    if session.json:
        write_json({"id": again.id, "status": status_now})
    else:
        print(again.id)


def _step_named(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() else text


async def prune(
    session: Session,
    older_than: Annotated[
        float | None, time_option("--older-than", help="Those that ended longer ago: 30d, 12h …")
    ] = None,
    keep: Annotated[
        int | None, option("--keep", min=0, help="But for so many of each workflow, the newest that ended.")
    ] = None,
    archive: Annotated[
        str | None, option("--archive", metavar="FILE", help="Write them there first: a JSON object per line.")
    ] = None,
    status: Annotated[str | None, option("--status", "-s", help=", ".join(DELETABLE))] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove runs that ended a while ago, with their steps and all that belongs to them. What other runs still need
    stays.

    Counts first, and asks; without a terminal it needs --yes, or an archive. It can be interrupted, and called again.
    With an archive, a run is removed only when its line is on the disk; lines are added to what the file holds.
    """
    if older_than is None and keep is None:
        raise ConfigurationError("which runs? Give --older-than 30d, --keep 100, or both")
    async with session.writing() as app:
        number = await app.prune(older_than, keep=keep, status=status, dry_run=True)
        what = f"{count(number, 'run')} that ended" + (
            f" longer than {lasting(older_than)} ago" if older_than is not None else ""
        )
        what += "" if keep is None else f", beyond the newest {keep} of each workflow"
        if dry_run or not number:
            _told(session, f"would remove {what}" if number else "there is nothing to remove", 0, number, None)
            return
        if archive is None or sys.stdin.isatty():  # with an archive nothing is lost: a cron job need not say so twice
            consent(f"Remove {what}{'' if archive is None else f', and keep them in {archive}'}?", yes)
        with Bar("removing", number) as bar, cancelled_by_sigterm():
            try:
                removed = await app.prune(older_than, keep=keep, archive=archive, status=status, progress=bar.at)
            except asyncio.CancelledError:
                say(f"interrupted: about {count(bar.done, 'run')} removed. Call it again for the rest")
                raise
    _told(session, f"removed {count(removed, 'run')}", removed, number, archive)


def _told(session: Session, sentence: str, removed: int, found: int, archive: str | None) -> None:
    if session.json:
        write_json({"found": found, "removed": removed, "archive": archive})
    else:
        say(sentence)


async def delete(session: Session, choice: Choice, runs: RunsOrChoice = None) -> None:
    """Remove runs that have ended, with all that belongs to them, before their retention is over. Refused while they
    are unfinished, and while other runs need them. Prints the ids of those that are gone.

    With --workflow, --status … all ended runs that fit: counted, and after confirmation removed in batches.
    """

    async def ask(run: Run[Any]) -> tuple[str, Told]:
        await run.delete()
        return run.id, {}

    if choice.is_made(runs or ()):
        await apply_to_selected(session, choice, DELETE)
    await each_run(session, runs or (), "deleted", ask)
