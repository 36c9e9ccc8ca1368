"""``runs`` and ``show``: lists of runs, and everything about one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from ..engine.compensation import UNDO_BRANCH
from ..engine.concurrency import FIRST
from ..errors import ConfigurationError
from ..filters import CountKeywords
from ..info import Activity, RunInfo, StepInfo
from ..model import status
from ..model import status as statuses
from ..model.attributes import shown
from ..model.cron import clock
from ..model.status import DAG_STEP, WORKFLOW
from ..model.tracebacks import own_code_only
from ..monitoring.explain import dag_steps, explain, graph_of, infos_of, steps_of, unread, waits_for
from ..monitoring.text import (
    ago,
    brief,
    call_shape,
    due_at,
    executor,
    executor_name,
    explained,
    find_run,
    lasting,
    outcome_of,
    printable,
    run_shape,
    shortened,
    status_of,
)
from ..monitoring.unreadable import is_sealed
from ..streams import LogLine
from .command import (
    AttributeOption,
    Bar,
    KeyOption,
    RunArgument,
    Session,
    ThisOption,
    attributes_given,
    option,
    time_option,
)
from .exit_codes import FAILED, OK
from .graph import SvgOption, write_standing, write_timeline
from .output import say, write_fields, write_heading, write_json, write_line, write_table, write_text

_RUN_COLUMNS = ("id", "workflow", "queue", "status", "attempt", "created", "took", "key", "tags", "input", "error")
_INPUT = 9
_GAP = 2
"""Blanks between two columns of a table."""
_NARROWEST, _WIDEST = 12, 60
"""Characters of an input that are shown at least and at most."""
_ERROR = 200
_LEAST_ERROR = 40
_ALL_RECORDS = 2**31 - 1
"""After this number no step is recorded: only what is under way is asked for."""
_WATCH_EVERY, _WATCH_LEAST = 1.0, 0.05
"""Seconds between two looks at a run that is watched."""
_LAST_ITEM = 0.5
"""Seconds without an item after which all that are stored have been read."""


async def stream(
    session: Session,
    run: RunArgument,
    name: Annotated[str | None, typer.Argument(help="The stream; without it the names of the run's streams.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the stream or the run ends.")] = False,
    after: Annotated[str | None, option("--after", help="Begin after the item with this offset.")] = None,
    this: ThisOption = False,
) -> None:
    """Print the items of a stream, one JSON value a line; with --json their offsets too."""
    async with session.reading() as app:
        found = await find_run(app, run, this=this)
        if name is None:
            names = await found.streams()
            write_json(names) if session.json else print(*names, sep="\n")
            return
        limit = None if follow else _LAST_ITEM
        with contextlib.suppress(*(() if follow else (TimeoutError,))):
            async for item in found.stream(name, after=after, timeout=limit):
                shown = {"offset": item.offset, "value": item.value, "attempt": item.attempt,
                         "restarted": item.restarted, "sent_at": item.sent_at}  # fmt: skip
                write_line(shown if session.json else item.value)


async def watch(
    session: Session,
    run: RunArgument,
    every: Annotated[float | None, time_option("--every", help="Look again after 1s, 500ms …")] = None,
) -> None:
    """Show how far a run is until it ends: its status, and its progress, on a terminal as a bar.

    The progress is what the code says by ctx.progress, or how many items of a ctx.map are done. Exits with 1 if the run
    failed or was cancelled."""
    async with session.reading() as app:
        found, shown = await find_run(app, run), ""
        with Bar("", 0) as bar:
            while True:
                info = await found.info()
                under_way = await found.steps(after=_ALL_RECORDS) if info.completed_at is None else []
                said = next((step for step in under_way if step.kind == WORKFLOW), None)
                state, words = explained(info), "" if said is None or said.detail is None else f": {said.detail}"
                if state + words != shown:
                    shown = state + words
                    _watched(session, bar, info, state, said)
                if info.completed_at is not None:
                    break
                await asyncio.sleep(_WATCH_EVERY if every is None else max(every, _WATCH_LEAST))
    raise typer.Exit(OK if info.status == status.COMPLETED else FAILED)


def _watched(session: Session, bar: Bar, info: RunInfo, state: str, said: StepInfo | None) -> None:
    """Show what is new."""
    data = said.data if said is not None and isinstance(said.data, dict) else {}
    done, total = data.get("done"), data.get("of")
    if session.json:
        detail = None if said is None else said.detail
        write_line({"status": info.status, "waiting_for": info.waiting_for, "progress": detail, "data": data or None})
    elif bar.on_terminal:
        words = state if said is None or said.detail is None else f"{state}: {said.detail}"
        bar.rename(shortened(words))
        if isinstance(done, int) and isinstance(total, int):
            bar.at(done, total)
    else:
        print(shortened(state if said is None or said.detail is None else f"{state}: {said.detail}"), flush=True)


async def logs(
    session: Session,
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    level: Annotated[str, option("--level", help="Leave out lines of lower levels: INFO, WARNING …")] = "NOTSET",
    this: ThisOption = False,
) -> None:
    """Print what the code of a run has logged, where its application keeps that: Stepfast(run_logs="INFO")."""
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ConfigurationError(f"there is no level {level!r}; there are {', '.join(known)}")
    async with session.reading() as app:
        found = await find_run(app, run, this=this)
        if not follow:
            for line in await found.logs():
                _write_line(session, line, known, known[level.upper()])
            return
        async for line in found.follow_logs():
            _write_line(session, line, known, known[level.upper()])


def _write_line(session: Session, line: LogLine, known: Mapping[str, int], least: int) -> None:
    if known.get(line.level, least) < least:
        return
    if session.json:
        write_line({"at": line.at, "level": line.level, "logger": line.logger, "message": line.message,
                    "step": line.step})  # fmt: skip
        return
    step = "" if line.step is None else f" [{line.step}]"
    shown = f"{clock(line.at)} {line.level:<7} {line.logger}{step} {line.message}"
    print("\n".join(map(printable, shown.splitlines())), flush=True)


def write_runs(runs: Sequence[RunInfo]) -> None:
    """The table. Inputs are shown of runs without a key, as far as there is room for them."""
    rows = [_run_row(run) for run in runs]
    width = _room(rows)
    if width >= _NARROWEST:
        for row, run in zip(rows, runs, strict=True):
            row[_INPUT] = _input(run, width)
    write_table(_RUN_COLUMNS, rows)


def took(run: RunInfo) -> str:
    """How long it has taken so far, or took, waits included."""
    if run.started_at is None:
        return ""
    return lasting(((run.completed_at or run.read_at) - run.started_at).total_seconds())


def _run_row(run: RunInfo) -> list[str]:
    queue = "" if run.queue == run.workflow else run.queue
    attempt = "" if run.attempt == 0 else str(run.attempt)
    created = ago(run.created_at, run.read_at)
    return [
        run.id, run.workflow, queue, status_of(run), attempt, created, took(run), run.key or "", ", ".join(run.tags),
        "", _error(run),
    ]  # fmt: skip


def _error(run: RunInfo) -> str:
    """Return the error of a run that failed by it; one that is to be tried again has an error too."""
    if run.error is None or run.status not in (status.FAILED, status.COMPENSATED, status.COMPENSATING):
        return ""
    return _cut(f"{run.error.type}: {run.error.message}", _ERROR)


def _input(run: RunInfo, width: int) -> str:
    if run.key is not None or is_sealed(run.input):
        return ""
    if run.input is None:
        return "(large)" if "input" in run.left_out else ""
    return _cut(brief(run.input), width)


def _cut(text: str, longest: int) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _room(rows: Sequence[Sequence[str]]) -> int:
    """Return the characters left for the inputs. Some are left for the last column, which is folded, too."""
    if not sys.stdout.isatty():
        return _WIDEST
    taken = 0
    for number, column in enumerate(_RUN_COLUMNS):
        cells = [row[number] for row in rows if row[number]]
        if cells and number != _INPUT:
            widest = max(cell_len(printable(text)) for text in (column, *cells))
            taken += (min(widest, _LEAST_ERROR) if column == "error" else widest) + _GAP
    return min(_WIDEST, shutil.get_terminal_size().columns - taken)


_STEP_COLUMNS = ("step", "kind", "branch", "status", "tries", "took", "undone by", "ran on", "outcome")


def write_steps(steps: Sequence[StepInfo], run: RunInfo) -> None:
    """Write the steps of a run as a table; with the worker of each where there was more than one."""
    if steps:
        several = len({step.executed_by for step in steps}) > 1
        write_heading("Steps")
        write_table(_STEP_COLUMNS, [_step_row(step, run, several) for step in steps])


def write_children(children: Sequence[RunInfo], more: int) -> None:
    """Write the runs that a run started as a table."""
    if children:
        write_heading(f"Children (the last {len(children)} of {len(children) + more})" if more else "Children")
        rows = [
            (child.id, child.workflow, status_of(child), ago(child.created_at, child.read_at)) for child in children
        ]
        write_table(("id", "workflow", "status", "created"), rows)


def _step_row(step: StepInfo, run: RunInfo, several: bool) -> tuple[str, ...]:
    took = ((step.completed_at or run.read_at) - (step.started_at or run.read_at)).total_seconds()
    kind = "" if step.kind == "step" else step.kind
    branch = "" if step.branch == UNDO_BRANCH else step.branch
    tries = str(step.attempts or "") + (f" + {step.losses} lost" if step.losses else "")
    last = " (last try)" if step.attempts > 1 and step.kind != DAG_STEP else ""
    span = lasting(took) + last + ("" if step.queue_wait is None else f", {lasting(step.queue_wait)} of it queued")
    who = executor_name(step.executed_by) if several else ""
    return step.name, kind, branch, step.status, tries, span, step.undo or "", who, _outcome(step, run)


def _outcome(step: StepInfo, run: RunInfo) -> str:
    if step.lost_to is not None:
        return f"lost the race to {step.lost_to!r}"
    is_open = step.status == status.WAITING and step.error is None
    due = due_at(step) if is_open or step.kind == "sleep" else None
    if step.kind == "sleep" and due is not None:
        return f"until {clock(due)} ({ago(due, run.read_at)})"
    if is_open and step.detail:
        return shortened(step.detail)
    if is_open and due is not None:
        return f"until {clock(due)} at the latest ({ago(due, run.read_at)})"
    if step.kind == FIRST and step.error is None and not is_open:
        return f"won by {brief(step.output)}"
    text = "" if is_open or step.kind == "start" else outcome_of(step.error, step.output, step.detail)
    return f"child {step.child}" + (f": {text}" if text else "") if step.child else text


_ORDERS = ("newest", "oldest")
_CHILDREN = 20
"""Children that are read; the ids of all are among the steps."""


async def runs(
    session: Session,
    workflow: Annotated[str | None, option("--workflow", "-w")] = None,
    status: Annotated[str | None, option("--status", "-s", help=", ".join(statuses.RUN_STATUSES))] = None,
    queue: Annotated[str | None, option("--queue", "-q")] = None,
    tag: Annotated[str | None, option("--tag")] = None,
    attribute: AttributeOption = None,
    parent: Annotated[str | None, option("--parent", metavar="RUN", help="Started by this run.")] = None,
    id_prefix: Annotated[str | None, option("--id-prefix", help="The beginning of their ids.")] = None,
    reason: Annotated[str | None, option("--reason", help=", ".join(statuses.REASONS))] = None,
    key: Annotated[str | None, option("--key")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Dead letters: failed because workers died with them.")] = False,
    since: Annotated[float | None, time_option("--since", help="Created within the last 10m, 2h, 1d …")] = None,
    older_than: Annotated[
        float | None, time_option("--older-than", help="Created longer ago than 10m, 2h, 1d …")
    ] = None,
    sort: Annotated[str, typer.Option("--sort", help=" or ".join(_ORDERS))] = _ORDERS[0],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.")] = 50,
    after: Annotated[str | None, option("--after", metavar="RUN", help="The page after this run.")] = None,
    counted: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
) -> None:
    """List runs, newest first. Failed ones are listed with their error, all with their key or the beginning of their
    input where there is room."""
    if dead:
        if status not in (None, statuses.FAILED) or reason not in (None, statuses.REASON_LOST):
            raise ConfigurationError("--dead means --status failed --reason workers_lost; leave the others out")
        status, reason = statuses.FAILED, statuses.REASON_LOST
    if sort not in _ORDERS:
        raise ConfigurationError(f"runs can be sorted {' or '.join(_ORDERS)}, not {sort!r}")
    given: CountKeywords = {
        "workflow": workflow, "status": status, "queue": queue, "tag": tag, "reason": reason, "key": key,
        "since": since, "older_than": older_than, "parent": parent, "id_prefix": id_prefix,
    }  # fmt: skip
    if counted:
        async with session.reading() as app:
            given["attributes"] = await attributes_given(app, attribute)
            number = await app.count(**given)
        write_json({"count": number}) if session.json else print(number)
        return
    async with session.looking() as app:
        given["attributes"] = await attributes_given(app, attribute)
        found = await app.runs(
            **given,
            limit=limit,
            oldest_first=sort == _ORDERS[1],
            after=None if after is None else (await find_run(app, after)).id,
        )
    if session.json:
        write_json(found)
        return
    if not found:
        say("no runs")
        return
    write_runs(found)
    if len(found) == limit:
        say(f"there may be more: --after {found[-1].id}")


async def show(
    session: Session,
    run: RunArgument,
    key: KeyOption = None,
    activity: Annotated[bool, typer.Option("--activity", "-a", help="Also every call, failed tries included.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="The error with the library's own frames.")] = False,
    svg: SvgOption = None,
    this: ThisOption = False,
) -> None:
    """Show one run: its status and why, its steps, its children, what it has set, its error; or, with --svg, its
    timeline. Of one that has continued as another the last is shown."""
    if svg is not None:
        if session.json:
            raise ConfigurationError("--svg and --json are two forms of the same run; give one of them")
        await write_timeline(session, run, svg, key, this)
        return
    async with session.looking() as app:
        info = await (await find_run(app, run, key, this=this)).info()
        handle = app.get(info.id).this
        steps = await steps_of(app, info)
        values = await handle.values()
        # The log of a long run is long; without being asked for, it is read only to explain a retry.
        calls = await handle.activity() if activity or waits_for(info, statuses.WAITING_RETRY) else []
        mail = await (await app.store()).unread(info.id) if info.completed_at is None else []
        graph = await graph_of(app, info) if dag_steps(steps) else None
        started = [step.child for step in steps if step.child is not None and step.kind != DAG_STEP]
        children = await infos_of(app, started[-_CHILDREN:])
        reason = await explain(app, info, steps, calls, children)
    if session.json:
        document = run_shape(info, reason, steps, started, values, mail)
        write_json(document | {"activity": [call_shape(c) for c in calls]} if activity else document)
        return
    write_fields(_fields(info, reason, unread(info, mail)))
    if graph is None:
        write_steps(steps, info)
    else:
        write_standing(graph, steps, info)
    write_children(children, len(started) - len(children))
    if values:
        write_heading("Values")
        write_fields([(printable(key), brief(value)) for key, value in values.items()])
    if activity and calls:
        write_heading("Activity")
        columns = ("started", "call", "branch", "try", "status", "took", "ran on", "parameters", "outcome")
        write_table(columns, [_activity(c) for c in calls])
    if info.error is not None and info.error.traceback:
        write_heading("Error")
        write_text(info.error.traceback if traceback else own_code_only(info.error.traceback))


def _fields(run: RunInfo, reason: str, mail: str) -> list[tuple[str, str]]:
    continued = run.reason == statuses.REASON_CONTINUED
    return [
        ("run", run.id),
        ("workflow", f"{run.workflow} (version {run.version})"),
        ("status", explained(run)),
        ("why", reason),
        ("mail", mail),
        ("queue", run.queue + (f", priority {run.priority}" if run.priority else "")),
        ("key", run.key or ""),
        ("unique", run.unique or ""),
        ("concurrency key", run.concurrency_key or ""),
        ("tags", ", ".join(run.tags)),
        ("attributes", ", ".join(f"{printable(name)}={shown(value)}" for name, value in run.attributes.items())),
        ("schedule", _schedule(run)),
        ("asked", f"to {run.asked}" if run.asked else ""),
        ("parent", run.parent or ""),
        ("origin", run.origin or ""),
        ("goes on as", str(run.output) if continued else ""),
        ("attempt", str(run.attempt or "")),
        ("losses", str(run.losses or "")),
        ("worker", run.worker or ""),
        ("ran on", executor(run.executed_by)),
        ("created", _when(run.created_at, run)),
        ("started", _when(run.started_at, run)),
        ("paused", _when(run.paused_at, run)),
        ("ended", _ended(run)),
        ("deadline", _when(run.deadline, run)),
        ("input", brief(run.input)),
        ("output", brief(run.output) if run.status == statuses.COMPLETED and not continued else ""),
        ("error", "" if run.error is None else shortened(f"{run.error.type}: {run.error.message}")),
    ]


def _schedule(run: RunInfo) -> str:
    if run.schedule is None:
        return ""
    return f"{run.schedule}, " + ("triggered by hand" if run.tick is None else f"for its tick of {clock(run.tick)}")


def _ended(run: RunInfo) -> str:
    span = f", took {took(run)}" if run.completed_at is not None and run.started_at is not None else ""
    return _when(run.completed_at, run) + span


def _when(time: Any, run: RunInfo) -> str:
    return "" if time is None else f"{clock(time)} ({ago(time, run.read_at)})"


def _activity(call: Activity) -> tuple[str, ...]:
    name = f"{call.name} (the run itself)" if call.position is None else call.name
    parameters = "" if call.parameters is None else brief(call.parameters)
    queued = "" if call.queue_wait is None else f", {lasting(call.queue_wait)} of it queued"
    took = lasting(call.duration.total_seconds()) + queued
    outcome, who = outcome_of(call.error, call.result), executor_name(call.executed_by)
    return clock(call.started_at), name, call.branch, str(call.attempt), call.status, took, who, parameters, outcome
