"""The table of runs: what tells them apart, and what went wrong with those that failed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from rich.cells import cell_len

from ..model import status
from ..monitoring.text import ago, brief, lasting, printable, status_of
from ..monitoring.unreadable import is_sealed
from ..reports import RunInfo
from .output import write_table

_COLUMNS = ("id", "workflow", "queue", "status", "attempt", "created", "took", "key", "tags", "input", "error")
_INPUT = 9
_GAP = 2
"""Blanks between two columns of a table."""
_NARROWEST, _WIDEST = 12, 60
"""Characters of an input that say something; and that are enough to tell two runs apart."""
_ERROR = 200
_LEAST_ERROR = 40


def write_runs(runs: Sequence[RunInfo]) -> None:
    """The table. Inputs are shown of runs without a key, as far as there is room for them."""
    rows = [_row(run) for run in runs]
    width = _room(rows)
    if width >= _NARROWEST:
        for row, run in zip(rows, runs, strict=True):
            row[_INPUT] = _input(run, width)
    write_table(_COLUMNS, rows)


def took(run: RunInfo) -> str:
    """How long it has been at it, waits included."""
    if run.started_at is None:
        return ""
    return lasting(((run.completed_at or run.read_at) - run.started_at).total_seconds())


def _row(run: RunInfo) -> list[str]:
    queue = "" if run.queue == run.workflow else run.queue
    attempt = "" if run.attempt == 0 else str(run.attempt)
    created = ago(run.created_at, run.read_at)
    return [
        run.id, run.workflow, queue, status_of(run), attempt, created, took(run), run.key or "", ", ".join(run.tags),
        "", _error(run),
    ]  # fmt: skip


def _error(run: RunInfo) -> str:
    """The error of a run that has ended by it; one that is to be tried again has an error too, but is not in trouble
    yet."""
    if run.error is None or run.status not in (status.FAILED, status.COMPENSATED, status.COMPENSATING):
        return ""
    return _cut(f"{run.error.type}: {run.error.message}", _ERROR)


def _input(run: RunInfo, width: int) -> str:
    if run.key is not None or is_sealed(run.input):
        return ""
    if run.input is None:
        return "(large)" if "input" in run.left_out else ""
    return _cut(brief(run.input), width)


def _cut(text: str, longest: int) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _room(rows: Sequence[Sequence[str]]) -> int:
    """Characters left for the inputs beside the other columns. The last column, which is folded, is left some too."""
    if not sys.stdout.isatty():
        return _WIDEST
    taken = 0
    for number, column in enumerate(_COLUMNS):
        cells = [row[number] for row in rows if row[number]]
        if cells and number != _INPUT:
            widest = max(cell_len(printable(text)) for text in (column, *cells))
            taken += (min(widest, _LEAST_ERROR) if column == "error" else widest) + _GAP
    return min(_WIDEST, shutil.get_terminal_size().columns - taken)
