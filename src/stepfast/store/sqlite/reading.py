"""Rows as the engine reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.records import RunRow, WorkerInfo
from ...model.tags import read_tags

AT_REST = frozenset({"waiting", "paused", "failed", "cancelled", "compensating", "compensated"})
"""The statuses that the index of the same name holds; the SQL repeats them, as a partial index demands."""


def page_statement(tag: str | None, status: str | None, workflow: str | None) -> str:
    """The statement that starts from the narrowest index the filters allow."""
    if tag is not None:
        return "runs_tagged"
    if status in AT_REST:
        return "runs_at_rest"
    return "runs" if workflow is None else "runs_of_workflow"


def run_row(row: Any) -> RunRow:
    """The columns come in the order of the fields."""
    run = RunRow(*row)
    run.tags = read_tags(None if run.tags is None else str(run.tags))
    run.ready, run.undoing, run.large_output = bool(run.ready), bool(run.undoing), bool(run.large_output)
    return run


def worker_info(row: Any) -> WorkerInfo:
    """The columns come in the order of the fields."""
    worker = WorkerInfo(*row)
    worker.queues = None if row[3] is None else msgspec.json.decode(row[3])
    worker.workflows = msgspec.json.decode(row[4])
    worker.modules = msgspec.json.decode(str(worker.modules))
    return worker
