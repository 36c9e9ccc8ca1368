"""What is said of queues: their limits in words and out of words, and who serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigurationError
from ..model.queue_config import Rate
from ..model.records import WorkerInfo
from ..queues import QueueInfo
from .words import lasting, span
from .workers import serves_queue, worker_name

_FEW = 3
"""So many workers of a queue are named."""


def limit_of(name: str, text: str) -> int | Rate | None:
    """A limit as it is typed: ``20``, ``100/60s``, ``none``."""
    if text.lower() == "none":
        return None
    if "rate" in name:
        number, slash, per = text.partition("/")
        if not slash or not number.strip().isdigit():
            raise ConfigurationError(f"{text!r} is no rate: write 100/60s, 10/s, 5/1h, or none")
        return Rate(int(number), span(per if per.strip()[:1].isdigit() else f"1{per.strip()}"))
    if not text.isdigit():
        raise ConfigurationError(f"{name.replace('_', '-')} takes a whole number or none, not {text!r}")
    return int(text)


def served_by(info: QueueInfo, workers: Sequence[WorkerInfo]) -> str:
    """The workers that look at it, by name; loudly, if there is something to do and nobody."""
    names = _servers(info, workers)
    if not names:
        return "NOBODY SERVES IT" if info.ready or info.delayed or info.waiting else "nobody"
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _servers(info: QueueInfo, workers: Sequence[WorkerInfo]) -> list[str]:
    return [worker_name(worker) for worker in workers if serves_queue(worker, info.name)]


def limits_in_words(info: QueueInfo) -> str:
    """``20 at once, 100 per 60 s; of a key 2 at once``. What an operator has set or lifted is marked."""

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
    return {
        "queue": info.name,
        "paused": info.paused,
        "ready": info.ready,
        "running": info.running,
        "waiting": info.waiting,
        "delayed": info.delayed,
        "oldest": info.oldest,
        "concurrency": info.concurrency,
        "rate": _rate(info.rate),
        "key_concurrency": info.key_concurrency,
        "key_rate": _rate(info.key_rate),
        "max_ready": info.max_ready,
        "set": list(info.overridden),
        "workers": info.workers,
        "served_by": _servers(info, workers),
    }


def _rate(rate: Rate | None) -> dict[str, float] | None:
    return None if rate is None else {"count": rate.count, "per": rate.per}
