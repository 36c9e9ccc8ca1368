"""Texts and JSON shapes of runs, queues, workers and schedules, for the command line and the console."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ..app import Stepfast
from ..errors import ConfigurationError, InvalidInput, RunNotFound
from ..info import Activity, ErrorInfo, ExecutedBy, RunInfo, StepInfo
from ..model import status
from ..model.cron import zone
from ..model.graph import STEP, DagStep
from ..model.health import serves_queue
from ..model.ids import ids_beginning_with, is_id
from ..model.queue_config import Rate
from ..model.records import WorkerInfo
from ..model.stored import EPOCH, moment
from ..queues import QueueInfo
from ..run import Run
from ..schedules import ScheduleInfo
from ..settings import Settings
from ..store.answers import AtWork

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|min|[smhdw])")
_LONGEST = 300
"""Characters of a payload shown to people; scripts get all of it."""
_USUAL_RETRIES = Settings().dag_retries
"""Retries of a step of a dag that are not shown. Not the setting of this process: a drawing means the same
everywhere."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_BEYOND_ASCII = re.compile(r"[\x7f-\x9f]")


def span(text: str | float) -> float:
    """Seconds, from ``90``, ``1.5``, ``90s``, ``5m``, ``2h``, ``1d`` or ``1h30m``."""
    if isinstance(text, (int, float)):
        return float(text)
    compact = text.strip().lower()
    try:
        value = float(compact)
    except ValueError:
        if not re.fullmatch(rf"(?:{_PART.pattern}\s*)+", compact):
            raise _no_span(text) from None
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
    if not math.isfinite(value) or value < 0:
        raise _no_span(text)
    return value


def _no_span(text: str) -> ConfigurationError:
    return ConfigurationError(f"{text!r} is not a time; write seconds (90, 0.5) or 500ms, 90s, 5m, 2h, 1d, 1h30m")


def parse_time(text: str | datetime) -> datetime:
    """A point in time in ISO format, or as it is shown (``… UTC``); without a zone it is this machine's local time."""
    if isinstance(text, datetime):
        return text
    try:
        found = datetime.fromisoformat(re.sub(r"\s*UTC$", "+00:00", text.strip()))
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a time; write 2030-01-31T09:30 or 2030-01-31T09:30+01:00") from None
    return found.astimezone() if found.tzinfo is None else found


def lasting(seconds: float) -> str:
    """Format a span: ``40 ms``, ``3.2 s``, ``45 s``, ``5 min``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s", until=600)
    if whole < 86400:
        return _two(whole, 3600, "h", 60, "min", until=86400)
    return _two(whole, 86400, "d", 3600, "h", until=864000)


def _two(whole: int, large: int, large_name: str, small: int, small_name: str, *, until: int) -> str:
    """Two units while the smaller one still matters."""
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest and whole < until else "")


def ago(then: datetime, now: datetime) -> str:
    """``3 s ago``, or ``in 12 s``."""
    seconds = (now - then).total_seconds()
    return f"in {lasting(-seconds)}" if seconds < 0 else f"{lasting(seconds)} ago"


def listed(names: list[str]) -> str:
    """Names as a sentence lists them: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 worker``, ``3 workers``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def retries_of(dag_step: DagStep) -> str:
    """Return how often a step of a dag is retried, if that differs from the default; else an empty text."""
    if dag_step.kind != STEP or dag_step.retries in (None, _USUAL_RETRIES):
        return ""
    return {0: "no retries", 1: "1 retry"}.get(dag_step.retries or 0, f"{dag_step.retries} retries")


def brief(value: Any) -> str:
    """A payload as JSON on one line, cut where it gets long."""
    return shortened(msgspec.json.encode(value).decode())


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Text on one line, cut where it gets long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]}… ({len(line)} characters; --json shows all)"


def printable(text: str) -> str:
    """Escape control characters, which could control a terminal."""
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def harmless_json(text: str) -> str:
    """Escape the control characters beyond ASCII in JSON: the encoder keeps them, and some terminals apply them."""
    return _BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


REASONS = {
    status.REASON_CODE: "its code raised an error",
    status.REASON_TIMEOUT: "its last attempt took longer than its timeout",
    status.REASON_DEADLINE: "it did not end before its deadline",
    status.REASON_EXPIRED: "no worker picked it up in time",
    status.REASON_LOST: "too many workers died with it",
    status.REASON_NON_DETERMINISM: "the code makes other calls than are recorded",
    status.REASON_CANCELLED: "it was cancelled",
    status.REASON_UNDO: "completed steps were to be undone, and not all could be",
    status.REASON_CONTINUED: "it continues as another run",
}


