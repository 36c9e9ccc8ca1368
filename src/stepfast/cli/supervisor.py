"""The parent of several worker processes: it starts them, passes signals on, and restarts those that die.

The children are in process groups of their own, so that a Ctrl+C at the terminal reaches them once, through the parent,
and not twice, which would mean: do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from typing import Any

from ..settings import Settings
from ..telemetry.health import Listener
from ..telemetry.multiprocess import Children, Wire
from .exit_codes import FAILED, OK, USAGE

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_STEADY = 60.0
"""A child that lived for this many seconds is not in a crash loop: the next pause is the first again."""
_SIGNALS = {signal.SIGTERM: signal.SIGTERM, signal.SIGINT: signal.SIGINT, signal.SIGHUP: signal.SIGTERM}
"""Signals, and what is sent to the children: the hang-up of a terminal reaches only the parent."""

logger = logging.getLogger("stepfast.crew")


class Crew:
    """A number of children that run the same command."""

    def __init__(self, size: int, command: Sequence[str], health: tuple[str, int] | None = None) -> None:
        self._size = size
        self._health = health
        """The host and the port at which the parent reports on all of them."""
        self._family: Children | None = None
        self._command = command
        self._children: set[Process] = set()
        self._received: list[signal.Signals] = []
        self._stop = asyncio.Event()
        self._failed = OK

    async def run(self) -> int:
        """Run until a signal comes; return 0 if every child then stopped without an error."""
        loop = asyncio.get_running_loop()
        for number, passed_on in _SIGNALS.items():
            loop.add_signal_handler(number, self._signalled, passed_on)
        server = await self._listen()
        await asyncio.gather(*(self._keep(number) for number in range(1, self._size + 1)))
        if server is not None:
            server.close()
        return self._failed

    async def _listen(self) -> asyncio.Server | None:
        if self._health is None:
            return None
        self._family = Children(self._size, Settings.from_environment())
        return await Listener(self._family, *self._health).listen()

    def _signalled(self, number: signal.Signals) -> None:
        logger.info("%s: passing it on to %d processes", number.name, len(self._children))
        self._received.append(number)
        self._stop.set()
        for child in self._children:
            _send(child, number)

    async def _keep(self, number: int) -> None:
        """Keep one child running, and restart it, until a signal comes."""
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            began = time.monotonic()
            code = await self._run_child(number)
            if self._stop.is_set():
                self._ended(number, code)
            elif code == USAGE:
                self._give_up(number)
            else:
                pause = _FIRST_PAUSE if time.monotonic() - began > _STEADY else pause
                logger.warning("worker process %d %s; starting another in %g s", number, _how(code), pause)
                await self._rest(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_child(self, number: int) -> int:
        if self._family is None:
            return await self._until_ended(number, await self._spawn())
        wire = Wire(*socket.socketpair())
        process = await self._spawn(**wire.for_child())
        member = await self._family.joined(number, wire)
        try:
            return await self._until_ended(number, process)
        finally:
            await self._family.left(member)

    async def _spawn(self, **options: Any) -> Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.DEVNULL, process_group=0, **options
        )

    async def _until_ended(self, number: int, child: Process) -> int:
        logger.info("worker process %d has pid %d", number, child.pid)
        self._children.add(child)
        for number in self._received:  # they came while it was being made
            _send(child, number)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _ended(self, number: int, code: int) -> None:
        # Killed by the very signal we passed on: it had not begun to work yet.
        if code != OK and -code not in self._received:
            logger.error("worker process %d %s while stopping", number, _how(code))
            self._failed = self._failed or FAILED

    def _give_up(self, number: int) -> None:
        """Stop all: wrong usage is not cured by a restart."""
        logger.error("worker process %d cannot start; stopping all", number)
        self._failed = USAGE
        self._stop.set()
        for child in self._children:
            _send(child, signal.SIGTERM)


def _send(child: Process, number: signal.Signals) -> None:
    try:
        child.send_signal(number)
    except ProcessLookupError:
        pass  # it has just ended


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
