"""``manage.py stepfast_worker``: execute tasks until SIGTERM or Ctrl+C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from stepfast import StepfastError
from stepfast.django.applications import backend_named
from stepfast.django.checks import refuse_unusable
from stepfast.django.interface import DEFAULT_TASK_BACKEND_ALIAS

_GRACE = 5.0
"""Seconds that tasks have to end before the code is loaded again."""


class Command(BaseCommand):
    """Execute tasks."""

    help = "Execute tasks of a Stepfast backend until SIGTERM or Ctrl+C. A second signal does not wait for them."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take the options of a worker."""
        parser.add_argument("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS.")
        parser.add_argument("--queues", help="Only these queues: a,b. By default those of the backend's QUEUES.")
        parser.add_argument("--concurrency", type=int, help="How many tasks at once (100).")
        parser.add_argument("--lease", type=float, help="Seconds after which a silent worker is taken for dead (30).")
        parser.add_argument("--poll-interval", type=float, help="Seconds between two looks for work (1).")
        parser.add_argument("--shutdown-grace", type=float, help="Seconds that tasks have to end when it stops (30).")
        parser.add_argument("--drain", action="store_true", help="Stop when no task is due.")
        parser.add_argument(
            "--reload",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="Load changed code again, as runserver does; by default with DEBUG.",
        )

    def handle(self, **options: Any) -> None:
        """Work."""
        backend = backend_named(options["backend"])
        if backend.eager:
            raise CommandError("this backend is eager: tasks are executed where they are enqueued")
        refuse_unusable(backend)
        reload = settings.DEBUG if options["reload"] is None else options["reload"]
        work = _Work(self, backend, options)
        try:
            if reload and not options["drain"]:
                work.reloaded()
            else:
                work.until_signal()
        except StepfastError as error:
            raise CommandError(str(error)) from error


class _Work:
    def __init__(self, command: Command, backend: Any, options: dict[str, Any]) -> None:
        self._command = command
        self._backend = backend
        given = options["queues"]
        queues = given.split(",") if given else sorted(backend.queues)
        self._queues = [queue.strip() for queue in queues] or None
        names = ("concurrency", "lease", "poll_interval", "shutdown_grace")
        self._options = {name: options[name] for name in names if options[name] is not None}
        self._drain = options["drain"]

    def _begin(self) -> Any:
        app = self._backend.declare_all()
        queues = "all queues" if self._queues is None else f"queues {', '.join(self._queues)}"
        self._command.stdout.write(f"Stepfast worker: {len(app.workflows)} tasks and workflows, {queues}")
        return app

    def until_signal(self) -> None:
        """Work in this thread."""
        app = self._begin()

        async def work() -> None:
            try:
                if self._drain:
                    await app.drain(self._queues, self._options.get("concurrency"))
                else:
                    await app.work(self._queues, **self._options)
            finally:
                await app.close()

        asyncio.run(work())

    def reloaded(self) -> None:
        """Work in a thread, beside Django's reloader, which begins a new process when a file has changed."""
        stop, stopped = threading.Event(), threading.Event()

        def work() -> None:
            try:
                with self._begin().sync.worker(self._queues, **{"shutdown_grace": _GRACE, **self._options}):
                    stop.wait()
            finally:
                stopped.set()

        try:
            autoreload.run_with_reloader(work)
        finally:
            if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
                stop.set()
                with contextlib.suppress(KeyboardInterrupt):
                    stopped.wait(_GRACE + 5)
