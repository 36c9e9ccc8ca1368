"""The garbage collector while a worker works.

It looks at what lives after every few hundred new objects, and a worker with hundreds of runs in flight makes thousands
between two commits, none of them garbage: runs leave nothing behind that only the collector could free. It cost a fifth
of the speed. So it is made to look less often until the last worker of the process has stopped.
"""

from __future__ import annotations

import gc
import threading

from ..settings import Settings

_USUAL_SLOTS = 100
"""So many runs at once the setting is meant for."""


class Collector:
    """The garbage collector of this process, as its workers want it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[object] = set()
        self._before: tuple[int, int, int] | None = None

    def ease(self, worker: object, threshold: int) -> None:
        """A worker starts. An application that has chosen a higher threshold itself, or none, is left alone."""
        with self._lock:
            self._workers.add(worker)
            before = gc.get_threshold()
            if 0 < before[0] < threshold:
                self._before = self._before or before
                gc.set_threshold(threshold, *before[1:])

    def restore(self, worker: object) -> None:
        """A worker has stopped; after the last one everything is as it was."""
        with self._lock:
            self._workers.discard(worker)
            if not self._workers and self._before is not None:
                gc.set_threshold(*self._before)
                self._before = None


def threshold_for(settings: Settings) -> int:
    """How many new objects there may be between two looks. Runs that are claimed together come and go together: the
    objects of five hundred would be looked at with each round of them, and cost a tenth of the speed."""
    return settings.gc_threshold * max(_USUAL_SLOTS, settings.concurrency) // _USUAL_SLOTS


collector = Collector()
