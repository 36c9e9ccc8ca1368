"""Errors for Sentry: an observer that reports the error of a failed run, once, when there is no further attempt.

Failures that are tried again leave a breadcrumb. Each run has a scope of its own, so that tags and breadcrumbs of its
code do not mix with those of other runs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..engine.observers import Observer
from ..model.events import AttemptFailed, RunClaimed, RunEnded, RunLost, RunReleased, TryFailed
from ..model.status import REASON_CAUGHT

try:
    import sentry_sdk
    from sentry_sdk.scope import Scope
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"stepfast.telemetry.sentry needs the package {error.name!r}: pip install 'stepfast[sentry]'", name=error.name
    ) from None

_MOST_RUNS = 1_000
"""Runs that are tried again of which failures are remembered; they may continue elsewhere."""


class SentryErrors(Observer):
    """Reports failed runs to Sentry: ``Stepfast(observers=[SentryErrors()])``, with ``sentry_sdk.init(…)``.

    An error has the tags ``stepfast.workflow``, ``stepfast.queue`` and ``stepfast.step``, and the ids of the run in its
    context ``stepfast``. Its message, and the variables of its frames, are those of your own code: what is not meant
    for Sentry is left out there, by ``include_local_variables=False`` and ``before_send`` of ``sentry_sdk.init``.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[str, BaseException]] = {}
        """Of claims under way: the step that failed last, and by what."""
        self._attempts: dict[str, list[dict[str, Any]]] = {}
        """Of runs that are tried again: a crumb for each attempt that failed here."""

    def claimed(self, event: RunClaimed) -> None:
        """Give the run a scope of its own, in its task."""
        scope = sentry_sdk.get_isolation_scope().fork()
        scope.clear_breadcrumbs()
        scope.set_tag("stepfast.workflow", event.workflow)
        scope.set_tag("stepfast.queue", event.queue)
        if event.dag_step is not None:
            scope.set_tag("stepfast.step", event.dag_step)
        scope.set_transaction_name(event.workflow, source="task")
        ids = {"run_id": event.run_id, "workflow": event.workflow, "attempt": event.attempt, "claim": event.claim}
        scope.set_context("stepfast", ids)
        Scope.set_isolation_scope(scope)
        Scope.set_current_scope(sentry_sdk.get_current_scope().fork())
        for crumb in self._attempts.get(event.run_id, ()):
            sentry_sdk.add_breadcrumb(crumb)

    def try_failed(self, event: TryFailed) -> None:
        """Add a breadcrumb; remember the error of a step that failed for good, because the workflow gets only its
        record."""
        if event.retry_in is None:
            self._last[event.run_id, event.claim] = event.step, event.error
        said: dict[str, Any] = {"step": event.step, "try": event.number, "error": type(event.error).__name__}
        what = "no further try" if event.retry_in is None else f"next try in {event.retry_in:.1f} s"
        sentry_sdk.add_breadcrumb(_crumb(f"{event.kind} {event.step!r}: try {event.number} failed; {what}", said))

    def attempt_failed(self, event: AttemptFailed) -> None:
        """A crumb for the next attempt, or the report of the run. A dag has reported the step that it failed of."""
        if event.retry_in is not None:
            said: dict[str, Any] = {"attempt": event.attempt, "error": type(event.error).__name__}
            what = f"attempt {event.attempt} failed; next attempt in {event.retry_in:.1f} s"
            self._attempts.setdefault(event.run_id, []).append(_crumb(what, said))
            if len(self._attempts) > _MOST_RUNS:
                del self._attempts[next(iter(self._attempts))]
        elif event.kind != "dag" and not (event.reason or "").startswith(REASON_CAUGHT):
            self._report(event)

    def _report(self, event: AttemptFailed) -> None:
        step, error = self._last.get((event.run_id, event.claim), (None, event.error))
        if step is None or step != event.step:
            error = event.error
        client = sentry_sdk.get_client()
        report, hint = event_from_exception(
            error, client_options=client.options, mechanism={"type": "stepfast", "handled": False}
        )
        with sentry_sdk.new_scope() as scope:
            if event.step is not None:
                scope.set_tag("stepfast.step", event.step)
            scope.set_tag("stepfast.reason", event.reason)
            sentry_sdk.capture_event(report, hint=hint)

    def suspended(self, event: RunReleased) -> None:
        """Forget the claim that is over."""
        self._last.pop((event.run_id, event.claim), None)

    def ended(self, event: RunEnded) -> None:
        """Forget the run that is over."""
        self._attempts.pop(event.run_id, None)
        self._last.pop((event.run_id, event.claim), None)

    def lost(self, event: RunLost) -> None:
        """Forget the claim that is over."""
        self._last.pop((event.run_id, event.claim), None)


def _crumb(message: str, said: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "category": "stepfast", "type": "error", "level": "warning", "message": message, "data": said, "timestamp": now,
    }  # fmt: skip
