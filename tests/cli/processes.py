"""Real processes of the command line, with their log read line by line: tests wait for what is said there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.nursery import nursery

PATIENCE = 60.0


class Spoken:
    """A process whose stderr is collected."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        """`python` with these arguments."""
        said, out = os.pipe()
        told, err = os.pipe()
        self._stdout, self._stderr = open(said), open(told)  # noqa: SIM115 - closed by kill
        with open(os.devnull, "rb") as nothing, open(out, "wb"), open(err, "wb"):
            self._process = nursery().start(arguments, [nothing.fileno(), out, err], folder=folder, new_session=True)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        for line in self._stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.lines.append("(end of the log)")
            self._news.notify_all()

    def hear(self, text: str, times: int = 1) -> list[str]:
        """Wait until so many lines have said it; those lines."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while len(found := [line for line in self.lines if text in line]) < times:
                ended = self.lines and self.lines[-1] == "(end of the log)"
                if ended or not self._news.wait(deadline - time.monotonic()):
                    raise AssertionError(f"{text!r} was not said {times} times in:\n" + "\n".join(self.lines))
            return found

    def messages(self, text: str, times: int = 1) -> list[dict[str, Any]]:
        """The same of a log in JSON."""
        return [json.loads(line) for line in self.hear(text, times)]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """As a terminal does at Ctrl+C."""
        os.killpg(self.pid, number)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @property
    def stdout(self) -> str:
        return self._stdout.read()

    def next_line(self) -> str:
        """Wait for the next line on stdout."""
        return self._stdout.readline().rstrip("\n")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(5)
        self._stdout.close()
        self._stderr.close()


class Processes:
    """Starts processes in one folder, and ends them with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Spoken] = []

    def __call__(self, *arguments: str) -> Spoken:
        process = Spoken(["-m", "stepfast", *arguments], self._folder)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
