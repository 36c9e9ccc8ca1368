"""``migrate``, ``reset``, ``workers``, ``doctor``, ``audit``, ``stats``, ``console`` and ``docs``."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from .. import documents
from ..app import Stepfast
from ..errors import ConfigurationError, DatabaseUnavailable, InvalidState
from ..model.cron import clock
from ..model.ids import check_id
from ..model.records import WorkerInfo
from ..model.stored import moment
from ..model.urls import redact
from ..monitoring.audit import line_shape
from ..monitoring.doctor import check_shape, examine, unreachable
from ..monitoring.text import count, lasting, listed, live_workers, queues_of, worker_name, worker_shape
from ..stats import Stats
from ..store import Store, open_store
from ..store.answers import AuditLine, Check, SchemaState
from ..store.migrations import refuse_too_new
from .command import Session, absent_file, option, time_option
from .exit_codes import FAILED, NOT_FOUND, UNAVAILABLE, complain
from .output import say, write_heading, write_json, write_table, write_text
from .worker import make_transport_tables


async def migrate(
    session: Session,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script; connects to nothing.")] = False,
    roles_sql: Annotated[
        bool, typer.Option("--roles-sql", help="Print SQL for roles of least privilege; connects to nothing.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if migrations are pending.")] = False,
    transport: Annotated[bool, typer.Option("--transport", help="The tables of remote steps instead.")] = False,
    prefix: Annotated[str | None, option("--prefix", help="How their names begin. (durable)")] = None,
) -> None:
    """Make the tables or bring them up to date. Safe to repeat, and when many do it at once."""
    given = [name for name, on in (("--sql", sql), ("--roles-sql", roles_sql), ("--check", check)) if on]
    if len(given) > 1:
        raise typer.BadParameter(f"{given[0]} and {given[1]} exclude each other")
    if transport:
        if check or roles_sql:
            raise typer.BadParameter(f"--transport and {given[0]} exclude each other")
        await make_transport_tables(session, sql, prefix)
        return
    if prefix is not None:
        raise typer.BadParameter("--prefix goes with --transport")
    app = session.application()
    if sql:
        sys.stdout.write(open_store(app.url, app.namespace, app.settings).migration_sql())
    elif roles_sql:
        sys.stdout.write(open_store(app.url, app.namespace, app.settings).roles_sql())
    elif check:
        await _check(session, app)
    else:
        async with session.store(app) as store:
            applied = await store.migrate()
        if session.json:
            write_json({"applied": applied})
        else:
            say(f"applied {listed(applied)}" if applied else f"namespace {app.namespace!r} is up to date")


async def _check(session: Session, app: Stepfast) -> None:
    if absent_file(app) is not None:
        pending, version = ["all"], 0
    else:
        async with session.store(app) as store:
            state = await store.schema_state()
        refuse_too_new(state)
        pending, version = state.pending, state.version
    if session.json:
        write_json({"version": version, "pending": pending})
    elif pending:
        say(f"pending in namespace {app.namespace!r}: {listed(pending)}; run `stepfast migrate`")
    else:
        say(f"namespace {app.namespace!r} is up to date (version {version})")
    if pending:
        raise typer.Exit(FAILED)


async def reset(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while workers live.")] = False,
) -> None:
    """Drop the tables of the namespace with all runs, and nothing else. Asks first; refuses while workers live."""
    app = session.application()
    where = f"namespace {app.namespace!r} of {redact(app.url.text)}"
    if absent_file(app) is not None:
        say(f"there is nothing in {where}")
        return
    async with session.store(app) as store:
        state = await store.schema_state()
        if state.version == 0:
            say(f"there is nothing in {where}")
            return
        if not force:
            await _refuse_while_workers_live(store, state)
        names = listed(store.names())
        if not yes:
            say(f"to be dropped: {names}")
            typer.confirm(f"Drop every run, step and table in {where}?", abort=True, err=True)
        await store.reset()
    say(f"dropped everything of {where}: {names}")


async def _refuse_while_workers_live(store: Store, state: SchemaState) -> None:
    refuse_too_new(state._replace(moved=None))  # what is left of a namespace that was moved may be dropped
    live = live_workers(await store.workers())
    if live:
        heard = [f"{worker_name(worker)}, heard of {lasting(worker.age_ms / 1000)} ago" for worker in live]
        raise InvalidState(
            f"{count(len(live), 'worker')} still live: {listed(heard)}. Stop them first "
            "(one that crashed is gone after its lease), or use --force"
        )


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


async def audit(
    session: Session,
    which: Annotated[
        str | None, typer.Argument(metavar="[WHICH]", help="A run, queue or schedule: only what was done to it.")
    ] = None,
    limit: Annotated[int, option("--limit", "-n", min=1, max=10_000, help="Lines, the newest first. (50)")] = 50,
    before: Annotated[str | None, option("--before", metavar="ID", help="The last line of the page before.")] = None,
) -> None:
    """List the actions of the console: when, who, what, on which run, queue or schedule, from where, with which
    outcome.

    The outcome "unknown" is that of a process that was killed: the action may or may not have been carried out.
    """
    async with session.reading() as app:
        found = await (await app.store()).audit(which, None if before is None else check_id(before), limit)
    if session.json:
        write_json([line_shape(line) for line in found])
    elif found:
        write_table(("when", "who", "what", "which", "from", "outcome", "in words"), [_row(line) for line in found])
        if len(found) == limit:
            say(f"more: --before {found[-1].id}")
    else:
        say("no action was carried out in the console")


def _row(line: AuditLine) -> tuple[str, ...]:
    at = clock(moment(line.at))
    return at, line.who, line.what, line.which, line.origin, line.outcome, line.said or ""


FAILURES = ("workflow", "step", "reason", "error", "runs", "per hour", "last")


async def stats(
    session: Session,
    since: Annotated[float, time_option("--since", help="How far to look back. (1h)")] = 3600.0,
) -> None:
    """Show what happened lately: runs by workflow, queue and status, failures by error, the slowest steps.

    Unfinished runs are counted whenever they were started, others if they ended within the span. The queries are
    bounded: where there are more, the newest 20 000 runs are counted, and a line says so.
    """
    async with session.looking() as app:
        found = await app.stats(since)
    if session.json:
        write_json({**dataclasses.asdict(found), "complete": found.complete})
        return
    if not found.runs:
        say(f"nothing is under way, and nothing has ended within {lasting(since)}")
        return
    _write_runs(found)
    _write_failures(found)
    _write_steps(found)
    if not found.complete:
        newest, back = count(found.looked_at, "run"), lasting(found.reaches or 0)
        say(f"ended runs are counted among the newest {newest}, which go back {back}; there were more")


def _write_runs(found: Stats) -> None:
    rows = [
        [row.workflow, "" if row.queue == row.workflow else row.queue, row.status, str(row.count),
         "" if row.oldest is None else lasting(row.oldest)]
        for row in found.runs
    ]  # fmt: skip
    write_table(("workflow", "queue", "status", "runs", "oldest"), rows)


def _write_failures(found: Stats) -> None:
    if not found.failures:
        return
    write_heading(f"failed within {lasting(found.since)}")
    write_table(FAILURES, failure_rows(found))


def failure_rows(found: Stats) -> list[list[str]]:
    """The rows of a table of failures."""
    return [
        [row.workflow, row.step or "", row.reason or "", row.error_type or "(sealed)", str(row.count),
         f"{row.per_hour:.0f}" if row.per_hour >= 100 else f"{row.per_hour:.3g}", f"{lasting(row.last)} ago"]
        for row in found.failures
    ]  # fmt: skip


def _write_steps(found: Stats) -> None:
    if not found.steps:
        return
    write_heading("slowest steps")
    rows = [
        [row.workflow, row.step, str(row.count), lasting(row.p50), lasting(row.p95), lasting(row.longest)]
        for row in found.steps
    ]
    write_table(("workflow", "step", "calls", "p50", "p95", "longest"), rows)


_BACKLOG = 128


async def console(
    session: Session,
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", show_default=False, help="The code: its database and codec.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8710,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every action.")] = False,
    redact: Annotated[
        list[str] | None, option("--redact", metavar="PATH", help="Hide this of payloads: password, card.number …")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("--allow-host", metavar="NAME", help="Also answer to this name, as behind a proxy.")
    ] = None,
    root_path: Annotated[
        str, option("--root-path", metavar="PREFIX", help="The prefix that a proxy puts before it.")
    ] = "",
) -> None:
    """Serve the web console. Needs only the database; the code is for payloads that passed through its codec.

    It opens by a token: that of STEPFAST_CONSOLE_TOKEN, else one that is made now and printed with the link."""
    serving = _serving()
    token = os.environ.get(serving.TOKEN, "").strip() or None
    if token is None and not serving.is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from outside this machine: set {serving.TOKEN} to a secret of your own first"
        )
    if app is not None:
        session = session.with_options(None, None, app, False)
    with _listening(host, port) as listener:
        link = f"http://{_shown(host)}:{listener.getsockname()[1]}{serving.prefix_of(root_path)}/"
        made = secrets.token_urlsafe(32) if token is None else None
        async with session.operating() as found:
            await found.store()  # what is wrong with the database is said now, and not on the first page
            served = serving.standing_alone(
                found, token=token or made, host=host, read_only=read_only, redact=redact, allowed=allow_host or ()
            )
            print(f"Stepfast console: {link}" + (f"?token={made}" if made else ""), flush=True)
            await serving.serve(served, listener, root_path)


def _serving() -> Any:
    try:
        import uvicorn  # noqa: F401

        from ..console import app
    except ImportError as error:
        raise ConfigurationError(str(error)) from None
    return app


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        why = getattr(error, "strerror", None) or "there is no such host"
        raise ConfigurationError(
            f"nothing can listen on {host}:{port}: {why}; --host and --port choose another"
        ) from None


def _shown(host: str) -> str:
    """Return the host for a link; a server on all addresses is reached by localhost."""
    if host in ("0.0.0.0", "::", ""):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def docs(
    session: Session,
    page: Annotated[str | None, typer.Argument(help="As listed; #part: only that part.", show_default=False)] = None,
    search: Annotated[str | None, option("--search", "-s", help="List the parts that have all of these words.")] = None,
) -> None:
    """List the documents that came with this version, print one of them, or search them all."""
    if search is not None:
        _search(session, search, page)
    elif page is None:
        known = documents.pages()
        if session.json:
            write_json([{"page": name, "title": title} for name, title in known.items()])
        else:
            write_table(("page", "title"), list(known.items()))
    else:
        name, _, anchor = page.partition("#")
        name = _one(name)
        text = documents.read(name, anchor)
        if text is None:
            _refuse(f"the page {name} has no part #{anchor}")
        elif session.json:
            write_json({"page": name, "text": text})
        else:
            write_text(text)


def _search(session: Session, words: str, page: str | None) -> None:
    only = None if page is None else _one(page.partition("#")[0])
    found = [(section, line) for section, line in documents.search(words) if only in (None, section.page)]
    if session.json:
        write_json([{"page": section.name, "heading": section.heading, "line": line} for section, line in found])
    elif found:
        write_table(("page", "heading", "line"), [(section.name, section.heading, line) for section, line in found])
    else:
        say(f"no part of the documents has all of these words: {words}")


def _one(name: str) -> str:
    found = documents.find(name)
    if len(found) == 1:
        return found[0]
    known = documents.pages()
    near = found or get_close_matches(name, [*known, *(each.rpartition("/")[2] for each in known)], 3)
    near = sorted({each for one in near for each in documents.find(one)})
    meant = f"; did you mean {' or '.join(near)}?" if near else "; `stepfast docs` lists them"
    _refuse(f"there is no page {name!r}{meant}" if not found else f"there are several pages {name!r}: {listed(found)}")
    raise AssertionError


def _refuse(why: str) -> None:
    complain(why)
    raise typer.Exit(NOT_FOUND)
