"""What keeps a ready run in its queue: a pause, or a limit. Pure: from what is said about the queue and what counts."""

from __future__ import annotations

from ..model.queue_config import Gate, Rate
from ..model.rate_limiter import NOTHING, Count, Usage
from ..reports import RunInfo
from .words import lasting


def held_by(run: RunInfo, gate: Gate, usage: Usage) -> str | None:
    """Why nobody takes a ready run now, as the end of a sentence; None: nothing that is said about its queue."""
    if gate.paused:
        return f"its queue {gate.name!r} is paused: `stepfast queue resume {gate.name}` lets it go on"
    limits = gate.limits
    if limits.concurrency is not None and usage.whole.running >= limits.concurrency:
        return f"its queue {gate.name!r} is at its limit of {limits.concurrency} ({usage.whole.running} running)"
    if run.concurrency_key is not None:
        key = usage.keys.get(run.concurrency_key, NOTHING)
        name = f"its key {run.concurrency_key!r}"
        if limits.key_concurrency is not None and key.running >= limits.key_concurrency:
            return f"{name} has {key.running} running, and queue {gate.name!r} allows {limits.key_concurrency} of a key"
        if told := _rated(name, limits.key_rate, key, usage.now):
            return told
    return _rated(f"its queue {gate.name!r}", limits.rate, usage.whole, usage.now)


def _rated(who: str, rate: Rate | None, count: Count, now: int) -> str | None:
    if rate is None or count.started < rate.count or count.next_at is None:
        return None
    return (
        f"{who} has started {count.started} in the last {lasting(rate.per)}, which is its rate; the next may start in "
        f"{lasting(max(0, count.next_at - now) / 1000)}"
    )
