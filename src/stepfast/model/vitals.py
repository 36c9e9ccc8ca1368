"""How a worker is doing, and what follows from that: is it alive, is it ready for work? No database is asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct


class Vitals(NamedTuple):
    """What a worker knows of itself."""

    worker: str
    registered: bool
    """Whether the database knows it under its present id."""
    stopping: bool
    broken: bool
    """Whether a duty of it ended by an error."""
    heartbeat_alive: bool
    beat_age: float
    """Seconds since its last heartbeat that came through."""
    lease: float


class Finding(Struct):
    """One thing that was looked at."""

    name: str
    ok: bool
    said: str


def is_live(workers: Sequence[Vitals], lag: float, bound: float) -> list[Finding]:
    """Whether a restart would help. An outage of the database is no reason for one: it would restart the whole fleet,
    and change nothing."""
    stuck = f"the event loop has not moved for {lag:.1f} s"
    findings = [Finding("event loop", lag < bound, "moves" if lag < bound else stuck)]
    for vitals in workers:
        dead = vitals.registered and not vitals.stopping and not vitals.heartbeat_alive
        findings.append(Finding("heartbeat", not dead, "its thread is gone" if dead else "its thread is there"))
        if vitals.broken:
            findings.append(Finding("duties", False, "one of them broke; the log says which"))
    return findings


def is_ready(workers: Sequence[Vitals]) -> list[Finding]:
    """Whether there is a worker that claims: registered, heard of within its lease, and not about to stop."""
    if not workers:
        return [Finding("worker", False, "there is none yet")]
    return [finding for vitals in workers for finding in _readiness(vitals)]


def _readiness(vitals: Vitals) -> list[Finding]:
    if vitals.stopping:
        return [Finding("worker", False, f"{vitals.worker} stops")]
    if not vitals.registered:
        return [Finding("worker", False, f"{vitals.worker} is not registered")]
    fresh = vitals.beat_age < vitals.lease
    said = f"{vitals.beat_age:.1f} s ago, with a lease of {vitals.lease:g} s"
    return [
        Finding("worker", True, f"{vitals.worker} is registered"),
        Finding("heartbeat", fresh, said if fresh else f"the last one that came through was {said}"),
    ]
