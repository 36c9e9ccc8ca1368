"""The vigil: which other workers this one has seen silent itself, by its own clock.

The database's clock may step: by an administrator, by a failover to a machine whose clock goes ahead. Then every lease
seems to be over at once, and workers would bury each other. So the rows alone do not decide: a worker buries another
only if it has also looked on for about a lease while no beat came.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model.records import Beat


class Vigil:
    """What was seen of the beats of others. ``now`` is a time of our own clock that only goes on (monotonic)."""

    def __init__(self, sweep: float) -> None:
        self._sweep = sweep
        self._seen: dict[str, tuple[Beat, float]] = {}
        """Worker → its last beat, and when we first saw that one."""

    def saw(self, beats: Iterable[Beat], now: float) -> None:
        """The last beat of each worker that lives, as the rows have it."""
        before = self._seen
        self._seen = {}
        for beat in beats:
            known = before.get(beat.worker)
            self._seen[beat.worker] = known if known is not None and known[0].at == beat.at else (beat, now)

    def silent(self, now: float) -> list[str]:
        """The workers that have been silent for as long as we look on."""
        return [worker for worker, (beat, since) in self._seen.items() if now - since >= self._enough(beat)]

    def _enough(self, beat: Beat) -> float:
        """A lease, less the time that passes until a beat is first seen: a dead worker is found within its lease and
        one sweep. Where sweeps are so rare that little would be left, two thirds of the lease: two beats lost."""
        lease = beat.lease_ms / 1000
        return max(lease - self._sweep, lease * 2 / 3)
