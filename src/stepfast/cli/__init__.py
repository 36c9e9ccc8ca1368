"""The command line: one file per group of verbs, and here the list of them all.

Data goes to stdout, everything said about it to stderr. The exit codes are in ``exits.py``.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from . import (
    asking,
    auditing,
    checking,
    documents,
    exporting,
    graphs,
    health,
    pruning,
    reading,
    remote_working,
    retrying,
    serving,
    starting,
    statistics,
    tables,
    top,
    working,
)
from . import queues as of_queues
from . import schedules as of_schedules
from .exits import EXPLAINED, writing_to
from .session import AppOption, JsonOption, NamespaceOption, Session, UrlOption
from .verbs import add_verb

__all__ = ["cli", "main"]

cli = typer.Typer(
    name="stepfast",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show the values of local variables, and one of them would be the password.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_verb(cli, tables.migrate)
add_verb(cli, tables.reset, without={"json"})
add_verb(cli, working.worker, without={"app", "json"})
add_verb(cli, remote_working.remote_worker, without={"app", "json", "namespace"})
add_verb(cli, starting.start)
add_verb(cli, starting.result)
add_verb(cli, reading.runs)
add_verb(cli, reading.show)
add_verb(cli, asking.signal)
add_verb(cli, asking.cancel)
add_verb(cli, asking.pause)
add_verb(cli, asking.resume)
add_verb(cli, asking.reschedule)
add_verb(cli, retrying.retry)
add_verb(cli, pruning.delete)
add_verb(cli, pruning.prune)
add_verb(cli, checking.check, without={"app"})
add_verb(cli, exporting.export)
add_verb(cli, exporting.replay)
add_verb(cli, graphs.graph, without={"app"})
add_verb(cli, health.workers)
add_verb(cli, of_queues.queues)
add_verb(cli, statistics.stats)
add_verb(cli, top.top)
add_verb(cli, of_schedules.schedules)
add_verb(cli, health.doctor)
add_verb(cli, auditing.audit)
add_verb(cli, serving.console, without={"app", "json"})
add_verb(cli, documents.docs, without={"url", "namespace", "app"})

queue = typer.Typer(name="queue", no_args_is_help=True, help="Hold one queue, limit it, or empty it.")
add_verb(queue, of_queues.pause)
add_verb(queue, of_queues.resume)
add_verb(queue, of_queues.limits)
add_verb(queue, of_queues.purge)
cli.add_typer(queue)

schedule = typer.Typer(name="schedule", no_args_is_help=True, help="Make, hold, trigger or backfill one schedule.")
add_verb(schedule, of_schedules.put)
add_verb(schedule, of_schedules.delete)
add_verb(schedule, of_schedules.pause)
add_verb(schedule, of_schedules.resume)
add_verb(schedule, of_schedules.trigger)
add_verb(schedule, of_schedules.backfill)
cli.add_typer(schedule)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepfast {__version__}")
        raise typer.Exit


@cli.callback(epilog=EXPLAINED)
def stepfast(
    context: typer.Context,
    url: UrlOption = None,
    namespace: NamespaceOption = None,
    app: AppOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable execution for Python, in the database you already run."""
    context.obj = Session(url, namespace, app, json)


def main() -> None:
    """The command line, when the packages it needs are there; called by ``__main__``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this, as by ``2>&-``
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    with writing_to(sys.stdout):
        cli(prog_name="stepfast")
