"""The page before an action: what will happen, and the form that sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..engine.history import UNDO
from ..info import RunInfo, StepInfo
from ..model import status
from ..monitoring.text import count, listed
from .request import ConsoleRequest
from .responses import Page


@dataclass(frozen=True, slots=True)
class Question:
    """The confirmation of an action."""

    title: str
    sentence: str
    """What the action will do."""
    action: Sequence[str]
    """The address that the form is sent to, in parts."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Hidden fields of the form."""
    danger: bool = False

    def page(self, request: ConsoleRequest, back: str, template: str | None = None, **more: Any) -> Page:
        """Return the page; ``back`` is the address of its Back button."""
        send_to = request.url(*self.action)
        shape = {"what_happens": self.sentence, "post_to": send_to, "fields": dict(self.fields)}
        return Page(template or "ask.html", {"question": self, "back": back, "send_to": send_to, **more}, shape)


_FEW = 5


class OfferedAction(NamedTuple):
    """An action on a run, as its page offers it."""

    name: str
    label: str
    path: str
    """The last part of the address that its form is sent to."""
    fields: tuple[tuple[str, str], ...] = ()
    """Hidden fields of the form."""
    danger: bool = False


CANCEL = OfferedAction("cancel", "Cancel", "cancel", danger=True)
PAUSE = OfferedAction("pause", "Pause", "pause")
RESUME = OfferedAction("resume", "Resume", "resume")
RESCHEDULE = OfferedAction("reschedule", "Make due now", "reschedule")
RETRY = OfferedAction("retry", "Retry", "retry")
RESTART = OfferedAction("restart", "Retry from the start", "retry", (("from_start", "1"),))
SIGNAL = OfferedAction("signal", "Send a signal", "signal")
ACTIONS = {action.name: action for action in (CANCEL, PAUSE, RESUME, RESCHEDULE, RETRY, RESTART, SIGNAL)}

_REVIVED_BY_CANCEL = (status.REASON_NON_DETERMINISM, status.REASON_LOST)


def offered(run: RunInfo) -> list[OfferedAction]:
    """Return the actions that the state of a run allows."""
    if run.completed_at is None:
        undoing = run.status == status.COMPENSATING
        held = run.status == status.PAUSED or run.asked == status.ASK_PAUSE
        hold = [] if undoing else [RESUME if held else PAUSE]
        move = [RESCHEDULE] if _is_delayed(run) else []
        return [SIGNAL, *move, *hold, *([] if undoing else [CANCEL])]
    again = [RETRY] if run.status in (status.FAILED, status.CANCELLED) else []
    return [*again, RESTART, *([CANCEL] if run.reason in _REVIVED_BY_CANCEL else [])]


def what_happens(action: OfferedAction, run: RunInfo, steps: Sequence[StepInfo]) -> str:
    """Say what an action will do to a run."""
    if action == CANCEL:
        ends = "It ends after the step that is being executed." if run.worker is not None else "It ends at once."
        return f"{ends} Children that have not ended are cancelled too.{_undone(steps)}"
    if action == PAUSE:
        return "It is held before its next step, until it is resumed. Signals are kept; its deadline is not moved."
    if action == RESUME:
        return "It continues where it was held. A sleep that has not ended is not made shorter."
    if action == RESCHEDULE:
        return "It is due now, instead of at its time."
    if action == RETRY:
        kept = count(sum(step.status == status.COMPLETED for step in steps), "recorded step").capitalize()
        return f"It is queued again. {kept} kept; what failed is executed again."
    if action == RESTART:
        return "A new run is started with the same input, and linked to this one. This one stays as it is."
    return "The signal is kept for the run until it takes it."


def _is_delayed(run: RunInfo) -> bool:
    """Whether it waits for its start, its next attempt, or the next try of a step."""
    queued = run.status == status.QUEUED and not run.ready and run.asked is None
    return queued or (run.worker is None and status.WAITING_RETRY in (run.waiting_for or "").split(", "))


def _undone(steps: Sequence[StepInfo]) -> str:
    """The completed steps that have an undo, in the order of their undos."""
    names = [repr(step.name) for step in steps if step.undo and step.status == status.COMPLETED and step.kind != UNDO]
    if not names:
        return " No completed step has an undo."
    shown = [*names[::-1][:_FEW], *([f"{len(names) - _FEW} more"] if len(names) > _FEW else [])]
    return f" {count(len(names), 'completed step').capitalize()} will be undone: {listed(shown)}."
