"""How a claim ends: as a transition for the journal, and errors as records."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..errors import (
    MOST_OF_A_TEXT,
    ContextMisuse,
    DeadlineExceeded,
    InvalidInput,
    MapFailed,
    RecordedError,
    StepFailed,
    message_of,
)
from ..model import status
from ..model.backoff import Backoff, is_retryable, own_delay, retry_delay
from ..model.graph import Graph, Settled
from ..model.ids import without_tokens
from ..model.payload import Payloads
from ..model.records import Claimed, NewRun, Transition
from ..model.transitions.operator import may_have_acted
from ..settings import FORMAT

if TYPE_CHECKING:
    from .execution import Execution


class AfterFailure(NamedTuple):
    """What a failed attempt means."""

    reason: str
    delay: float | None
    """Seconds until the next attempt; None: there is none, and the run fails."""


def judge(
    error: Exception, reason: str, claimed: Claimed, allowed: int, backoff: Backoff, random: Random
) -> AfterFailure:
    """Whether a failed attempt is followed by another. So many are allowed in all; chance spreads the waits."""
    if isinstance(error, DeadlineExceeded):
        return AfterFailure(status.REASON_DEADLINE, None)
    if isinstance(error, InvalidInput) and error.of_run:
        return AfterFailure(status.REASON_INPUT, None)
    if isinstance(error, (ContextMisuse, InvalidInput)):
        return AfterFailure(reason, None)
    failures = claimed.attempt - claimed.first_attempt + 1
    return AfterFailure(reason, retry_delay(error, failures, allowed, backoff, random))


# -- it has come to its end -----------------------------------------------------------------------------------------


def completed(run: Execution, output: str, format_: int) -> Transition:
    """The code of the run returned a result."""
    return Transition(run.run_id, run.claim, status.COMPLETED, output=output, format=format_)


def skipped(run: Execution) -> Transition:
    """The step of a dag run is not to be done."""
    return Transition(run.run_id, run.claim, status.SKIPPED)


def continued(run: Execution, successor: NewRun) -> Transition:
    """The run ends, and continues as another."""
    return Transition(
        run.run_id,
        run.claim,
        status.COMPLETED,
        reason=status.REASON_CONTINUED,
        output=msgspec.json.encode(successor.id).decode(),
        format=FORMAT,
        successor=successor,
    )


def failed(run: Execution, error: str, reason: str, cause: BaseException | None, format_: int) -> Transition:
    """There is no further attempt. What was done is undone first, if the code is to blame and says how. What a claim
    recorded by code that diverges does not stay."""
    undo = reason not in status.UNDONE_BY_CANCEL and not run.claimed.undoing and run.ledger.has_undos()
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if undo else status.FAILED,
        reason=reason,
        error=error,
        recorded=run.ledger.recorded,
        forget=[] if undo else run.to_forget(cause, by_operator=reason == status.REASON_CODE),
        drop=[] if run.diverged is None else list(run.ledger.fresh),
        format=format_,
    )


def cancelled(run: Execution) -> Transition:
    """The run was cancelled: that is its end, or the beginning of its undo."""
    undo, claimed = run.ledger.has_undos(), run.claimed
    error = None
    if not run.ledger.recorded:
        lost = claimed.losses, claimed.unrecorded_losses
        error = may_have_acted(*lost, status.RUNNING, None, run.ledger.last_step())
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if undo else status.CANCELLED,
        reason=status.REASON_CANCELLED,
        error=error,
        recorded=run.ledger.recorded,
        forget=[] if undo else run.to_forget(None),
    )


def undone(run: Execution, format_: int) -> Transition:
    """Every undo was called. The run keeps the error that it had ended with."""
    return Transition(run.run_id, run.claim, status.COMPENSATED, recorded=run.ledger.recorded, format=format_)


def undo_failed(run: Execution, error: str, format_: int) -> Transition:
    """Every undo was called, and one of them failed."""
    return Transition(
        run.run_id,
        run.claim,
        status.FAILED,
        reason=status.REASON_UNDO,
        error=error,
        recorded=run.ledger.recorded,
        format=format_,
    )


def broken(run: Execution, error: str | None, format_: int) -> Transition:
    """The outcome of a run cannot be recorded, or the engine itself could not make it: the run ends, and says so."""
    return Transition(run.run_id, run.claim, status.FAILED, reason=status.REASON_CODE, error=error, format=format_)


# -- it will come back ----------------------------------------------------------------------------------------------


def next_attempt(run: Execution, error: str, delay: float, cause: BaseException | None, format_: int) -> Transition:
    """The attempt failed, and there will be another after so many seconds."""
    return Transition(
        run.run_id,
        run.claim,
        status.QUEUED,
        error=error,
        delay_ms=max(1, int(delay * 1000)),
        next_attempt=True,
        needs_new_record=run.needs_new_record,
        recorded=run.ledger.recorded,
        forget=run.to_forget(cause),
        format=format_,
    )


def waiting(
    run: Execution, wakes: int, due_at: int | None, waiting_for: str, awaits: int | None = None, linger_ms: int = 0
) -> Transition:
    """Everything in it waits: it gives its slot back until then."""
    return Transition(
        run.run_id,
        run.claim,
        status.COMPENSATING if run.claimed.undoing else status.WAITING,
        waiting_for=waiting_for,
        wakes=wakes,
        recorded=run.ledger.recorded,
        due_at=due_at,
        awaits=awaits,
        linger_ms=linger_ms,
    )


def waits_for_graph(run: Execution, due_at: int) -> Transition:
    """What follows from the end of a step is in its graph; one whose graph is not stored cannot end."""
    return Transition(run.run_id, run.claim, status.WAITING, due_at=due_at, waiting_for=status.WAITING_GRAPH)


def paused(run: Execution) -> Transition:
    """An operator pauses it. With the count of wakes at the claim, not with a later one: a resume has withdrawn the
    request, and raised the count."""
    return Transition(run.run_id, run.claim, status.PAUSED, wakes=run.claimed.wakes, recorded=run.ledger.recorded)


def given_back(run: Execution) -> Transition:
    """The worker stops: the run is ready again at once, no attempt is used, nothing has failed."""
    return Transition(run.run_id, run.claim, status.QUEUED, delay_ms=0, recorded=run.ledger.recorded)


def left_to_others(run: Execution, delay: float) -> Transition:
    """The code here does not fit; that of other workers may."""
    return Transition(
        run.run_id,
        run.claim,
        status.QUEUED,
        delay_ms=int(delay * 1000),
        version=run.claimed.last_version,
        drop=list(run.ledger.fresh),
    )


# -- what it means to a dag run -------------------------------------------------------------------------------------


def caught_by(target: str) -> str:
    """The reason of a step whose error leads to another step."""
    return f"{status.REASON_CAUGHT}:{target}"


def settle_caught(run: Execution, outcome: str | None, move: Transition, graph: Graph | None) -> None:
    """Where a caught error leads, once the step has undone what it did itself."""
    claimed = run.claimed
    caught = outcome is not None and outcome.startswith(caught_by(""))
    if caught and claimed.dag_step is not None and move.status in status.TERMINAL:
        assert graph is not None
        move.settled = Settled(claimed.dag_id or "", claimed.dag_step, outcome or "", graph)


def settle(run: Execution, move: Transition, graph: Graph | None) -> None:
    """What the end of a step means to the others, and whether a parent has to be notified of the end."""
    claimed = run.claimed
    move.child = claimed.parent_id is not None
    move.named = claimed.named
    if claimed.dag_step is not None and move.status in status.TERMINAL and move.settled is None:
        assert graph is not None
        move.settled = Settled(claimed.dag_id or "", claimed.dag_step, move.status, graph)


_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
"""What Python writes between an error and the one that it caused."""


def describe(error: BaseException, permanent: bool = False) -> dict[str, Any]:
    """What is kept of an error, as JSON. ``permanent``: the options of its step say that no further try can help."""
    trace = getattr(error, "only_traceback", None) or _whole_traceback(error)
    kept = {
        "type": type_name(error),
        "message": message_of(error),
        "traceback": _clean(trace[-MOST_OF_A_TEXT:]),
        "retryable": is_retryable(error) and not permanent,
    }
    bases = [
        type_name(kind) for kind in type(error).__mro__[1:] if issubclass(kind, Exception) and kind is not Exception
    ]
    if bases:
        kept["bases"] = bases
    delay = own_delay(error)
    return kept if delay is None else {**kept, "delay": delay}


def _whole_traceback(error: BaseException) -> str:
    """Where it was raised; and for what a record raised, where the step or the child itself went wrong, which is in the
    record: without it a person would see only that a step was called."""
    trace = "".join(traceback.format_exception(error)).strip()
    origin = getattr(ending_record(error), "traceback", None)
    return f"{origin}\n{_CAUSED}\n{trace}" if origin else trace


def encode_error(
    error: BaseException, payloads: Payloads, tokens: Mapping[str, str] | None = None, permanent: bool = False
) -> str:
    """The stored text of an error, with what is stored of tokens of callbacks in place of these. It always succeeds: an
    error that cannot be kept must not wedge its run."""
    try:
        kept = describe(error, permanent)
        if tokens:
            kept |= {word: without_tokens(kept[word], tokens) for word in ("message", "traceback")}
        return payloads.encode_own(kept)
    except Exception as trouble:  # the application's codec; the text may hold what it was to hide
        why = f"(the codec raised {type(trouble).__name__}, so the message is not kept)"
        retryable = is_retryable(error) and not permanent
        kept = {"type": type_name(error), "message": why, "traceback": None, "retryable": retryable}
        return msgspec.json.encode(kept).decode()


def decode_error(text: str | None, format_: int, payloads: Payloads) -> dict[str, Any]:
    """What was kept, with every field present and of its kind. Only the codec may refuse it: what is no error, because
    a hand wrote it, stands for one that says so."""
    if text is None:
        return dict(_EMPTY)
    if (format_ := _format_of(text, format_)) == FORMAT:
        return _shaped(payloads.shown(text, format_, _WHAT))
    return _shaped(payloads.plain(text, format_, _WHAT))


def shown_error(text: str, format_: int, payloads: Payloads) -> dict[str, Any]:
    """An error as people read it: what a codec cannot read stands for an error that says so."""
    return _shaped(payloads.shown(text, _format_of(text, format_), _WHAT))


def _format_of(text: str, format_: int) -> int:
    """Errors written by SQL are plain JSON with any codec."""
    return FORMAT if text.startswith("{") else format_


def _shaped(kept: Any) -> dict[str, Any]:
    if not isinstance(kept, dict):
        return {**_EMPTY, "message": kept if isinstance(kept, str) else "(what is stored is no error)"}
    return {**_EMPTY, **{name: value for name, value in kept.items() if _fits(name, value)}}


def _fits(name: str, value: object) -> bool:
    if name == "bases":
        return isinstance(value, list) and all(isinstance(base, str) for base in value)
    return isinstance(value, _KEPT.get(name, object))


_WHAT = "an error"
_EMPTY: dict[str, Any] = {"type": "Error", "message": "", "traceback": None, "retryable": True, "delay": None}
_KEPT: dict[str, tuple[type, ...]] = {
    "type": (str,),
    "message": (str,),
    "traceback": (str, type(None)),
    "retryable": (bool,),
    "delay": (int, float, type(None)),
}
"""What the fields of a stored error are."""


def step_failed(step: str, error: dict[str, Any], address: tuple[str, int]) -> StepFailed:
    """What a failed step raises in its workflow."""
    return StepFailed(
        step,
        error_type=error["type"],
        message=error["message"],
        traceback=error["traceback"],
        retryable=error["retryable"],
        delay=error["delay"],
        address=address,
    )


def explain(error: BaseException) -> None:
    """A failed step that ended an attempt: its traceback may be read by one who tried to catch the original."""
    if isinstance(error, StepFailed) and not getattr(error, "__notes__", None):
        kind = error.error_type.rpartition(".")[2]
        error.add_note(
            f"A workflow sees a failed step as StepFailed, live and replayed. `except {kind}` does not catch it; "
            f"`except StepFailed as error` does, and error.error_type is {error.error_type!r}."
        )


def as_misuse(error: Exception) -> Exception:
    """A call of the context that Python itself refused, for want of an argument or because of one too many, is a misuse
    of the context: no other attempt can help. Any other error is what it was."""
    if not isinstance(error, TypeError) or not _WRONG_CALL.match(str(error)):
        return error
    said = _WRONG_CALL.sub("ctx.", str(error))
    return ContextMisuse(f"the code calls the context wrongly: {said}").with_traceback(error.__traceback__)


_WRONG_CALL = re.compile(r"\w*Context(?:Base)?\.(?=\w+\(\) (?:missing|takes|got) )")
"""How Python says that arguments do not fit a method of a context."""


def ending_record(error: BaseException) -> RecordedError | None:
    """The failed record behind an error that ended an attempt: the error itself, or what it was raised from. One that
    the code made by itself, of a class of ours, has no record, and the engine has not noted where it was seen."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, RecordedError) and hasattr(link, "seen"):
            return link
        seen.add(id(link))
        if isinstance(link, BaseExceptionGroup):
            inner = [found for part in link.exceptions if (found := ending_record(part))]
            return inner[0] if inner else None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None


def carried_by(error: BaseException) -> list[BaseException]:
    """The errors that one carries by itself: what it was raised from, the members of a group, or those of a map."""
    link = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    members: Sequence[BaseException] = ()
    if isinstance(error, (BaseExceptionGroup, MapFailed)):
        members = error.results.failed if isinstance(error, MapFailed) else error.exceptions
    return [*members, *(() if link is None else (link,))]


def type_name(error: BaseException | type[BaseException]) -> str:
    """Ours and Python's own go by their bare name; others by their module too."""
    kind = error if isinstance(error, type) else type(error)
    known = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("stepfast.")
    return kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"


def _clean(text: str) -> str:
    """Any text can be kept: what no database stores is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
