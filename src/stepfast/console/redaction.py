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
"""Hidden values of fewer characters are not struck out of texts: nothing readable would be left."""

Redact = Sequence[str] | Callable[[str, Any], Any]
"""Paths, or a function of a path and a value."""
Rule = Callable[[str, Any], Any]
"""A function of a path, whose parts have BETWEEN between them, and a value."""
BETWEEN = "\0"
"""Between the parts of a path: a name may have dots in it, and must not pass for two."""


def rule_of(redact: Redact | None) -> Rule | None:
    """What was given as ``redact=``, as a function; None: nothing is hidden."""
    if redact is None:
        return None
    if callable(redact):
        asked = redact
        return lambda path, value: asked(path.replace(BETWEEN, "."), value)
    if isinstance(redact, str) or not all(isinstance(path, str) and path.strip(".") for path in redact):
        raise ConfigurationError(
            'redact= takes a list of paths, as in redact=["password", "card.number"], or a function of path and value'
        )
    if not redact:
        return None
    one_of = "|".join(r"[.\0]".join(map(_pattern, path.strip(".").casefold().split("."))) for path in redact)
    ends_so = re.compile(rf"(?:^|[.\0])(?:{one_of})\Z", re.DOTALL)
    return lambda path, value: HIDDEN if ends_so.search(path.casefold()) else value


def _pattern(part: str) -> str:
    """One part of a path, where ``*`` stands for anything that a name can hold."""
    return r"[^\0]*".join(map(re.escape, part.split("*")))


class Redactor:
    """Hides parts of what one answer shows, and remembers what it hid."""

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._hidden: set[str] = set()

    @property
    def hides(self) -> bool:
        """Whether anything is hidden at all."""
        return self._rule is not None

    def fresh(self) -> Redactor:
        """Another one of the same rule, which has hidden nothing yet."""
        return Redactor(self._rule)

    def value(self, value: Any, path: str) -> Any:
        """A payload, without what is to be hidden. ``path`` says what it is: ``input``, ``output``, ``arguments`` …"""
        return value if self._rule is None else self._shown(value, path)

    def text(self, text: str) -> str:
        """A text of the same run, without the values that were hidden so far."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _shown(self, value: Any, path: str, depth: int = 0) -> Any:
        assert self._rule is not None
        shown = self._rule(path, value) if depth <= DEEPEST else HIDDEN
        if shown is not value and shown != value:
            self._remember(value)
            return shown
        if isinstance(value, dict):
            return {key: self._shown(part, _inside(path, key), depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._shown(part, path, depth + 1) for part in value]
        return value

    def _remember(self, hidden: Any) -> None:
        """All that stands in what was hidden, however deep. Of names only those that code would not give: a name that
        is data, as an address is, can be a secret, and striking out every ``id`` would leave nothing readable."""
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
    """Do what hides payloads, in a thread if anything is hidden: one of megabytes takes seconds, and other requests are
    answered meanwhile."""
    return await asyncio.to_thread(work) if redactor.hides else work()


def _inside(path: str, name: object) -> str:
    """The path of a field."""
    return f"{path}{BETWEEN}{str(name).replace(BETWEEN, '')}"


def _forms(value: Any) -> tuple[str, ...]:
    """How a value can stand in a text."""
    written = str(getattr(value, "text", value))
    return written, repr(written)[1:-1], _json(written)


def _json(text: str) -> str:
    """As it stands in JSON, without the quotes."""
    return msgspec.json.encode(text).decode()[1:-1]


def redacted_runs(runs: Sequence[RunInfo], redactor: Redactor) -> list[RunInfo]:
    """Runs of a list, each with a veil of its own: a value that one hides may be harmless in another."""
    return [redacted_run(run, redactor.fresh(), complete=False) for run in runs] if redactor.hides else list(runs)


def redacted_history(history: History, redactor: Redactor) -> History:
    """A run with its steps and failed tries. All values come before all texts, which may quote them."""
    if not redactor.hides:
        return history
    for arguments in history.arguments:
        redactor.value(arguments, "arguments")
    redactor.value(history.info.input, "input")
    redactor.value(history.info.output, "output")
    complete = history.complete
    return history._replace(
        steps=redacted_steps(history.steps, redactor, complete),
        tries=redacted_calls(history.tries, redactor, complete),
        info=redacted_run(history.info, redactor, complete),
    )


def redacted_run(run: RunInfo, redactor: Redactor, complete: bool = True) -> RunInfo:
    """A run, without its steps. ``complete`` says whether all that its error may quote has passed the redactor."""
    if not redactor.hides:
        return run
    shown = replace(run, input=redactor.value(run.input, "input"), output=redactor.value(run.output, "output"))
    return replace(shown, error=redacted_error(run.error, redactor, complete))


def redacted_steps(steps: Sequence[StepInfo], redactor: Redactor, complete: bool = True) -> list[StepInfo]:
    """Steps. All values come before all texts, because the error of one step may quote the output of another."""
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
            error=redacted_error(step.error, redactor, complete),
        )
        for step in values
    ]


def _redacted_detail(step: StepInfo, redactor: Redactor, complete: bool) -> str | None:
    """What a step says of itself. What steps wait for, and how those of a dag stand, is said by us."""
    if step.detail is None or complete or step.kind == DAG_STEP or step.status == status.WAITING:
        return None if step.detail is None else redactor.text(step.detail)
    return HIDDEN


def redacted_calls(calls: Sequence[Activity], redactor: Redactor, complete: bool = True) -> list[Activity]:
    """Calls of the activity log."""
    if not redactor.hides:
        return list(calls)
    values = [
        replace(
            call, parameters=redactor.value(call.parameters, "arguments"), result=redactor.value(call.result, "output")
        )
        for call in calls
    ]
    return [replace(call, error=redacted_error(call.error, redactor, complete)) for call in values]


def redacted_error(error: ErrorInfo | None, redactor: Redactor, complete: bool = True) -> ErrorInfo | None:
    """An error, with its own fields hidden where paths say so, and hidden values struck out of the rest."""
    if error is None or not redactor.hides:
        return error
    shown = redactor.value({"type": error.type, "message": error.message, "traceback": error.traceback}, "error")
    if not complete or not isinstance(shown, dict):
        return ErrorInfo(error.type, HIDDEN, None)
    traceback = shown["traceback"]
    return ErrorInfo(
        str(shown["type"]),
        redactor.text(str(shown["message"])),
        None if traceback is None else redactor.text(str(traceback)),
    )
