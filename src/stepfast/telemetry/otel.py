"""Traces by OpenTelemetry: an observer that makes a span of every claim of a run and of every call of a step."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from ..engine.observers import Observer
from ..errors import ConfigurationError
from ..model import events
from ..model.status import FAILED, QUEUED

MOST_NAMES: Final = 500
"""Names per process. What comes after them is only called by its kind, and says its name as an attribute."""
LONGEST: Final = 100
"""Characters of a name that are shown."""


class SpanNames:
    """Remembers which names were used."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str) -> str:
        """The name of a span: ``step charge``; or ``step``, if there are too many."""
        known = self._known.get((kind, name))
        if known is None:
            if len(self._known) >= self._most:
                return kind
            shown = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
            known = self._known[kind, name] = f"{kind} {shown}"
        return known


try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.propagators.textmap import Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"stepfast.telemetry.otel needs the package {error.name!r}: pip install 'stepfast[otel]'", name=error.name
    ) from None

_HOST = socket.gethostname()
_PARENTS = ("auto", "child", "link")
_FIRST, _LAST = "first-", "last-"
"""Before the names of headers: those of the first claim of a run, and of its last one."""

Try = tuple[str, int, str, int, int]
"""A try of a step: its run and claim, its branch and position, and its number."""


class Tracing(Observer):
    """Makes spans of what happens: ``Stepfast(observers=[Tracing()])``.

    ``parent`` says how the spans of a run belong to the start of the run. With ``"child"`` they are in the same trace,
    below the span of the start. With ``"link"`` a run has a trace of its own, whose first span has a link to it.
    ``"auto"``, the default, is ``"link"`` for workflows, which may take days, and ``"child"`` for tasks and dags.

    What is written to spans are names, ids, numbers and classes of errors; never a payload, a key, a tag or a message.
    """

    def __init__(
        self,
        *,
        parent: str = "auto",
        tracer_provider: trace.TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        if parent not in _PARENTS:
            raise ConfigurationError(f"parent must be one of {', '.join(map(repr, _PARENTS))}, not {parent!r}")
        self._parent = parent
        self._tracer = trace.get_tracer("stepfast", tracer_provider=tracer_provider)
        self._headers = Headers(propagator or TraceContextTextMapPropagator())
        self._names = SpanNames()
        self._sendings: dict[int, Span] = {}
        self._claims: dict[tuple[str, int], _Claim] = {}
        self._tries: dict[Try, tuple[Span, Any]] = {}

    # -- what is sent ------------------------------------------------------------------------------------------------

    def sending(self, event: events.Sending) -> None:
        """A start or a signal is a span of its own, whose context goes along. What a run sends belongs to its span."""
        if event.kind not in (events.SENT_START, events.SENT_SIGNAL):
            self._headers.put(self._where(event.sender_id, event.claim), event.trace)
            return
        attributes = _sending_attributes(event)
        span = self._tracer.start_span(
            self._names.of(event.kind, event.name), kind=SpanKind.PRODUCER, attributes=attributes
        )
        self._sendings[id(event)] = span
        self._headers.put(trace.set_span_in_context(span), event.trace)

    def sending_ended(self, event: events.SendingEnded) -> None:
        """End the span of a start or a signal."""
        span = self._sendings.pop(id(event.sending), None)
        if span is not None:
            _end(span, event.error_type)

    def signal_taken(self, event: events.SignalTaken) -> None:
        """Add a span without length, with a link to the sender of the signal."""
        span = self._tracer.start_span(
            self._names.of("receive", event.name),
            self._where(event.run_id, event.claim),
            SpanKind.CONSUMER,
            {
                "messaging.system": "stepfast",
                "messaging.operation.name": "receive",
                "messaging.operation.type": "receive",
                "stepfast.run.id": event.run_id,
                "stepfast.workflow": event.workflow,
                "stepfast.signal.name": event.name,
            },
            self._headers.links(("signal", event.trace)),
        )
        span.end()

    # -- runs --------------------------------------------------------------------------------------------------------

    def claimed(self, event: events.RunClaimed) -> None:
        """Begin the span of a claim, and make it the current one of the run's code."""
        sent, first, last = self._headers.parted(event.trace)
        own = self._parent == "link" or (self._parent == "auto" and event.kind == "workflow")
        above = self._headers.context(first if own else sent)
        links = self._headers.links(("start", sent if own and not first else {}), ("claim", last))
        name = event.workflow if event.dag_step is None else f"{event.workflow}/{event.dag_step}"
        span = self._tracer.start_span(
            self._names.of("run", name), above, SpanKind.CONSUMER, _claim_attributes(event), links
        )
        context = trace.set_span_in_context(span, above)
        self._claims[event.run_id, event.claim] = _Claim(span, context, own and not first)
        otel_context.attach(context)  # in the task of the run, which ends with it

    def releasing(self, event: events.RunReleasing) -> None:
        """Pass the last and the first span on to the next claim."""
        claim = self._claims.get((event.run_id, event.claim))
        if claim is not None:
            self._headers.put(claim.context, event.trace, _LAST)
            if claim.is_first:
                self._headers.put(claim.context, event.trace, _FIRST)

    def suspended(self, event: events.RunReleased) -> None:
        """End the span of a claim. A failed attempt is an error of this claim, not of the run."""
        span = self._left(event)
        if span is not None:
            if event.waiting_for is not None:
                span.set_attribute("stepfast.waiting_for", event.waiting_for)
            outcome = "suspended" if event.error_type is None else "retried" if event.status == QUEUED else event.status
            _end(span, event.error_type, outcome, event.replayed)

    def ended(self, event: events.RunEnded) -> None:
        """End the span of the last claim."""
        span = self._left(event)
        if span is not None:
            if event.reason is not None:
                span.set_attribute("stepfast.reason", event.reason)
            _end(span, (event.error_type or "") if event.status == FAILED else None, event.status, event.replayed)

    def lost(self, event: events.RunLost) -> None:
        """End the span of a claim that was lost."""
        span = self._left(event)
        if span is not None:
            _end(span, "LeaseLost", "lost")

    def _left(self, event: events.RunReleased | events.RunEnded | events.RunLost) -> Span | None:
        claim = self._claims.pop((event.run_id, event.claim), None)
        return None if claim is None else claim.span

    # -- steps -------------------------------------------------------------------------------------------------------

    def step_called(self, event: events.StepCalled) -> None:
        """Begin the span of a try, and make it the current one of the step's function."""
        claim = self._claims.get((event.run_id, event.claim))
        if claim is not None and not claim.trace_id:
            return  # there is no SDK, or it is switched off
        above = self._where(event.run_id, event.claim)
        span = self._tracer.start_span(
            self._names.of(event.kind, event.step), above, SpanKind.INTERNAL, _step_attributes(event)
        )
        token = otel_context.attach(trace.set_span_in_context(span, above))
        self._tries[_try_of(event)] = span, token

    def step_ended(self, event: events.StepEnded) -> None:
        """End the span of a try. If the run has left, this is the last thing that the task of the try sees."""
        known = self._tries.pop(_try_of(event), None)
        if known is None:
            return
        span, token = known
        if event.outcome != events.ABANDONED:
            otel_context.detach(token)
        _end(span, (event.error_type or "") if event.outcome == FAILED else None, event.outcome)

    def step_refused(self, event: events.StepRefused) -> None:
        """The call has ended well, and its span with it; that its result was refused is said by the span of the run."""
        claim = self._claims.get((event.run_id, event.claim))
        if claim is not None:
            said: dict[str, Any] = {"stepfast.step.name": event.step, "stepfast.step.try": event.number}
            claim.span.add_event("step refused", said | {"error.type": event.error_type})

    def remote_ended(self, event: events.RemoteEnded) -> None:
        """Add the span of a remote step, dated back: its run was suspended while it was served."""
        now = time.time_ns()  # as the SDK does it: no decision hangs on it
        span = self._tracer.start_span(
            self._names.of("remote", event.step),
            self._where(event.run_id, event.claim),
            SpanKind.CLIENT,
            {
                "stepfast.run.id": event.run_id,
                "stepfast.workflow": event.workflow,
                "stepfast.step.name": event.step,
                "stepfast.step.kind": "remote",
                "stepfast.step.group": event.group,
                "stepfast.step.try": event.tries,
                "stepfast.attempt": event.attempt,
            },
            start_time=now - int(event.seconds * 1e9),
        )
        _end(span, (event.error_type or "") if event.outcome == FAILED else None, event.outcome, end_time=now)

    def _where(self, run_id: str | None, claim: int) -> otel_context.Context | None:
        """Return the parent of a span: None for the current span of the run's own code, which may be one of the user's;
        else the claim's."""
        known = self._claims.get((run_id or "", claim))
        if known is None or trace.get_current_span().get_span_context().trace_id == known.trace_id:
            return None
        return known.context


class _Claim:
    __slots__ = ("context", "is_first", "span", "trace_id")

    def __init__(self, span: Span, context: otel_context.Context, is_first: bool) -> None:
        self.span = span
        self.context = context
        self.is_first = is_first
        """Whether it is the first span of a trace that is the run's own."""
        self.trace_id = span.get_span_context().trace_id
        """Zero without an SDK."""


class _Put(Setter[dict[str, str]]):
    """How a propagator writes headers."""

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        """Write one header down."""
        carrier[key] = value


_PUT = _Put()


class Headers:
    """Contexts as the short texts that are sent along, by the propagator."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator

    def put(self, context: otel_context.Context | None, into: dict[str, str], prefix: str = "") -> None:
        """Write the context, or the current one, in place of what was there of it."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, context, _PUT)
        for name in [name for name in into if name.startswith(prefix) and prefix]:
            del into[name]
        into.update({f"{prefix}{name}": value for name, value in headers.items()})

    def parted(self, sent: dict[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return the headers of the start of a run, of its first claim and of its last one."""
        first = {name.removeprefix(_FIRST): value for name, value in sent.items() if name.startswith(_FIRST)}
        last = {name.removeprefix(_LAST): value for name, value in sent.items() if name.startswith(_LAST)}
        rest = {name: value for name, value in sent.items() if not name.startswith((_FIRST, _LAST))}
        return rest, first, last

    def context(self, headers: dict[str, str]) -> otel_context.Context:
        """What they say; an empty context, never the current one, if they say nothing."""
        return self._propagator.extract(headers, otel_context.Context())

    def links(self, *named: tuple[str, dict[str, str]]) -> Sequence[Link]:
        """A link to each that says something."""
        found = [(what, trace.get_current_span(self.context(headers)).get_span_context()) for what, headers in named]
        return [Link(context, {"stepfast.link": what}) for what, context in found if context.is_valid]


def _end(
    span: Span, error_type: str | None, outcome: str | None = None, replayed: int = 0, end_time: int | None = None
) -> None:
    """End a span. A status is set for errors only."""
    if span.is_recording():
        if outcome is not None:
            span.set_attribute("stepfast.outcome", outcome)
        if replayed:
            span.set_attribute("stepfast.replayed", replayed)
        if error_type is not None:
            span.set_attribute("error.type", error_type or "_OTHER")
            span.set_status(Status(StatusCode.ERROR))
    span.end(end_time)


def _sending_attributes(event: events.Sending) -> dict[str, Any]:
    said: dict[str, Any] = {
        "messaging.system": "stepfast",
        "messaging.operation.name": event.kind,
        "messaging.operation.type": "send",
    }
    if event.queue is not None:
        said["messaging.destination.name"] = event.queue
    if event.run_id is not None:
        said |= {"messaging.message.id": event.run_id, "stepfast.run.id": event.run_id}
    if event.number != 1:
        said["messaging.batch.message_count"] = event.number
    said["stepfast.workflow" if event.kind == events.SENT_START else "stepfast.signal.name"] = event.name
    return said


def _claim_attributes(event: events.RunClaimed) -> dict[str, Any]:
    said: dict[str, Any] = {
        "messaging.system": "stepfast",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": event.queue,
        "messaging.message.id": event.run_id,
        "stepfast.run.id": event.run_id,
        "stepfast.workflow": event.workflow,
        "stepfast.kind": event.kind,
        "stepfast.attempt": event.attempt,
        "stepfast.claim": event.claim,
        "stepfast.ready_seconds": event.ready_for,
        "stepfast.worker.id": event.worker,
        "stepfast.worker.executor": _HOST,
        "stepfast.worker.pid": os.getpid(),
    }
    maybe = {
        "stepfast.parent.run.id": event.parent_id,
        "stepfast.dag.run.id": event.dag_id,
        "stepfast.step.name": event.dag_step,
        "stepfast.undoing": event.undoing or None,
    }
    return said | {name: value for name, value in maybe.items() if value is not None}


def _step_attributes(event: events.StepCalled) -> dict[str, Any]:
    said = {
        "stepfast.run.id": event.run_id,
        "stepfast.workflow": event.workflow,
        "stepfast.step.name": event.step,
        "stepfast.step.kind": event.kind,
        "stepfast.step.position": event.position,
        "stepfast.step.try": event.number,
        "stepfast.attempt": event.attempt,
    }
    return said | {"stepfast.step.branch": event.branch} if event.branch else said


def _try_of(event: events.StepCalled | events.StepEnded) -> Try:
    return event.run_id, event.claim, event.branch, event.position, event.number
