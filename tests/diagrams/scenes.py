"""Runs to be drawn, made of a few words: no database is needed to have one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from stepfast.info import Activity, ErrorInfo, RunInfo, StepInfo

BEGIN = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
RUN_ID = "019cb0a1-0000-7000-8000-000000000001"


def at(seconds: float) -> datetime:
    """So many seconds after the run was created."""
    return BEGIN + timedelta(seconds=seconds)


def a_run(until: float = 10.0, *, ended: bool = True, status: str = "completed", **fields: Any) -> RunInfo:
    """A run that began at once and ended, or was read, after so many seconds."""
    given: dict[str, Any] = {
        "id": RUN_ID, "workflow": "checkout", "version": "1", "queue": "checkout", "status": status, "reason": None,
        "waiting_for": None, "input": None, "output": None, "error": None, "attempt": 1, "max_attempts": None,
        "losses": 0, "priority": 0, "key": None, "tags": [], "parent": None, "created_at": at(0), "started_at": at(0),
        "completed_at": at(until) if ended else None, "deadline": None, "due_at": None, "expires_at": None,
        "worker": None, "ready": False, "asked": None, "origin": None, "read_at": at(until),
    }  # fmt: skip
    return RunInfo(**given | fields)


def a_step(name: str, start: float | None, end: float | None, status: str = "completed", **fields: Any) -> StepInfo:
    """A step from when to when."""
    given: dict[str, Any] = {
        "name": name, "branch": "", "position": 0, "status": status, "detail": None, "data": None, "output": None,
        "error": None, "attempts": 1, "started_at": None if start is None else at(start),
        "completed_at": None if end is None else at(end),
    }  # fmt: skip
    return StepInfo(**given | fields)


def numbered(steps: Sequence[StepInfo]) -> list[StepInfo]:
    """Steps one after the other in the main branch."""
    from dataclasses import replace

    return [replace(step, position=number, number=number + 1) for number, step in enumerate(steps)]


def a_failure(name: str, start: float, end: float, attempt: int = 1, **fields: Any) -> Activity:
    """A try that failed, from when to when."""
    given: dict[str, Any] = {
        "name": name, "branch": "", "position": 0, "attempt": attempt, "status": "failed", "parameters": None,
        "result": None, "error": an_error(), "started_at": at(start), "duration": timedelta(seconds=end - start),
    }  # fmt: skip
    return Activity(**given | fields)


def an_error(type_: str = "ConnectionError", message: str = "nobody answers") -> ErrorInfo:
    return ErrorInfo(type_, message)
