"""Worker processes that tests start, stop, freeze and kill, and the files through which they talk.

A process is ready when it is registered as a worker: it says so through a pipe. What its handlers do is written to a
ledger, a file that every process appends to; a line is there or it is not, whatever became of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any, Self

from tests.support.engine import PATIENCE, eventually
from tests.support.nursery import Child, nursery


class Ledger:
    """A folder with one file of lines, and files that are gates: a handler waits at a gate until the file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "ledger"

    def write(self, *words: object) -> None:
        """Append a line in one call, which the kernel does not mix with those of other processes."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(descriptor)

    def lines(self, beginning: str = "") -> list[str]:
        """Every line that begins so, oldest first."""
        if not self._file.exists():
            return []
        return [line for line in self._file.read_text().splitlines() if line.startswith(beginning)]

    async def seen(self, beginning: str, times: int = 1, timeout: float = PATIENCE) -> list[str]:
        """Wait until there are so many lines."""
        await eventually(lambda: len(self.lines(beginning)) >= times, timeout)
        return self.lines(beginning)

    def open(self, gate: str) -> None:
        """Let everybody through."""
        (self.folder / f"gate-{gate}").touch()

    def is_open(self, gate: str) -> bool:
        return (self.folder / f"gate-{gate}").exists()

    async def passing(self, gate: str) -> None:
        """For handlers."""
        while not self.is_open(gate):
            await asyncio.sleep(0.005)

    def passing_blocked(self, gate: str) -> None:
        """For handlers that block."""
        while not self.is_open(gate):
            time.sleep(0.005)


class WorkerProcess:
    """``python -m tests.support.worker_program`` with a worker in it. Killed, if need be, when the block ends."""

    def __init__(self, url: str, ledger: Ledger, *, settings: dict[str, Any] | None = None, **work: Any) -> None:
        self._arguments = {"url": url, "ledger": str(ledger.folder), "settings": settings or {}, "work": work}
        self._log = ledger.folder / f"log-{time.monotonic_ns()}"
        self._process: Child | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    def launch(self) -> Self:
        """Start the process; ``ready`` waits for it."""
        readable, writable = os.pipe()
        command = ["-m", "tests.support.worker_program", "3", json.dumps(self._arguments)]
        with self._log.open("wb") as log, open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), log.fileno(), log.fileno(), writable]
            self._process = nursery().start(command, files)
        os.close(writable)
        self._ready = open(readable, "rb", buffering=0)  # noqa: SIM115 - closed when it is ready, or with this object
        return self

    async def ready(self) -> Self:
        """Wait until the worker is registered."""
        with self._ready:
            text = await asyncio.to_thread(_read_all, self._ready.fileno(), PATIENCE)
        assert text == b"ready", f"the worker process did not come up:\n{self.log}"
        return self

    async def __aenter__(self) -> Self:
        self.launch()
        try:
            return await self.ready()
        except BaseException:
            self.kill()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    # -- what is done to it ----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "the process was not launched"
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait for its end. Harmless if it has ended."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._ready.close()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it in its tracks, heartbeat and all."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; the exit code."""
        process = self._process
        assert process is not None
        await eventually(lambda: process.poll() is not None, timeout)
        self._ready.close()
        return process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it wrote, for a diagnosis."""
        return self._log.read_text(errors="replace")


def _read_all(descriptor: int, timeout: float) -> bytes:
    """Everything up to the end of the pipe, or to the timeout."""
    text, deadline = b"", time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            part = os.read(descriptor, 100)
            text += part
            if not part:
                return text
    return text
