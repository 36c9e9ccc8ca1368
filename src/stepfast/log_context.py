"""Ids for logs: which run, step and trace a line belongs to. A module of its own, because applications import it.

Both a filter for Python's own logging and a processor for structlog read them where the line is written, inside a
handler or the function of a step. Outside of runs they add nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

from .engine.host import current_call, current_execution

NAMES: Final = ("run_id", "workflow", "attempt", "worker", "step", "trace_id", "span_id")
"""What may be added."""


def run_ids() -> dict[str, Any]:
    """The ids that belong to the code which asks: those of its run, of its step, and of the span that is current."""
    ids: dict[str, Any] = {}
    execution = current_execution.get()
    if execution is not None:
        ids = {"run_id": execution.run_id, "workflow": execution.workflow.name, "attempt": execution.claimed.attempt}
        if execution.claimed.worker:
            ids["worker"] = execution.claimed.worker
        call = current_call.get()
        if call is not None:
            ids["step"] = call.name
    return ids | _trace_ids()


class RunFilter(logging.Filter):
    """Adds ``run_id``, ``workflow``, ``attempt``, ``worker`` and ``step`` to records, and ``trace_id`` and ``span_id``
    where there is a span of OpenTelemetry. Put it on a handler: ``handler.addFilter(RunFilter())``. A logger's own
    filters do not see the records of its children.

    ``missing`` replaces what a record does not have, so that a format may name it: ``RunFilter(missing="-")``.
    """

    def __init__(self, *, missing: str | None = None) -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what there is, and keep the record. What it has already stays."""
        ids = run_ids()
        if hasattr(record, "run_id"):  # what Stepfast itself says of a run says which, wherever it is said
            ids = {name: value for name, value in ids.items() if name in ("trace_id", "span_id")}
        for name, value in ids.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        if self._missing is not None:
            for name in NAMES:
                if not hasattr(record, name):
                    setattr(record, name, self._missing)
        return True


def add_run_ids(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog: the same ids, where the line does not have them. Put it behind
    ``structlog.contextvars.merge_contextvars``."""
    for name, value in run_ids().items():
        event.setdefault(name, value)
    return event


def _trace_ids() -> dict[str, str]:
    """The ids of the current span, if the program has OpenTelemetry: it is not imported for this."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}