def explained(run: RunInfo) -> str:
    """Return the status of a run, with its reason in words."""
    return f"{run.status} ({run.reason}: {REASONS[run.reason]})" if run.reason in REASONS else status_of(run)


def status_of(run: RunInfo) -> str:
    """Return the status of a run, with what it waits for or why it ended."""
    more = run.reason or (run.waiting_for and waited_for(run.waiting_for))
    return f"{run.status} ({more})" if more else run.status


def waited_for(what: str) -> str:
    """Format what a run waits for: ``signal:approved, time`` is ``signal 'approved' and time``."""
    said = []
    for part in what.split(", "):
        kind, colon, name = part.partition(":")
        said.append(f"{kind} {name!r}" if colon else part)
    return listed(said)


def due_at(step: StepInfo) -> datetime | None:
    """Return when a sleep, or the timeout of a wait, is over."""
    plan = step.output
    if isinstance(plan, dict) and isinstance(plan.get("until"), int):
        return moment(plan["until"])
    if isinstance(plan, dict) and isinstance(plan.get("for"), int):
        if step.started_at is None:
            return None
        return moment((step.started_at - EPOCH) / timedelta(milliseconds=1) + plan["for"])
    return None


def outcome_of(error: ErrorInfo | None, value: Any, detail: str | None = None) -> str:
    """Format the outcome of a step: its error, its detail or its value."""
    if error is not None:
        return shortened(f"{error.type}: {error.message}")
    return shortened(detail) if detail else "" if value is None else brief(value)


def worker_name(worker: WorkerInfo) -> str:
    """Return the host and the process."""
    return f"{worker.host}:{worker.pid}"


def executor_name(executed_by: ExecutedBy | None) -> str:
    """Host and process of the worker that executed something; its id where they are not known any more."""
    if executed_by is None:
        return ""
    return executed_by.worker if executed_by.host is None else f"{executed_by.host}:{executed_by.pid}"


def executor(executed_by: ExecutedBy | None) -> str:
    """Host, process and id of the worker that executed something."""
    name = executor_name(executed_by)
    return name if executed_by is None or executed_by.host is None else f"{name} ({executed_by.worker})"


def live_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers within their lease, also stopping ones."""
    return [worker for worker in workers if worker.state != "dead"]


def queues_of(worker: WorkerInfo) -> str:
    """Return the queues that it serves, in words."""
    return "all" if worker.queues is None else ", ".join(worker.queues)


def at_work_in_words(each: AtWork) -> str:
    """Describe a call that has been executing for a long time."""
    step = "" if each.step is None else f", step {each.step!r}"
    return f"run {each.run_id} ({each.workflow}{step}) for {lasting(each.seconds)}"


def worker_shape(worker: WorkerInfo) -> dict[str, Any]:
    """A worker as JSON."""
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "queues": worker.queues,
        "workflows": worker.workflows,
        "concurrency": worker.concurrency,
        "running": worker.running,
        "lease": worker.lease_ms / 1000,
        "started_at": moment(worker.started_at),
        "beat_at": moment(worker.beat_at),
        "silent_for": worker.age_ms / 1000,
    }


_FEW = 3
"""Workers of a queue that are named."""


def limit_of(name: str, text: str) -> int | Rate | None:
    """Parse a limit: ``20``, ``100/60s``, ``none``."""
    if text.lower() == "none":
        return None
    if "rate" in name:
        number, slash, per = text.partition("/")
        if not slash or not number.strip().isdigit():
            raise ConfigurationError(f"{text!r} is not a rate: write 100/60s, 10/s, 5/1h, or none")
        return Rate(int(number), span(per if per.strip()[:1].isdigit() else f"1{per.strip()}"))
    if not text.isdigit():
        raise ConfigurationError(f"{name.replace('_', '-')} takes a whole number or none, not {text!r}")
    return int(text)


def served_by(info: QueueInfo, workers: Sequence[WorkerInfo]) -> str:
    """Return the names of the workers that serve it; "NO WORKER" if there are runs and none does."""
    names = _servers(info, workers)
    if not names:
        return "NO WORKER" if info.ready or info.delayed or info.waiting else "none"
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _servers(info: QueueInfo, workers: Sequence[WorkerInfo]) -> list[str]:
    return [worker_name(worker) for worker in workers if serves_queue(worker, info.name)]


def limits_in_words(info: QueueInfo) -> str:
    """Format limits: ``20 at once, 100 per 60 s; of a key 2 at once``. Those that an operator has set or removed are
    marked."""

    def said(name: str, text: str | None, lifted: str) -> str:
        return f"{text or lifted} (set)" if name in info.overridden else text or ""

    whole = [
        said("concurrency", _number(info.concurrency, "at once"), "any number at once"),
        said("rate", rate_in_words(info.rate) if info.rate else None, "no rate"),
        said("max_ready", _number(info.max_ready, "ready"), "any number ready"),
    ]
    keys = [
        said("key_concurrency", _number(info.key_concurrency, "at once"), "any number at once"),
        said("key_rate", rate_in_words(info.key_rate) if info.key_rate else None, "no rate"),
    ]
    of_a_key = [f"of a key {', '.join(filter(None, keys))}"] if any(keys) else []
    return "; ".join([*([", ".join(filter(None, whole))] if any(whole) else []), *of_a_key])


def _number(limit: int | None, what: str) -> str | None:
    return None if limit is None else f"{limit} {what}"


def rate_in_words(rate: Rate) -> str:
    """``100 per 60 s``."""
    return f"{rate.count} per {lasting(rate.per)}"


def queue_shape(info: QueueInfo, workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    """A queue as JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(info)
    name, chosen = fields.pop("name"), fields.pop("overridden")
    return {"queue": name, **fields, "set": list(chosen), "served_by": _servers(info, workers)}


