"""``manage.py stepfast_console``: serve the web console of a backend."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from stepfast import StepfastError
from stepfast.django.applications import backend_named
from stepfast.django.checks import refuse_unusable
from stepfast.django.interface import DEFAULT_TASK_BACKEND_ALIAS


class Command(BaseCommand):
    """Serve the console."""

    help = "Serve the web console: runs, steps, queues, workers, and the operators' actions."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take where it listens, and to whom."""
        parser.add_argument("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS.")
        parser.add_argument("--host", default="127.0.0.1", help="Where it listens.")
        parser.add_argument("--port", type=int, default=8710, help="0: any that is free.")
        parser.add_argument("--read-only", action="store_true", help="Refuse every action.")
        parser.add_argument("--allow-host", action="append", default=[], help="Also answer to this name.")
        parser.add_argument("--root-path", default="", help="The prefix that a proxy puts before it.")

    def handle(self, **options: Any) -> None:
        """Serve until Ctrl+C."""
        try:
            import uvicorn  # noqa: F401

            from stepfast.console import app
        except ImportError as error:
            raise CommandError(f"the console needs more packages: pip install 'stepfast[console]' ({error})") from error
        console: Any = app
        token = os.environ.get(console.TOKEN, "").strip() or None
        if token is None and not console.is_loopback(options["host"]):
            raise CommandError(
                f"{options['host']} can be reached from outside this machine: set {console.TOKEN} to a secret first"
            )
        backend = backend_named(options["backend"])
        refuse_unusable(backend)
        stepfast, made = backend.declare_all(), None if token else secrets.token_urlsafe(32)
        try:
            listener = socket.create_server((options["host"], options["port"]))
        except OSError as error:
            raise CommandError(
                f"nothing can listen on {options['host']}:{options['port']}: {error.strerror}; --port chooses another"
            ) from error
        with listener:
            link = f"http://{options['host']}:{listener.getsockname()[1]}{console.prefix_of(options['root_path'])}/"
            self.stdout.write(f"Stepfast console: {link}" + (f"?token={made}" if made else ""))
            self.stdout.flush()

            async def serve() -> None:
                async with stepfast:
                    served = console.standing_alone(
                        stepfast,
                        token=token or made,
                        host=options["host"],
                        read_only=options["read_only"],
                        allowed=options["allow_host"],
                    )
                    await console.serve(served, listener, options["root_path"])

            try:
                asyncio.run(serve())
            except StepfastError as error:
                raise CommandError(str(error)) from error
