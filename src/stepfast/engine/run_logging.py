"""What is logged when a step, an attempt or a run fails: which one, why, and where in the user's code.

A failure has one traceback in the log, that of the run that failed for good, and in it the user's code alone. What is
tried again, and a step whose failure the code may yet catch, is logged with the line that raised. All tracebacks are
stored, whole, with the run.

Messages and tracebacks are the user's own words, and may hold what is not for a log: the setting ``log_errors`` leaves
them out, and only the class is told. Payloads are never logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import StepFailed, sentence
from ..model.tracebacks import own_code_only, own_frames
from .failure import ending_record, type_name
from .matching import UNDO

if TYPE_CHECKING:
    from .durable_call import DurableCall
    from .execution import Execution


_MOST_FRAMES = 8
"""Of a traceback in the log."""
_MOST_LINES = 24
"""Of the stored traceback of a step or a child, in that of the run."""
_NAMED = 5
"""Of how many runs or steps that share a fate each has a record of its own."""
_IDS = ("run_id", "workflow", "attempt", "step")


def ids_of(execution: Execution, step: str | None = None) -> dict[str, Any]:
    """The ids that every record of the log about a run carries, as ``extra``."""
    ids = {"run_id": execution.run_id, "workflow": execution.workflow.name, "attempt": execution.claimed.attempt}
    if execution.claimed.worker:
        ids["worker"] = execution.claimed.worker
    return ids if step is None else {**ids, "step": step}


def ids_of_event(event: object) -> dict[str, Any]:
    """The ids of the run that an event is about, as far as the event has them."""
    return {name: value for name in _IDS if (value := getattr(event, name, None)) is not None}


def tell_each(logger: logging.Logger, told: str, each: Sequence[Mapping[str, str]]) -> None:
    """Warn of what became of runs, or of remote steps, which are given by their ids: the first few by a record each, so
    that they are found by their ids, and of the others only how many there are."""
    kind = "step" if each and "step_id" in each[0] else "run"
    one, more = f"{kind} %s: {told}", f"%d more {kind}s: {told}"
    for ids in each[:_NAMED]:
        logger.warning(one, ids[f"{kind}_id"], extra=ids)
    if len(each) > _NAMED:
        logger.warning(more, len(each) - _NAMED)


class OfRun:
    """A value of a run, as the messages about it name it. If it is large, the log is told with the ids of the run."""

    __slots__ = ("_execution", "_name", "_what")

    def __init__(self, execution: Execution, what: str, name: str) -> None:
        self._execution = execution
        self._what = what
        self._name = name

    def __str__(self) -> str:
        return f"{self._what} {self._name!r}"

    @property
    def ids(self) -> dict[str, Any]:
        """The ids of its run."""
        return ids_of(self._execution)


def tell_try(call: DurableCall[Any], error: BaseException, number: int, delay: float | None) -> None:
    """Log that a try of a step failed: it is tried again after so many seconds, or has failed for good."""
    execution = call._execution
    execution.recorder.logger.info(
        "run %s (%s): %s %r, try %d failed with %s; %s%s",
        execution.run_id, execution.workflow.name, "undo" if call.kind == UNDO else "step", call.name, number,
        _why(execution, error), "no further try" if delay is None else f"next try in {delay:.1f} s",
        _where(execution, error), extra=ids_of(execution, call.name),
    )  # fmt: skip


def tell_attempt(execution: Execution, error: BaseException, delay: float) -> None:
    """Log that an attempt of a run failed, and when the next one is."""
    execution.recorder.logger.info(
        "run %s (%s): attempt %d failed with %s; next attempt in %.1f s%s",
        execution.run_id, execution.workflow.name, execution.claimed.attempt, _why(execution, error), delay,
        _where(execution, error), extra=ids_of(execution, step_of(error)),
    )  # fmt: skip


def tell_end(execution: Execution, error: BaseException, reason: str) -> None:
    """Log that a run failed for good."""
    execution.recorder.logger.warning(
        "run %s (%s) failed for good (%s): %s",
        execution.run_id, execution.workflow.name, reason, _why(execution, error),
        exc_info=_shown(execution, error), extra=ids_of(execution, step_of(error)),
    )  # fmt: skip


def tell_undos(execution: Execution, failed: list[str]) -> None:
    """Undos failed for good; each said in words."""
    told = f": {'; '.join(failed)}" if execution.recorder.settings.log_errors else ""
    execution.recorder.logger.error(
        "run %s (%s): %d undos failed%s", execution.run_id, execution.workflow.name, len(failed), told,
        extra=ids_of(execution),
    )  # fmt: skip


def step_of(error: BaseException) -> str | None:
    """The step whose failure is behind an error, if there is one."""
    record = ending_record(error)
    return record.step if isinstance(record, StepFailed) else None


def _why(execution: Execution, error: BaseException) -> str:
    """The class and the first line of the message. Without messages, the class, and which step it came from."""
    if execution.recorder.settings.log_errors:
        return sentence(error, type_name(error))
    record, name = ending_record(error), type_name(error)
    return f"{name} (step {record.step!r}: {record.error_type})" if isinstance(record, StepFailed) else name


def _where(execution: Execution, error: BaseException) -> str:
    """The line of the user's code that raised, behind the rest of a message."""
    frame = own_frames(error.__traceback__, 1)
    if not execution.recorder.settings.log_errors or frame is None:
        return ""
    return f" (at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})"


ExcInfo = tuple[type[BaseException], BaseException, Any]


def _shown(execution: Execution, error: BaseException) -> ExcInfo | None:
    """The error for ``exc_info``, with the innermost frames of the user's code. One that was made from a record says
    where the step was called; where the step itself went wrong is only in the record, and is added as a note. The end
    of a dag run adds nothing to that of its step, which is logged by itself."""
    if not execution.recorder.settings.log_errors or getattr(error, "only_traceback", None):
        return None
    origin = getattr(ending_record(error), "traceback", None)
    if origin:
        lines = own_code_only(origin).splitlines()
        cut = [*lines[:1], "  …", *lines[1 - _MOST_LINES :]] if len(lines) > _MOST_LINES else lines
        note = "\n".join(["It came from:", *cut])
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return type(error), error, own_frames(error.__traceback__, _MOST_FRAMES)
