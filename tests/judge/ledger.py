"""A ledger outside the database: one line per act, appended in one write, which no SIGKILL and no rollback takes back.

An act is one call of a step's function, or of a task. It makes up a value that nobody else makes up and
returns it, so that a recorded outcome can be traced to the very act that produced it. Beside acts it holds what callers
were told: starts, signals and operators' wishes, written down before they set out and when they had their answer.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from stepfast.engine.context_base import ContextBase
from stepfast.engine.host import current_call, current_execution
from tests.judge.evidence import TASK, UNDO, Act, Place, Signal, Start, Wish
from tests.support.false_time import OFF_BY

ACTS, STARTS, UNWANTED, SIGNALS, ANSWERS, WISHES = "acts", "starts", "unwanted", "signals", "answers", "wishes"


_OFF_BY = int(os.environ.get(OFF_BY, "0")) * 10**6
"""By how much the clock of this process is wrong on purpose."""


def now() -> int:
    """Microseconds since 1970. The databases run on this machine, so their clock is the same."""
    return time.time_ns() // 1000 - _OFF_BY


class Ledger:
    """A folder of files that are only ever appended to, by any number of processes."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._files: dict[str, int] = {}

    def append(self, name: str, entry: dict[str, Any]) -> None:
        """One line in one system call: there, or not; or torn, if SIGKILL comes while it crosses from page to page."""
        if name not in self._files:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._files[name] = os.open(self.folder / name, flags, 0o644)
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        assert os.write(self._files[name], line) == len(line)

    def read(self, name: str) -> list[dict[str, Any]]:
        """Every whole line."""
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [_entry(line) for line in text.split("\n")[:-1]]

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    # -- acts and starts -------------------------------------------------------------------------------------------

    def act(self, does: str, needs: int = 0, undoes: str | None = None) -> str:
        """Write down that the step (or task) which runs here acts now; the value it is to return."""
        execution, call = current_execution.get(), current_call.get()
        assert execution is not None
        place = ("", TASK) if call is None else (call.branch, call.position)
        return self._act(execution, place, execution.workflow.name if call is None else call.name, does, needs, undoes)

    def act_at(self, ctx: ContextBase, place: Place, name: str, does: str, needs: int = 0) -> str:
        """The same for a function that is called in a thread which knows nothing of the run."""
        return self._act(ctx._execution, place, name, does, needs, None)

    def _act(self, execution: Any, place: Place, name: str, does: str, needs: int, undoes: str | None) -> str:
        assert (place[0] == UNDO) == (undoes is not None), f"{name} at {place} undoes {undoes}"
        nonce = secrets.token_hex(8)
        self.append(
            ACTS,
            {"at": now(), "run": execution.run_id, "workflow": execution.workflow.name, "position": place[1],
             "name": name, "claim": execution.claim, "attempt": execution.claimed.attempt, "pid": os.getpid(),
             "nonce": nonce, "does": does, "needs": needs, "branch": place[0], "undoes": undoes},
        )  # fmt: skip
        return nonce

    def acts(self) -> list[Act]:
        return [Act(**line) for line in self.read(ACTS)]

    def started(self, run_id: str, workflow: str, key: str | None) -> None:
        """A start has returned: from here on the run must not be lost."""
        self.append(STARTS, {"at": now(), "run": run_id, "workflow": workflow, "key": key})

    def starts(self) -> list[Start]:
        return [Start(**line) for line in self.read(STARTS)]

    def unwanted(self, run_id: str) -> None:
        """A start was rolled back: the run must never be seen."""
        self.append(UNWANTED, {"run": run_id})

    def all_unwanted(self) -> list[str]:
        return [line["run"] for line in self.read(UNWANTED)]

    # -- signals and wishes ----------------------------------------------------------------------------------------

    def signal(self, run_id: str, name: str, sender: str, number: int) -> str:
        """A signal is about to be sent; the value it carries."""
        nonce = f"{sender} {number} {secrets.token_hex(4)}"
        entry = {"at": now(), "run": run_id, "name": name, "sender": sender, "number": number, "nonce": nonce}
        self.append(SIGNALS, entry)
        return nonce

    def sends(self, run_id: str, name: str, nonce: str) -> None:
        """A run is about to send a signal with this value, perhaps not for the first time: it is sent once."""
        entry = {"at": now(), "run": run_id, "name": name, "sender": nonce, "number": 0, "nonce": nonce}
        self.append(SIGNALS, entry)

    def signalled(self, nonce: str) -> None:
        """The call has returned: from here on the signal must not be lost."""
        self.append(ANSWERS, {"at": now(), "nonce": nonce})

    def signals(self) -> list[Signal]:
        """Each by its first line and its first answer: a run that signals itself comes to its call at every replay."""
        answers: dict[str, int] = {}
        for line in self.read(ANSWERS):
            answers.setdefault(line["nonce"], line["at"])
        sent: dict[str, Signal] = {}
        for line in self.read(SIGNALS):
            sent.setdefault(line["nonce"], Signal(**line, acknowledged=answers.get(line["nonce"])))
        return list(sent.values())

    def wish(self, run_id: str, what: str, granted: bool | None, at: int) -> None:
        """What an operator asked for (at a time), and what he was told."""
        self.append(WISHES, {"at": at, "run": run_id, "what": what, "granted": granted, "answered": now()})

    def wishes(self) -> list[Wish]:
        return [Wish(**line) for line in self.read(WISHES)]


def _entry(line: str) -> dict[str, Any]:
    """What a line says. The beginning of one that was torn by SIGKILL stands in front of the next one, and is left out:
    whoever wrote it has done no more."""
    begin = 0
    while True:
        try:
            entry: dict[str, Any] = json.loads(line[begin:])
            return entry
        except json.JSONDecodeError:
            begin = line.find('{"', begin + 1)
            if begin < 0:
                raise
