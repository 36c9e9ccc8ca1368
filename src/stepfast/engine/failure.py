"""Errors as records: what is kept of one, and how it is raised again.

The class is never rebuilt from its name. Live and replayed, the caller sees the same ``StepFailed``.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import msgspec

from ..errors import MOST_OF_A_TEXT, ContextMisuse, RecordedError, StepFailed, message_of
from ..model.backoff import is_retryable, own_delay
from ..model.payload import Payloads
from ..settings import FORMAT

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
"""What Python writes between an error and the one that it caused."""


def describe(error: BaseException) -> dict[str, Any]:
    """What is kept of an error, as JSON."""
    trace = getattr(error, "only_traceback", None) or _whole_traceback(error)
    kept = {
        "type": type_name(error),
        "message": message_of(error),
        "traceback": _clean(trace[-MOST_OF_A_TEXT:]),
        "retryable": is_retryable(error),
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


def encode_error(error: BaseException, payloads: Payloads) -> str:
    """The stored text of an error. It always succeeds: an error that cannot be kept must not wedge its run."""
    try:
        return payloads.encode_own(describe(error))
    except Exception as trouble:  # the application's codec; the text may hold what it was to hide
        why = f"(the codec raised {type(trouble).__name__}, so the message is not kept)"
        kept = {"type": type_name(error), "message": why, "traceback": None, "retryable": is_retryable(error)}
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
    """Errors written by SQL are plain JSON whatever the codec."""
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
    """A failed step that ended an attempt: whoever reads its traceback may have tried to catch the original."""
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
    """The errors that one carries by itself: what it was raised from, or the members of a group."""
    link = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [*members, *(() if link is None else (link,))]


def type_name(error: BaseException | type[BaseException]) -> str:
    """Ours and Python's own go by their bare name; others by their module too."""
    kind = error if isinstance(error, type) else type(error)
    known = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("stepfast.")
    return kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"


def _clean(text: str) -> str:
    """Any text can be kept: what no database stores is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