_SHOWN = 5
"""Next ticks that are shown of each schedule."""


def times_in_words(info: ScheduleInfo) -> str:
    """The next ticks: ``in 21 h: Tue 17 Nov 03:00, Wed 18 Nov 03:00 (Europe/Berlin)``, in the schedule's own time zone.
    A date that is that of the tick before is left out."""
    times = _times(info)
    if not times:
        return "never"
    said, day = list[str](), ""
    for time in (time.astimezone(zone(info.tz)) for time in times):
        clock = f"{time:%H:%M}" if info.cron is not None else f"{time:%H:%M:%S}"
        date = f"{time:%a} {time.day} {time:%b}"
        said.append(clock if date == day else f"{date} {clock}")
        day = date
    return f"{ago(times[0], info.read_at)}: {', '.join(said)} ({info.tz})"


def _times(info: ScheduleInfo) -> list[datetime]:
    """Return its next ticks; none if its row was changed by hand to something that is no schedule."""
    try:
        return info.times(_SHOWN)
    except ConfigurationError:
        return []


def when_in_words(info: ScheduleInfo) -> str:
    """When its ticks are: an interval, or a cron expression with its time zone."""
    return f"every {lasting(info.every)}" if info.every is not None else f"{info.cron} {info.tz}"


def state_in_words(info: ScheduleInfo) -> str:
    """Return its state: paused, failing, awake or asleep."""
    if info.paused:
        return "paused"
    if info.error is not None:
        return "failing"
    return "awake" if info.awake else "asleep"


def schedule_shape(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule as JSON, with its next ticks."""
    fields: dict[str, Any] = msgspec.to_builtins(info)
    return fields | {"times": _times(info)}


def run_shape(
    info: RunInfo,
    why: str,
    steps: Sequence[StepInfo],
    children: Sequence[str],
    values: Mapping[str, Any],
    unread: Sequence[tuple[str, int]],
) -> dict[str, Any]:
    """One run, with its steps and what it has set."""
    shape: dict[str, Any] = msgspec.to_builtins(info)
    return shape | {"why": why, "steps": steps, "children": children, "values": values, "unread": dict(unread)}


def call_shape(call: Activity) -> dict[str, Any]:
    """One call, with its duration in seconds, which every language reads."""
    shape: dict[str, Any] = msgspec.to_builtins(call)
    return shape | {"duration": call.duration.total_seconds()}


_SHORTEST = 4
"""Characters of an id that are needed at least."""
_SHOWN_IDS = 3


async def find_run(app: Stepfast, text: str, key: str | None = None, *, this: bool = False) -> Run[Any]:
    """Return the run of an id, of the beginning of one, or of a workflow and a key; ``this``: that alone, and not the
    last of its chain. A whole id is not checked here; the next query of the run does."""
    run = await _named(app, text, key)
    return run.this if this else run


async def _named(app: Stepfast, text: str, key: str | None) -> Run[Any]:
    if key is not None:
        return app.get((await app.find(text, key=key)).id)
    bounds = ids_beginning_with(text)
    if bounds is None or len(text.strip()) < _SHORTEST or bounds[0] == bounds[1] or is_id(text.lower()):
        return app.get(bounds[0] if bounds is not None and bounds[0] == bounds[1] else text)
    found = await (await app.store()).ids_between(*bounds, _SHOWN_IDS + 1)
    if not found:
        raise RunNotFound(f"whose id begins with {text}")
    if len(found) > 1:
        shown = found if len(found) <= _SHOWN_IDS else [*found[:_SHOWN_IDS], "others"]
        raise InvalidInput(f"{text!r} is the beginning of several ids: {listed(shown)}; write more of it")
    return app.get(found[0])
