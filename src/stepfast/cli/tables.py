"""``migrate`` and ``reset``: making the tables, and dropping them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..app import Stepfast
from ..errors import InvalidState
from ..model.records import WorkerInfo
from ..model.urls import redact
from ..monitoring.text import count, lasting, listed, live_workers, worker_name
from ..store import Store, open_store
from ..store.migrations import refuse_too_new
from ..store.store import SchemaState
from .exits import FAILED
from .options import option
from .output import say, write_json
from .remote_working import make_transport_tables
from .session import Session, absent_file


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
    refuse_too_new(state)
    live = live_workers(await store.workers())
    if live:
        raise InvalidState(
            f"{count(len(live), 'worker')} still live: {listed([_with_age(w) for w in live])}. Stop them first "
            "(one that crashed is gone after its lease), or use --force"
        )


def _with_age(worker: WorkerInfo) -> str:
    return f"{worker_name(worker)}, heard of {lasting(worker.age_ms / 1000)} ago"
