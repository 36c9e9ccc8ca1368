"""A ledger outside the database: one line per act, appended in one write, which no SIGKILL and no rollback takes back.

An act is one call of a step's function, or of a task. It makes up a value that nobody else makes up and
returns it, so that a recorded outcome can be traced to the very act that produced it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from holdfast.engine.scope import current_call, current_execution
from tests.faults.evidence import TASK, Act, Start

ACTS, STARTS = "acts", "starts"


def now() -> int:
    """Microseconds since 1970. The databases run on this machine, so their clock is the same."""
    return time.time_ns() // 1000


class Ledger:
    """A folder of files that are only ever appended to, by any number of processes."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._files: dict[str, int] = {}

    def append(self, name: str, entry: dict[str, Any]) -> None:
        """One line in one system call: there, or not."""
        if name not in self._files:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._files[name] = os.open(self.folder / name, flags, 0o644)
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        assert os.write(self._files[name], line) == len(line)

    def read(self, name: str) -> list[dict[str, Any]]:
        """Every whole line."""
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    # -- acts and starts -------------------------------------------------------------------------------------------

    def act(self, does: str, needs: int = 0) -> str:
        """Write down that the step (or task) which runs here acts now; the value it is to return."""
        execution, call = current_execution.get(), current_call.get()
        assert execution is not None
        nonce = secrets.token_hex(8)
        self.append(
            ACTS,
            {
                "at": now(),
                "run": execution.run_id,
                "workflow": execution.workflow.name,
                "position": TASK if call is None else call.position,
                "name": execution.workflow.name if call is None else call.name,
                "claim": execution.claim,
                "attempt": execution.claimed.attempt,
                "pid": os.getpid(),
                "nonce": nonce,
                "does": does,
                "needs": needs,
            },
        )
        return nonce

    def acts(self) -> list[Act]:
        return [Act(**line) for line in self.read(ACTS)]

    def started(self, run_id: str, workflow: str, key: str | None) -> None:
        """A start has returned: from here on the run must not be lost."""
        self.append(STARTS, {"at": now(), "run": run_id, "workflow": workflow, "key": key})

    def starts(self) -> list[Start]:
        return [Start(**line) for line in self.read(STARTS)]
