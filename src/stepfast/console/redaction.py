"""Redaction: parts of payloads are hidden before a page is made of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from ..engine.timers import SLEEP
from ..errors import ConfigurationError
from ..info import Activity, ErrorInfo, RunInfo, StepInfo
from ..model import status
from ..model.status import DAG_STEP
from .history import History
from .json_numbers import DEEPEST

T = TypeVar("T")

HIDDEN = "(hidden)"
_SHORTEST = 3
"""Shorter hidden values are not removed from texts: little of them would be left."""

Redact = Sequence[str] | Callable[[str, Any], Any]
"""Paths, or a function of a path and a value."""
Rule = Callable[[str, Any], Any]
"""A function of a path, whose parts are divided by BETWEEN, and a value."""
BETWEEN = "\0"
"""Divides the parts of a path: a name may contain dots."""


def rule_of(redact: Redact | None) -> Rule | None:
    """Return the rule of ``redact=``; None: nothing is hidden."""
    if redact is None:
        return None
    if callable(redact):
        function = redact
        return lambda path, value: function(path.replace(BETWEEN, "."), value)
    if isinstance(redact, str) or not all(isinstance(path, str) and path.strip(".") for path in redact):
        raise ConfigurationError(
            'redact= takes a list of paths, as in redact=["password", "card.number"], or a function of path and value'
        )
    if not redact:
        return None
    one_of = "|".join(r"[.\0]".join(map(_pattern, path.strip(".").casefold().split("."))) for path in redact)
    matches = re.compile(rf"(?:^|[.\0])(?:{one_of})\Z", re.DOTALL)
    return lambda path, value: HIDDEN if matches.search(path.casefold()) else value


def _pattern(part: str) -> str:
    """The expression for one part of a path, in which ``*`` fits any name."""
    return r"[^\0]*".join(map(re.escape, part.split("*")))


class Redactor:
    """Hides parts of the payloads of one response, and remembers them to remove them from texts."""

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._hidden: set[str] = set()

    @property
    def hides(self) -> bool:
        """Whether there is a rule."""
        return self._rule is not None

    def fresh(self) -> Redactor:
        """Return a redactor of the same rule that has hidden nothing yet."""
        return Redactor(self._rule)

    def value(self, value: Any, path: str) -> Any:
        """Redact a payload. ``path`` begins with its role: ``input``, ``output``, ``arguments`` …"""
        return value if self._rule is None else self._redacted(self._rule, value, path)

    def text(self, text: str) -> str:
        """Remove the values that were hidden so far from a text of the same run."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _redacted(self, rule: Rule, value: Any, path: str, depth: int = 0) -> Any:
        shown = rule(path, value) if depth <= DEEPEST else HIDDEN
        if shown is not value and shown != value:
            self._remember(value)
            return shown
        if isinstance(value, dict):
            return {
                key: self._redacted(rule, part, f"{path}{BETWEEN}{str(key).replace(BETWEEN, '')}", depth + 1)
                for key, part in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._redacted(rule, part, path, depth + 1) for part in value]
        return value

    def _remember(self, hidden: Any) -> None:
        """Remember every value inside a hidden one. Of keys only those that are not identifiers: a key that is data,
        such as an address, can be a secret; removing every ``id`` from texts would make them unreadable."""
        values = [hidden]
        while values:
            value = values.pop()
            if isinstance(value, dict):
                values += [*value.values(), *(key for key in value if not str(key).isidentifier())]
            elif isinstance(value, (list, tuple)):
                values += value
            elif value is not None and not isinstance(value, bool):
                self._hidden.update(form for form in _forms(value) if len(form) >= _SHORTEST)


async def aside(redactor: Redactor, work: Callable[[], T]) -> T:
    """Redact in a thread, if there is a rule: megabytes take seconds, in which other requests must be answered."""
    return await asyncio.to_thread(work) if redactor.hides else work()


def _forms(value: Any) -> tuple[str, ...]:
    """The forms in which a value can be part of a text: as it is, in a repr, and in JSON."""
    written = str(getattr(value, "text", value))
    return written, repr(written)[1:-1], msgspec.json.encode(written).decode()[1:-1]


def redacted_runs(runs: Sequence[RunInfo], redactor: Redactor) -> list[RunInfo]:
    """Redact the runs of a list, each by a redactor of its own: a secret of one may be harmless in another."""
    return [redacted_run(run, redactor.fresh(), complete=False) for run in runs] if redactor.hides else list(runs)


def redacted_history(history: History, redactor: Redactor) -> History:
    """Redact a run with its steps and failed tries. All values come first: texts may quote them."""
    if not redactor.hides:
        return history
    for arguments in history.arguments:
        redactor.value(arguments, "arguments")
    redactor.value(history.info.input, "input")
    redactor.value(history.info.output, "output")
    complete = history.complete
    return history._replace(
        steps=redacted_steps(history.steps, redactor, complete),
        tries=_redacted_calls(history.tries, redactor, complete),
        info=redacted_run(history.info, redactor, complete),
    )


def redacted_run(run: RunInfo, redactor: Redactor, complete: bool = True) -> RunInfo:
    """Redact a run without its steps. ``complete`` says whether the redactor has seen all that its error may quote."""
    if not redactor.hides:
        return run
    shown = replace(run, input=redactor.value(run.input, "input"), output=redactor.value(run.output, "output"))
    return replace(shown, error=_redacted_error(run.error, redactor, complete))


def redacted_steps(steps: Sequence[StepInfo], redactor: Redactor, complete: bool = True) -> list[StepInfo]:
    """Redact steps. All values come first: the error of one step may quote the output of another."""
    if not redactor.hides:
        return list(steps)
    values = [
        step
        if step.kind == SLEEP
        else replace(step, output=redactor.value(step.output, "output"), data=redactor.value(step.data, "progress"))
        for step in steps
    ]
    return [
        replace(
            step,
            detail=_redacted_detail(step, redactor, complete),
            error=_redacted_error(step.error, redactor, complete),
        )
        for step in values
    ]


def _redacted_detail(step: StepInfo, redactor: Redactor, complete: bool) -> str | None:
    """Details of waiting steps and of steps of a dag are written by the engine; others may quote payloads."""
    if step.detail is None or complete or step.kind == DAG_STEP or step.status == status.WAITING:
        return None if step.detail is None else redactor.text(step.detail)
    return HIDDEN


def _redacted_calls(calls: Sequence[Activity], redactor: Redactor, complete: bool) -> list[Activity]:
    values = [
        replace(
            call,
            parameters=redactor.value(call.parameters, "arguments"),
            result=redactor.value(call.result, "output"),
        )
        for call in calls
    ]
    return [replace(call, error=_redacted_error(call.error, redactor, complete)) for call in values]


def _redacted_error(error: ErrorInfo | None, redactor: Redactor, complete: bool) -> ErrorInfo | None:
    """Redact an error by the paths of its own fields, and remove hidden values from the rest."""
    if error is None:
        return None
    shown = redactor.value({"type": error.type, "message": error.message, "traceback": error.traceback}, "error")
    if not complete or not isinstance(shown, dict):
        return ErrorInfo(error.type, HIDDEN, None)
    traceback = shown["traceback"]
    return ErrorInfo(
        str(shown["type"]),
        redactor.text(str(shown["message"])),
        None if traceback is None else redactor.text(str(traceback)),
    )
