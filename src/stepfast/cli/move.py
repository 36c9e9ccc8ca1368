"""``move``: a namespace to another database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

import typer

from ..app import Stepfast
from ..moving import Counted, Move, Plan, Side
from ..store import open_store
from .command import Bar, DryRunOption, Session, YesOption, consent, option, time_option
from .output import say, write_json, write_table

_LONG = 3600.0
"""Seconds for one question: a table is counted, and read for what does not fit."""


async def move(
    session: Session,
    to: Annotated[str, option("--to", metavar="URL", help="The database to move to.")],
    to_namespace: Annotated[
        str | None, option("--to-namespace", metavar="NAME", help="Its name there, if another.")
    ] = (None),
    wait: Annotated[float, time_option("--wait", help="Wait so long for workers to stop. (0)")] = 0.0,
    back: Annotated[bool, typer.Option("--back", help="Take a move back: open the old namespace again.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --back: without asking the new database.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Move the namespace to another database, or to another name, and refuse all writes in the old place.

    Workers have to be stopped. Everything is copied and compared; an interrupted move is continued by the same command.
    """
    if force and not back:
        raise typer.BadParameter("--force goes with --back")
    app = session.application()
    there = Stepfast(to, to_namespace or app.namespace, auto_migrate=False)
    async with contextlib.AsyncExitStack() as stack:
        source, target = [await stack.enter_async_context(_side(each)) for each in (app, there)]
        if back:
            await _back(source, target, force, dry_run, yes, session.json)
        else:
            await _move(session, source, target, wait, dry_run, yes)


async def _move(session: Session, source: Side, target: Side, wait: float, dry_run: bool, yes: bool) -> None:
    began = time.monotonic()
    with Bar("rows", 0) as bar:
        moving = Move(source, target, lambda what, done: _show(bar, what, done))
        if wait and not source.is_absent:
            await moving.wait_for_workers(wait)
        plan = await moving.plan()
    if dry_run:
        _write_plan(session, source, target, plan)
        return
    verb = "Move" if plan.mark is None else "Continue to move"
    consent(f"{verb} {plan.rows} rows from {source.place} to {target.place}, and refuse writes in the old place?", yes)
    if target.is_absent:
        await target.store.open()
    with Bar("rows", plan.rows) as bar:
        found = await Move(source, target, lambda what, done: _show(bar, what, done)).execute(plan)
    _write_moved(session, source, target, found, time.monotonic() - began)


async def _back(source: Side, target: Side, force: bool, dry_run: bool, yes: bool, json: bool) -> None:
    if dry_run:
        raise typer.BadParameter("--back and --dry-run exclude each other")
    unasked = " What happened in the new place since is given up." if force else ""
    consent(f"Open {source.place} again, and close or drop {target.place}?{unasked}", yes)
    await Move(source, target).back(force)
    if json:
        write_json({"opened": source.place})
    else:
        say(f"{source.place} is open again")


@contextlib.asynccontextmanager
async def _side(app: Stepfast) -> AsyncIterator[Side]:
    settings = app.settings if app.url.kind == "sqlite" else replace(app.settings, command_timeout=_LONG)
    side = Side(app.url, app.namespace, open_store(app.url, app.namespace, settings))
    try:
        if not side.is_absent:
            await side.store.open()
        yield side
    finally:
        await side.store.close()


def _show(bar: Bar, what: str, done: int) -> None:
    bar.rename(what)
    bar.at(done)


def _write_plan(session: Session, source: Side, target: Side, plan: Plan) -> None:
    if session.json:
        tables = [{"table": name, "rows": size.rows} for name, size in plan.sizes.items()]
        write_json({"from": source.place, "to": target.place, "rows": plan.rows, "tables": tables})
        return
    write_table(("table", "rows"), [(name, str(size.rows)) for name, size in plan.sizes.items() if size.rows])
    say(f"{plan.rows} rows would be moved from {source.place} to {target.place}")


def _write_moved(session: Session, source: Side, target: Side, found: dict[str, Counted], seconds: float) -> None:
    rows = sum(each.rows for each in found.values())
    if session.json:
        tables = [{"table": name, "rows": each.rows, "digest": each.digest} for name, each in found.items()]
        moved = {"from": source.place, "to": target.place, "rows": rows, "seconds": round(seconds, 3)}
        write_json(moved | {"tables": tables})
        return
    shown = [(name, str(each.rows), each.digest) for name, each in found.items() if each.rows]
    write_table(("table", "rows", "digest of both"), shown)
    say(f"moved {rows} rows to {target.place}; writes into {source.place} are refused from now on")
