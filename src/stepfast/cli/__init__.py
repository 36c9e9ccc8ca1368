"""The command line: one module per group of commands, and here the list of all commands.

Data goes to stdout, everything said about it to stderr. The exit codes are in ``exit_codes.py``.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from . import admin, check, events, graph, move, project, run_commands, show, start, top, worker
from . import queues as of_queues
from . import schedules as of_schedules
from .command import AppOption, JsonOption, NamespaceOption, Session, UrlOption, add_verb
from .exit_codes import EXPLAINED, writing_to

__all__ = ["cli", "main"]

cli = typer.Typer(
    name="stepfast",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show the values of local variables, and one of them would be the password.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_verb(cli, admin.migrate)
add_verb(cli, admin.reset, without={"json"})
add_verb(cli, move.move)
add_verb(cli, worker.worker, without={"app", "json"})
add_verb(cli, worker.remote_worker, without={"app", "json", "namespace"})
add_verb(cli, start.start)
add_verb(cli, start.result)
add_verb(cli, show.runs)
add_verb(cli, show.show)
add_verb(cli, show.stream)
add_verb(cli, show.logs)
add_verb(cli, show.watch)
add_verb(cli, run_commands.signal)
add_verb(cli, run_commands.ask)
add_verb(cli, run_commands.complete)
add_verb(cli, run_commands.fail)
add_verb(cli, run_commands.beat)
add_verb(cli, events.publish)
add_verb(cli, events.events)
add_verb(cli, run_commands.cancel)
add_verb(cli, run_commands.pause)
add_verb(cli, run_commands.resume)
add_verb(cli, run_commands.reschedule)
add_verb(cli, run_commands.retry)
add_verb(cli, run_commands.fork)
add_verb(cli, run_commands.rewind)
add_verb(cli, run_commands.delete)
add_verb(cli, run_commands.prune)
add_verb(cli, check.check, without={"app"})
add_verb(cli, check.export)
add_verb(cli, check.replay)
add_verb(cli, graph.graph, without={"app"})
add_verb(cli, admin.workers)
add_verb(cli, of_queues.queues)
add_verb(cli, admin.stats)
add_verb(cli, top.top)
add_verb(cli, of_schedules.schedules)
add_verb(cli, admin.doctor)
add_verb(cli, admin.audit)
add_verb(cli, admin.console, without={"app", "json"})
add_verb(cli, admin.docs, without={"url", "namespace", "app"})
add_verb(cli, project.init, without={"url", "namespace", "app"})
add_verb(cli, project.skill, without={"url", "namespace", "app"})

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
        if getattr(sys, name) is None:  # closed by the parent process, as by ``2>&-``
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    with writing_to(sys.stdout):
        cli(prog_name="stepfast")
